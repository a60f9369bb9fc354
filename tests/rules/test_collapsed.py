"""QR413, QR414 and QR416: scales that leave few codes to the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.models import make_model
from onnx import helper, numpy_helper

import qrun
from qrun.checking.rules import Finding

F32 = np.float32
ZERO: Any = np.uint8(0)
RAMP = np.linspace(-4, 4, 64, dtype=F32)[None]
RULES = ("QR413", "QR414", "QR416")


def quantized(op_type: str, scale: float, zero: Any = ZERO, size: int = 64) -> onnx.ModelProto:
    """A float operator, then QuantizeLinear and DequantizeLinear."""
    nodes = [
        helper.make_node(op_type, ["x"], ["p"], "f"),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dequantize"),
    ]
    return make_model(nodes, {"x": [1, size]}, {"y": [1, size]}, {"s": F32(scale), "z": zero}, opset=13)


def found(model: onnx.ModelProto, x: np.ndarray = RAMP, backend: str = "native") -> list[Finding]:
    result = qrun.Session(model, backend=backend).execute({"x": x})
    return [f for f in qrun.check(model, result, {"x": x}) if f.rule in RULES]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_one_code_for_all_values(backend: str) -> None:
    (f,) = found(quantized("Relu", 10), backend=backend)
    assert (f.rule, f.node, f.message) == ("QR413", "quantize", "all 64 values of q have code 0")
    assert f.got == "values from 0 to 4; scale 10, zero point 0"
    assert f.fix.startswith("give q the scale 0.01569 and the zero point 0")


def test_the_scale_that_a_finding_names_mends_the_model() -> None:
    for zero, scale in ((np.uint8(0), 4 / 255), (np.int8(0), 4 / 127), (np.int8(-128), 4 / 255)):
        (f,) = found(quantized("Relu", 10, zero))
        assert f"the scale {scale:.4g} and the zero point {zero}," in f.fix
        assert found(quantized("Relu", float(f"{scale:.4g}"), zero)) == []


def test_two_neighbouring_codes_are_as_bad() -> None:
    (f,) = found(quantized("Relu", 5))
    assert f.message == "all 64 values of q have code 0 or 1"


def test_a_quarter_of_the_codes() -> None:
    """17 codes; at a scale of exactly four times what fits, all is as it may be."""
    (f,) = found(quantized("Relu", 0.25))
    assert (f.rule, f.level, f.message) == ("QR414", "note", "the 64 values of q use 17 of 256 codes")
    assert found(quantized("Relu", 4 * 4 / 255)) == []
    assert [f.rule for f in found(quantized("Relu", 4.1 * 4 / 255))] == ["QR414"]


def sparse() -> np.ndarray:
    x = np.full((1, 64), -1, F32)
    x[0, :3] = 4
    return x


@pytest.mark.parametrize(
    ("name", "scale", "x"),
    [
        ("zeros", 1, np.zeros((1, 64), F32)),
        ("a constant", 10, np.full((1, 64), 3, F32)),
        ("a mask", 10, (np.arange(64) % 2).astype(F32)[None]),
        ("classes", 10, (np.arange(64) % 5).astype(F32)[None]),
        ("sparse behind a Relu", 4 / 255, sparse()),
        ("values that reach the end once", 4 / 255, np.append(np.full(63, 1e-3, F32), F32(4))[None]),
    ],
)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_values_that_are_few_need_few_codes(name: str, scale: float, x: np.ndarray, backend: str) -> None:
    assert found(quantized("Relu", scale), x, backend) == [], name


def test_a_handful_of_values_proves_nothing() -> None:
    assert found(quantized("Relu", 10, size=15), np.linspace(0, 4, 15, dtype=F32)[None]) == []
    assert found(quantized("Relu", 0.25, size=63), np.linspace(0, 4, 63, dtype=F32)[None]) == []


# Functions with bounds


def test_all_that_a_sigmoid_gives_becomes_one_code_whatever_is_fed() -> None:
    model = quantized("Sigmoid", 2.5, np.int8(-128))
    (f,) = [f for f in qrun.check(model) if f.rule in RULES]
    assert (f.rule, f.node) == ("QR416", "quantize")
    assert f.message == "Sigmoid can reach 1 of 256 codes of q"
    assert f.got == "Sigmoid gives 0 to 1, which are the codes -128 to -128; scale 2.5, zero point -128"
    assert f.fix.startswith("give q the scale 0.003922 and the zero point -128")
    assert [f.rule for f in found(model)] == ["QR416"], "and not once more for what the run shows"


@pytest.mark.parametrize(("op_type", "scale", "zero"), [("Sigmoid", 1 / 256, np.uint8(0)), ("Tanh", 1 / 128, np.int8(0)),
                                                        ("Softmax", 1 / 256, np.uint8(0))])  # fmt: skip
def test_a_function_that_happens_to_give_little_has_the_right_scale(op_type: str, scale: float, zero: Any) -> None:
    model = quantized(op_type, scale, zero)
    assert found(model, RAMP / 100) == []
    assert found(model, RAMP - 20) == []


def test_scores_that_are_joined_with_boxes() -> None:
    """The fix names the node that would round them once more."""
    model = quantized("Sigmoid", 640 / 255, np.int8(-128))
    model.graph.node.append(helper.make_node("Concat", ["y", "x"], ["all"], "join", axis=1))
    (f,) = [f for f in qrun.check(model) if f.rule in RULES]
    assert "and leave Concat node 3 join, which joins it with others, in float" in f.fix


# Where it is reported


def vector(folder: Path, x: np.ndarray, model: onnx.ModelProto) -> None:
    folder.mkdir()
    y = qrun.Session(model).run({"x": x})["y"]
    for kind, array in (("input", x), ("output", y)):
        (folder / f"{kind}_0.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())


def test_recorded_vectors_must_all_show_it(tmp_path: Path) -> None:
    model = quantized("Relu", 10)
    onnx.save(model, tmp_path / "m.onnx")
    vector(tmp_path / "test_data_set_0", RAMP, model)
    assert "all 64 values of q have code 0" in call("check", str(tmp_path)).out
    vector(tmp_path / "test_data_set_1", RAMP / 2, model)
    assert "QR413" in call("check", str(tmp_path)).out
    vector(tmp_path / "test_data_set_2", RAMP * 1000, model)
    assert "nothing found" in call("check", str(tmp_path)).out


def test_a_run_reports_it_of_inputs_that_were_given(tmp_path: Path) -> None:
    onnx.save(quantized("Relu", 10), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", RAMP)
    m, x = str(tmp_path / "m.onnx"), str(tmp_path / "x.npy")
    for _ in range(2):  # the second process finds what the first one kept
        assert "QR413 warning  node 1 quantize: all 64 values of q have code 0" in call(m, "-i", x).out
    assert "QR413" not in call(m).out, "random inputs prove nothing"


def test_an_evaluation_reports_it_over_all_samples(tmp_path: Path) -> None:
    """Also where the first samples say nothing: Relu makes them 0."""
    onnx.save(quantized("Relu", 10), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.linspace(-4, 4, 640, dtype=F32).reshape(10, 64))
    shown = call("eval", str(tmp_path / "m.onnx"), "-i", str(tmp_path / "x.npy"), "--against", "ort", "--health").out
    assert "QR413 warning  node 1 quantize: all 640 values of q have code 0" in shown
    np.save(tmp_path / "x.npy", np.zeros((10, 64), F32))
    shown = call("eval", str(tmp_path / "m.onnx"), "-i", str(tmp_path / "x.npy"), "--against", "ort", "--health").out
    assert "No rule is broken, but q use under a quarter of the codes." in shown
