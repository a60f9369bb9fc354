"""``qrun compare FLOAT A B C``: several models against the first; and several sets of inputs."""

from __future__ import annotations

import json
from importlib.resources import files as resources
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import ROOT, call
from helpers.models import make_model
from onnx import numpy_helper

SCHEMA = json.loads(resources("qrun").joinpath("schemas/compare-1.0.json").read_text())
DIGITS = ROOT / "models" / "digits"
X = np.load(DIGITS / "x.npy")
FLOAT, QDQ, QOP, DYNAMIC = (str(DIGITS / form / "model.onnx") for form in ("float", "qdq", "qoperator", "dynamic"))
INPUT = ("-i", str(DIGITS / "x.npy"))


def test_models_are_ranked_by_their_worst_output() -> None:
    ended = call("compare", FLOAT, QDQ, QOP, DYNAMIC, *INPUT)
    assert ended.code == 0, "no target is stated"
    assert ended.out.startswith(f"{DYNAMIC}: 37.")
    assert f" dB SQNR against {FLOAT}, same class in 8 of 8, the best of 3." in ended.out.splitlines()[0]
    assert "good enough" not in ended.out
    told = call("compare", FLOAT, QDQ, QOP, DYNAMIC, *INPUT, "--json").json
    jsonschema.validate(told, SCHEMA)
    assert told["kind"] == "candidates"
    values = [each["sqnr_db"] for each in told["candidates"]]
    assert values == sorted(values, reverse=True)
    for each in told["candidates"]:
        alone = call("compare", FLOAT, each["path"], *INPUT, "--json").json
        assert each["outputs"] == alone["outputs"]
        assert each["sqnr_db"] == alone["outputs"][0]["sqnr_db"]


@pytest.mark.parametrize(("least", "good", "code"), [("30", 3, 0), ("36", 2, 0), ("60", 0, 1)])
def test_the_best_one_decides_the_exit_code(least: str, good: int, code: int) -> None:
    ended = call("compare", FLOAT, QDQ, QOP, DYNAMIC, *INPUT, "--min-sqnr", least)
    assert ended.code == code
    assert ended.out.startswith("too noisy: the best is " if code else "accurate: the best is ")
    assert f"; {good} of 3 reach --min-sqnr {least}." in ended.out
    assert ended.out.count(" yes ") == good


def test_what_becomes_of_argmax_is_in_the_verdict(folder: Path) -> None:
    model = onnx.load(QDQ)
    scale = next(t for t in model.graph.initializer if t.name == "c2_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) / np.float32(8), "c2_scale"))
    onnx.save(model, folder / "coarse.onnx")
    both = call("compare", FLOAT, "coarse.onnx", "coarse.onnx", *INPUT)
    assert "same class in 7 of 8" in both.out.splitlines()[0]
    assert call("compare", FLOAT, "coarse.onnx", QDQ, *INPUT).out.startswith(f"{QDQ}: ")


@pytest.mark.parametrize("option", ["--against ort", "--arith ort", "--isolate", "--emulate avx2", "--record golden"])
def test_options_for_one_model_are_refused(option: str) -> None:
    ended = call("compare", FLOAT, QDQ, QOP, *INPUT, *option.split())
    assert (ended.code, ended.out) == (2, "")
    assert f"{option.split()[0]} does not fit these arguments" in ended.err


def sets(folder: Path, kind: str) -> list[str]:
    """Three sets, in one of the forms that there are; as options."""
    names = []
    for place, part in enumerate(np.array_split(X, 3)):
        if kind == "test_data_set":
            where = folder / "sets" / f"test_data_set_{place}"
            where.mkdir(parents=True)
            (where / "input_0.pb").write_bytes(numpy_helper.from_array(part).SerializeToString())
        elif kind == "npz":
            (folder / "sets").mkdir(exist_ok=True)
            np.savez(folder / "sets" / f"x{place}.npz", images=part)
        else:
            (folder / "sets").mkdir(exist_ok=True)
            np.save(folder / "sets" / f"x{place}.npy", part)
        names.append(f"sets/x{place}.npy")
    return ["-i", "sets"] if kind != "each" else [word for name in names for word in ("-i", name)]


@pytest.mark.parametrize("kind", ["test_data_set", "npz", "npy", "each"])
def test_several_sets_of_inputs(folder: Path, kind: str) -> None:
    """Together they are the rows of one: each row of the output is judged alone."""
    ended = call("compare", FLOAT, QDQ, *sets(folder, kind), "--json")
    whole = call("compare", FLOAT, QDQ, *INPUT, "--json").json
    told = ended.json
    assert (told["runs"], whole["runs"]) == (3, 1)
    (one,), (all_,) = told["outputs"], whole["outputs"]
    assert one["sqnr_db"] == pytest.approx(all_["sqnr_db"])
    assert one["argmax_total"] == all_["argmax_total"] == len(X)
    assert "and 2 more" in told["inputs"][0]["source"]


def test_ten_files_are_in_the_order_of_their_numbers(folder: Path) -> None:
    (folder / "sets").mkdir()
    for place in range(11):
        np.save(folder / "sets" / f"x{place}.npy", X[:1] if place == 2 else X[1:2])
    told = call("compare", FLOAT, QDQ, "-i", "sets", "--json").json
    assert told["runs"] == 11
    assert told["inputs"][0]["source"] == "sets/x0.npy and 10 more"


def test_parts_of_one_set_stay_one(folder: Path) -> None:
    from onnx import helper

    model = make_model([helper.make_node("Add", ["a", "b"], ["c"])], {"a": [2], "b": [2]}, {"c": [2]}, opset=13)
    onnx.save(model, folder / "m.onnx")
    for name in "ab":
        np.savez(folder / f"{name}.npz", **{name: np.ones(2, np.float32)})
    told = call("compare", "m.onnx", "m.onnx", "-i", "a.npz", "-i", "b.npz", "--json").json
    assert told["runs"] == 1
    assert told["equal"] is True
