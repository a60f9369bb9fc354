"""``qrun compare FLOAT QUANTIZED``: what decides, and what the last line and the exit code say of it."""

from __future__ import annotations

import json
from importlib.resources import files as resources
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import ROOT, call, save
from onnx import numpy_helper

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
    "one score a class": ("0, 6", True),
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
        ended = call("compare", *arguments, "--min-sqnr", "30")
        assert ended.code == 2
        assert "--min-sqnr is for two models" in ended.err
        ended = call("compare", *arguments, "--budget", "5m")
        assert ended.code == 2
        assert "--budget is for two models" in ended.err
    assert not (folder / "golden").exists()
    for wrong in ("nan", "-1", "much"):
        assert call(*models(model, "--min-sqnr", wrong)).code == 2


def test_the_time_for_measuring_nodes_can_be_chosen() -> None:
    """Too short, it is the first thing said after the verdict and the models."""
    model = DIGITS / "qdq/model.onnx"
    assert "Time ran out after 0 s" in call(*models(model, "--budget", "0")).out
    for enough in ("none", "10m", "600s", "600", "1h", "1.5m"):
        assert "Time ran out" not in call(*models(model, "--budget", enough)).out
    for wrong in ("nan", "-1s", "soon", "s", "5us", "inf", ""):
        assert call(*models(model, "--budget", wrong)).code == 2, wrong
