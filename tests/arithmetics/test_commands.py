"""``--arith`` with the name of an integer engine: what run, compare and eval print."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import ROOT, Ended, call, says

DIGITS = ROOT / "models" / "digits"
MODEL = str(DIGITS / "qdq" / "model.onnx")
ALL = "9 of 9 quantized nodes computed in tfl-double"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.load(DIGITS / "x.npy"))


def prints(ended: Ended, code: int, *words: str) -> Ended:
    """The call, which ended with this exit code and printed all of these words, whatever its line breaks."""
    assert ended.code == code, ended.err
    text = " ".join(ended.out.split())
    for word in words:
        assert " ".join(word.split()) in text, (word, ended.out)
    return ended


def schema(command: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(files("qrun").joinpath(f"schemas/{command}-1.0.json").read_text())
    return found


def test_run_says_what_the_engine_computed() -> None:
    ended = prints(call("run", MODEL, "-i", "x.npy[0]", "--arith", "tfl-double"), 0, ALL)
    assert ALL in ended.out.split("\n\n")[0]
    found = call("run", MODEL, "-i", "x.npy[0]", "--arith", "tfl-double", "--json").json
    jsonschema.validate(found, schema("run"))
    assert found["coverage"] == {"engine": "tfl-double", "computed": 9, "exact": {}, "floats": {}}
    assert "coverage" not in call("run", MODEL, "-i", "x.npy[0]", "--json").json


def test_compare_runs_the_same_groups_on_both_sides() -> None:
    ended = call("compare", MODEL, "-i", "x.npy[0]", "--arith", "tfl-double")
    prints(ended, 1, ALL, "groups fused, arith tfl-double")
    found = call("compare", MODEL, "-i", "x.npy[0]", "--arith", "tfl-double", "--json").json
    jsonschema.validate(found, schema("compare"))
    assert [side["name"] for side in found["sides"]] == ["exact", "tfl-double"]
    assert found["coverage"]["computed"] == 9


def test_eval_compares_two_arithmetics() -> None:
    ended = call("eval", MODEL, "-i", "x.npy", "--arith", "tfl-double", "--against", "exact", "-j", "1")
    prints(ended, 0, ALL, "arith tfl-double; against exact", "--arith tfl-double   shows where they first differ")
    found = call("eval", MODEL, "-i", "x.npy", "--arith", "tfl-double", "--against", "exact", "-j", "1", "--json").json
    jsonschema.validate(found, schema("eval"))
    assert found["arith"] == "tfl-double"
    turned = call("eval", MODEL, "-i", "x.npy", "--against", "tfl-double", "-j", "1", "--json").json
    assert "arith" not in turned
    for one, other in zip(found["models"][0]["scores"], turned["models"][0]["scores"], strict=True):
        if one["metric"] in ("argmax", "mae", "max_abs"):
            assert one["value"] == other["value"]
    same = call("eval", MODEL, "-i", "x.npy", "--arith", "ncnn", "--against", "ncnn", "-j", "1")
    prints(same, 0, "ncnn", "exact")


def test_eval_calls_a_file_of_such_a_name_a_model() -> None:
    onnx.save(onnx.load(MODEL), "exact")
    prints(call("eval", MODEL, "-i", "x.npy", "--against", "exact", "-j", "1"), 0, "against exact")


@pytest.mark.parametrize(
    ("words", "said", "near"),
    [
        (("run", "--arith", "tfl-duble"), "does not exist", "tfl-double"),
        (("compare", "--arith", "xnpack"), "does not exist", "xnnpack"),
        (("eval", "--arith", "rndn"), "does not exist", "rndnu"),
        (("eval", "--against", "tfl-singel"), "is no file, no runtime and no arithmetic", "tfl-single"),
    ],
)
def test_a_name_that_does_not_exist(words: tuple[str, ...], said: str, near: str) -> None:
    command, *options = words
    ended = says(call(command, MODEL, "-i", "x.npy", *options), 2, said, near)
    assert "Traceback" not in ended.err


def test_compare_takes_no_exact_arithmetic() -> None:
    says(
        call("compare", MODEL, "-i", "x.npy", "--arith", "exact"),
        2,
        "the arithmetic that the other one is compared with",
    )


def test_all_engines_are_explained() -> None:
    ended = prints(
        call("explain", "arithmetics"), 0, "xnnpack", "ort-arm", "21 bits", "qladd.cpp", "8 bits after the point"
    )
    assert ended.out.index("tfl-double") < ended.out.index("ort-arm")
    found = call("explain", "arithmetics", "--json").json
    assert {"tfl-double", "xnnpack", "ort-arm"} <= {engine["name"] for engine in found["engines"]}
