"""QR319 uncalibrated-scale and QR320 quantized-twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.checking.rules import Finding

F32 = np.float32


def chain(*steps: str | tuple[str, float, Any], source: str = "x") -> onnx.ModelProto:
    """Float operators by name, and (tensor, scale, zero point) for QuantizeLinear and DequantizeLinear, in a row."""
    nodes, stored, last = [], {}, source
    for place, step in enumerate(steps):
        if isinstance(step, str):
            nodes.append(helper.make_node(step, [last], [f"t{place}"], f"{step}_{place}"))
            last = f"t{place}"
        else:
            name, scale, zero = step
            stored |= {f"{name}_s": F32(scale), f"{name}_z": zero}
            nodes.append(helper.make_node("QuantizeLinear", [last, f"{name}_s", f"{name}_z"], [name], f"q_{name}"))
            nodes.append(
                helper.make_node("DequantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_d"], f"d_{name}")
            )
            last = f"{name}_d"
    nodes[-1].output[0] = "y"
    return make_model(nodes, {"x": [4]}, {"y": [4]}, stored, opset=21)


def found(model: onnx.ModelProto, rule: str) -> list[Finding]:
    return [f for f in qrun.check(model) if f.rule == rule]


U8, I8 = np.uint8, np.int8
A = ("a", 0.02, U8(128))


def test_a_scale_of_one_in_a_calibrated_model() -> None:
    (f,) = found(chain(A, "Exp", ("b", 1, U8(0)), "Relu", ("c", 0.3, U8(0))), "QR319")
    assert (f.level, f.node, f.tensor) == ("warning", "q_b", "b (output)")
    assert f.message == "b has the scale 1 and the zero point 0, as if calibration saw only zeros"


def test_a_model_that_nobody_calibrated_is_one_finding() -> None:
    (f,) = found(chain(("a", 1, I8(0)), "Exp", ("b", 1, I8(0)), "Relu", ("c", 1, I8(0))), "QR319")
    assert f.message.endswith("as if calibration saw only zeros, and 1 more: c"), (
        "a is an input: it may be whole numbers"
    )


@pytest.mark.parametrize(
    "model",
    [
        chain(("a", 1, U8(0)), "Exp", ("b", 0.3, U8(0))),
        chain(A, "Round", ("b", 1, U8(0))),
        chain(("a", 0.25, I8(0)), "Exp", ("b", 1, I8(0)), "Relu", ("c", 0.5, I8(0))),
        chain(A, "Exp", ("b", 1, U8(3))),
        chain("Exp", ("b", 1, U8(0))),
        chain(A, "Shape", "ConstantOfShape", ("b", 1, U8(0))),
    ],
    ids=["pixels", "whole numbers", "powers of two", "another zero point", "alone", "one constant"],
)
def test_a_scale_of_one_that_may_be_meant(model: onnx.ModelProto) -> None:
    assert not found(model, "QR319")


def test_quantized_at_once_again() -> None:
    (f,) = found(of_codes(chain(A, ("b", 0.03, U8(128)))), "QR320")
    assert (f.level, f.node) == ("warning", "q_b")
    assert f.got == "scale 0.02, zero point 128 in q_a; scale 0.03, zero point 128 here"
    assert found(of_codes(chain(A, ("b", 0.02, U8(0)))), "QR320")


def test_pairs_that_onnxruntime_merges_are_one_finding() -> None:
    model = chain(A, ("b", 0.03, U8(128)))
    assert (len(found(model, "QR611")), found(model, "QR320")) == (1, [])


def of_codes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its last DequantizeLinear: what that reads is the output."""
    codes = model.graph.node.pop().input[0]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(codes, onnx.TensorProto.UINT8, [4]))
    return model


@pytest.mark.parametrize(
    "model",
    [chain(A, ("b", 0.02, U8(128))), chain(A, ("b", 0.0002, np.uint16(0))), chain(A, "Relu", ("b", 0.03, U8(128)))],
    ids=["the same scale", "another type", "something between"],
)
def test_pairs_that_round_once_or_are_meant(model: onnx.ModelProto) -> None:
    assert not found(model, "QR320")


def test_what_others_read_too_is_not_judged() -> None:
    model = chain(A, ("b", 0.03, U8(128)))
    model.graph.node.append(helper.make_node("Relu", ["a_d"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [4]))
    assert not found(model, "QR320")
