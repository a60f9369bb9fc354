"""``qrun compare`` of two and more models: what decides, and what the last line and the exit code say of it."""

from __future__ import annotations

import json
import math
from importlib.resources import files as resources
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import ROOT, call, save, says
from helpers.models import make_model
from onnx import numpy_helper

from qrun.cli._options import Seconds

SCHEMA = json.loads(resources("qrun").joinpath("schemas/compare-1.0.json").read_text())
DIGITS = ROOT / "models" / "digits"
INPUT = ("-i", str(DIGITS / "x.npy"))


@pytest.fixture
def coarse(folder: Path) -> Path:
    """The digits model with a scale 8 times too small: 4.8 dB, another class in 1 of 8."""
    model = onnx.load(DIGITS / "qdq/model.onnx")
    scale = next(t for t in model.graph.initializer if t.name == "c2_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) / np.float32(8), "c2_scale"))
    save(model, folder / "coarse.onnx")
    return folder / "coarse.onnx"


def models(second: Path | str, *options: str) -> tuple[str | Path, ...]:
    return ("compare", DIGITS / "float/model.onnx", second, *INPUT, *options)


@pytest.mark.parametrize(("least", "code", "said"), [
    ("30", 0, "accurate: all outputs at 30 dB or more; logits has SQNR 35.8 dB, same class in 8 of 8."),
    ("40", 1, "too noisy: logits below 40 dB; SQNR 35.8 dB, same class in 8 of 8."),
])  # fmt: skip
def test_decibels_decide_in_place_of_the_tolerance(least: str, code: int, said: str) -> None:
    ended = call(*models(DIGITS / "qdq/model.onnx", "--min-sqnr", least))
    assert ended.code == code
    assert ended.out.splitlines()[0] == said
    assert said in call(*models(DIGITS / "qdq/model.onnx", "--min-sqnr", least, "--format", "markdown")).out
    found = call(*models(DIGITS / "qdq/model.onnx", "--min-sqnr", least, "--json")).json
    jsonschema.validate(found, SCHEMA)
    assert (found["exit_code"], found["equal"], found["passed"]) == (code, False, code == 0)
    assert found["min_sqnr_db"] == float(least)


def test_without_a_target_it_is_a_measurement() -> None:
    ended = call(*models(DIGITS / "qdq/model.onnx"))
    second, first = DIGITS / "qdq/model.onnx", DIGITS / "float/model.onnx"
    said = f"{second}: 35.8 dB SQNR against {first}, same class in 8 of 8."
    assert (ended.code, ended.out.splitlines()[0]) == (0, said)
    found = call(*models(second, "--json")).json
    assert (found["exit_code"], found["equal"], found["passed"], found["outputs"][0]["passed"]) == (
        0,
        False,
        None,
        None,
    )
    ended = call("compare", second, DIGITS / "qoperator/model.onnx", *INPUT)
    assert (ended.code, ended.out.startswith("differ: ")) == (1, True), "both are quantized"


HEADS = {
    "one score per class": ("0, 6", True),
    "the same with axes of an image left": ("0, 6, 1, 1", True),
    "one value a sample": ("-1, 1", False),
    "boxes of each image": ("0, 3, 2", False),
    "boxes of all images": ("-1, 2", False),
    "a map of each class": ("0, 3, 2, 1", False),
}


@pytest.mark.parametrize("kind", HEADS)
def test_only_scores_of_classes_have_classes(folder: Path, kind: str) -> None:
    """The largest element of boxes and maps is no class: neither compare nor eval speaks of one."""
    shape, told = HEADS[kind]
    head = f"""<ir_version: 8, opset_import: ["": 13]> g (float[4,2,3] x) => (float[] y)
        <float s = {{0.02}}, uint8 z = {{128}}, int64[{shape.count(",") + 1}] shape = {{{shape}}}>"""
    for name, body in (("float", "y = Reshape(x, shape)"), ("int8", ROUNDED)):
        made = onnx.parser.parse_model(f"{head} {{ {body} }}")
        made.graph.output[0].type.tensor_type.ClearField("shape")
        save(made, folder / f"{name}.onnx")
    np.save(folder / "x.npy", np.random.default_rng(3).normal(size=(4, 2, 3)).astype(np.float32))
    first, second, x = (str(folder / name) for name in ("float.onnx", "int8.onnx", "x.npy"))
    assert (", same class in" in call("compare", first, second, "-i", x).out.splitlines()[0]) == told
    judged = ("eval", second, "-i", x, "--against", first)
    (scored,) = call(*judged, "--json").json["models"]
    metrics = {score["metric"] for score in scored["scores"]}
    assert scored["failed"] or "sqnr_db" in metrics
    assert ("argmax" in metrics) == told
    assert told or scored["failed"] or " dB SQNR against float.onnx" in call(*judged).out.splitlines()[0]


ROUNDED = """r = Reshape(x, shape)
    q = QuantizeLinear(r, s, z)
    y = DequantizeLinear(q, s, z)"""


def test_a_stated_tolerance_decides() -> None:
    ended = call(*models(DIGITS / "qdq/model.onnx", "--rtol", "0.001"))
    said = "differ: logits over rtol 0.001, atol 1e-07; SQNR 35.8 dB, same class in 8 of 8."
    assert (ended.code, ended.out.splitlines()[0]) == (1, said)
    ended = call(*models(DIGITS / "qdq/model.onnx", "--lsb", "1"))
    assert (ended.code, "differ: logits over lsb 1, rtol 0.001" in ended.out) == (1, True)
    assert call(*models(DIGITS / "qdq/model.onnx", "--lsb", "2")).code == 0, "0.45 is two steps of 0.211"
    assert call(*models(DIGITS / "qdq/model.onnx", "--atol", "1")).code == 0
    assert call(*models(DIGITS / "qdq/model.onnx", "--atol", "1", "--min-sqnr", "40")).code == 1


def test_a_changed_class_is_in_the_verdict(coarse: Path) -> None:
    for options in ((), ("--min-sqnr", "30"), ("--min-sqnr", "0"), ("--atol", "1000")):
        ended = call(*models(coarse, *options))
        assert ended.out.splitlines()[0].endswith(", same class in 7 of 8.")
        assert ended.code == (1 if options == ("--min-sqnr", "30") else 0)


def test_decibels_are_for_two_models_only(folder: Path) -> None:
    model = DIGITS / "qdq/model.onnx"
    for arguments in ([model, *INPUT], [model, *INPUT, "--record", folder / "golden"]):
        says(call("compare", *arguments, "--min-sqnr", "30"), 2, "--min-sqnr needs two models")
        says(call("compare", *arguments, "--budget", "5m"), 2, "--budget needs two models")
    assert not (folder / "golden").exists()
    for wrong in ("nan", "-1", "much"):
        assert call(*models(model, "--min-sqnr", wrong)).code == 2


def test_the_time_for_measuring_nodes_can_be_chosen() -> None:
    """Too short, it is the first thing said after the verdict and the models."""
    model = DIGITS / "qdq/model.onnx"
    assert "Stopped at once" in call(*models(model, "--budget", "0")).out
    assert "Stopped after" not in call(*models(model, "--budget", "1h")).out
    times = {"none": math.inf, "10m": 600, "600s": 600, "600": 600, "1h": 3600, "1.5m": 90, "500ms": 0.5}
    assert {text: Seconds().convert(text, None, None) for text in times} == times
    for wrong in ("nan", "-1s", "soon", "s", "5us", "inf", ""):
        assert call(*models(model, "--budget", wrong)).code == 2, wrong


X = np.load(DIGITS / "x.npy")
FLOAT, QDQ, QOP, DYNAMIC = (str(DIGITS / form / "model.onnx") for form in ("float", "qdq", "qoperator", "dynamic"))


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
