"""What a finding, or the error of a run, says to do about a node mends the node; one cause is one finding."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.version_converter
import pytest
from helpers.support import node_model, run_qrun
from onnx import TensorProto, helper, numpy_helper

import qrun

F, I8, U8, F32, I32 = np.float32, np.int8, np.uint8, np.float32, np.int32


def dequantize(shape: tuple[int, ...], scale: Any, zero: Any = None, **attributes: Any) -> onnx.ModelProto:
    """DequantizeLinear of int8 codes, the scale and the zero point stored."""
    parameters = {"s": np.asarray(scale, F), **({} if zero is None else {"z": np.asarray(zero)})}
    node = helper.make_node("DequantizeLinear", ["x", *parameters], ["y"], "dq", **attributes)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.INT8, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in parameters.items()]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def found(model: onnx.ModelProto, rule: str) -> str:
    """The fix of the one finding, which is that of the run's error too."""
    (finding,) = [f for f in qrun.check(model) if f.level != "note"]
    assert finding.rule == rule, finding
    value = model.graph.input[0].type.tensor_type
    shape = [d.dim_value for d in value.shape.dim]
    with pytest.raises(qrun.QrunError) as caught:
        run_qrun(model, {"x": np.ones(shape, helper.tensor_dtype_to_np_dtype(value.elem_type))})
    assert caught.value.code == rule
    assert finding.fix in caught.value.fixes
    return finding.fix


def sound(model: onnx.ModelProto) -> None:
    assert [f for f in qrun.check(model) if f.level != "note"] == []


@pytest.mark.parametrize(
    ("shape", "axes", "given"), [((5, 3), [0], {}), ((5, 3, 5), [0, 2], {}), ((3, 2, 5), [2], {"axis": 0})]
)
def test_the_axis_that_scales_fit(shape: tuple[int, ...], axes: list[int], given: dict[str, int]) -> None:
    """Per-channel weights whose exporter left out axis, or set another one."""
    model = dequantize(shape, np.full(5, 0.5), **given)
    fix = found(model, "QR301")
    assert [int(axis) for axis in re.findall(r"axis=(\d)", fix)] == axes
    assert ("axis is 1 unless" in fix) == (not given)
    for axis in axes:
        sound(dequantize(shape, np.full(5, 0.5), axis=axis))


def test_scales_that_fit_no_axis() -> None:
    assert found(dequantize((5, 3), np.full(4, 0.5)), "QR301").startswith("export one scale per channel")


@pytest.mark.parametrize("zero", [I8(3), np.full(1, 3, I8), np.full(2, 3, I8)])
def test_the_zero_point_that_fits_its_scales(zero: np.ndarray) -> None:
    fix = found(dequantize((4, 2), np.full(4, 0.5), zero, axis=0), "QR302")
    stored = eval(fix.removeprefix("store it as "), {"np": np, "ml_dtypes": ml_dtypes})
    assert (stored == 3).all()
    sound(dequantize((4, 2), np.full(4, 0.5), stored, axis=0))


def test_one_scale_and_several_zero_points() -> None:
    fix = found(dequantize((4, 2), 0.5, np.int8([1, 2, 3, 4]), axis=0), "QR302")
    assert fix == "store one scale for each of the 4 zero points"
    sound(dequantize((4, 2), np.full(4, 0.5), np.int8([1, 2, 3, 4]), axis=0))


def test_quantizing_what_is_quantized() -> None:
    """One finding: no opset allows uint8 there, and so it is none of onnxruntime's refusals."""
    model = dequantize((4,), 0.05, U8(0))
    model.graph.node[0].op_type = "QuantizeLinear"
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.UINT8
    fix = found(model, "QR203")
    assert fix == "dequantize x before this node, or leave the node out where it is quantized already"


def test_the_opset_that_allows_a_type() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["q"]),
        helper.make_node("Clip", ["q", "lo", "hi"], ["y"], "clip"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.INT8, [4]) for name in ("x", "y")]
    stored = [numpy_helper.from_array(np.int8(value), name) for name, value in (("lo", -8), ("hi", 7))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    fix = found(model, "QR203")
    converted = eval(fix.partition(": ")[2], {"onnx": onnx, "model": model})
    sound(converted)
    assert run_qrun(converted, {"x": np.int8([-9, 1, 8, 7])})[0].tolist() == [-8, 1, 7, 7]


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "fix"),
    [
        ("Squeeze", 13, {"axes": [0]}, "axes is an input of Squeeze-13: store it as a tensor, and name it as input 1"),
        ("AveragePool", 13, {"kernel_shape": [1], "dilations": [1]}, "convert the model to opset 19: onnx.version_converter.convert_version(model, 19)"),
        ("Softmax", 13, {"beta": 1}, "no version of the operator has beta: export without it, if the model means the same then"),
        ("Split", 13, {"split": [1]}, "split is an input of Split-13: store it as a tensor, and name it as input 1"),
        ("Elu", 13, {"consumed_inputs": [0]}, "import opset 5 or earlier, which has consumed_inputs"),
    ],
)  # fmt: skip
def test_an_attribute_that_the_version_does_not_have(
    op_type: str, opset: int, attributes: dict[str, Any], fix: str
) -> None:
    """To remove it would change what the model computes."""
    node = helper.make_node(op_type, ["x"], ["y"], "n", **attributes)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 3]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    assert fix in {f.fix for f in qrun.check(model) if f.rule == "QR204"}


def stored_but_the_first(
    op_type: str, *values: Any, opset: int = 13, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    """All inputs stored but the first."""
    constants = range(1, len(values))
    return node_model(op_type, list(values), attributes, opset=opset, domain=domain, constants=constants)[0]


THREE, HALF, ZERO = np.full(3, 0.5, np.float32), np.float32(0.5), np.uint8(0)
ONE_CODES = np.zeros((4, 2), np.uint8)
WRONG_SCALES = {
    "per tensor": stored_but_the_first("QLinearMatMul", ONE_CODES, HALF, ZERO, ONE_CODES.T, HALF, ZERO, THREE, ZERO),
    "row": stored_but_the_first("QLinearMatMul", ONE_CODES, THREE, ZERO, ONE_CODES.T, HALF, ZERO, HALF, ZERO),
    "column": stored_but_the_first("QLinearMatMul", ONE_CODES, HALF, ZERO, ONE_CODES.T, THREE, ZERO, HALF, ZERO),
    "axis": stored_but_the_first("DequantizeLinear", ONE_CODES, THREE),
    "opset 10": stored_but_the_first("DequantizeLinear", ONE_CODES, THREE, opset=10),
    "blocks": stored_but_the_first("DequantizeLinear", ONE_CODES, np.ones((3, 2), np.float32), opset=21, axis=0, block_size=2),
    "channel": stored_but_the_first("QLinearConv", np.zeros((1, 1, 2, 2), np.uint8), HALF, ZERO, np.zeros((2, 1, 1, 1), np.uint8), THREE,
                   ZERO, HALF, ZERO),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_SCALES)
def test_a_run_and_the_rule_give_one_fix(name: str) -> None:
    model = WRONG_SCALES[name]
    told = next(f for f in qrun.check(model) if f.rule == "QR301")
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    with pytest.raises(qrun.QrunError) as failed:
        qrun.Session(model, backend="reference").run({model.graph.input[0].name: np.zeros(shape, np.uint8)})
    assert (failed.value.code, failed.value.fixes) == ("QR301", (told.fix,))


VALUES: dict[str, Any] = {
    "x": np.zeros((1, 3, 4, 4), U8), "x_scale": F32(0.02), "x_zero_point": U8(128),
    "w": np.ones((16, 3, 3, 3), I8), "w_scale": np.full(16, 0.01, F32), "w_zero_point": np.zeros(16, I8),
    "y_scale": F32(0.05), "y_zero_point": U8(128), "B": np.zeros(16, I32),
}  # fmt: skip
NAMES = list(VALUES)
KINDS = "qsqqsqsqb"
"""Codes and zero points of 8 bits, scales, the bias: the types alone tell that two of different kinds were
exchanged."""
ELSEWHERE = [(2, 8), (5, 8)]
"""A zero point and the bias: QR303 and QR305 judge their types."""


def exchanged(**changes: Any) -> onnx.ModelProto:
    values = list((VALUES | changes).values())
    return node_model("QLinearConv", values, opset=13, outputs=[U8], constants=range(1, 9))[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [(a, b) for a, b in combinations(range(9), 2) if KINDS[a] != KINDS[b] and (a, b) not in ELSEWHERE],
)
def test_exchanged_inputs_are_one_finding(first: int, second: int) -> None:
    model = exchanged()
    inputs = model.graph.node[0].input
    inputs[first], inputs[second] = inputs[second], inputs[first]
    (f,) = qrun.check(model)
    assert f.rule == "QR203"
    assert f.fix == f"swap inputs {first} and {second}: {NAMES[first]} and {NAMES[second]} fit each other's place"


def test_what_does_not_follow_is_told() -> None:
    """w is float; the scale of y is 0, and the bias has 3 elements in a model whose w is right."""
    found = qrun.check(exchanged(w=np.ones((16, 3, 3, 3), F32), y_scale=F32(0)))
    assert {f.rule for f in found} == {"QR203", "QR306"}
    assert [f.rule for f in qrun.check(exchanged(B=np.zeros(3, I32)))] == ["QR305"]


def test_one_input_of_a_wrong_type_is_not_exchanged() -> None:
    (f,) = qrun.check(exchanged(w=np.ones((16, 3, 3, 3), F32)))
    assert f.message == "w is float32, which QLinearConv-10 does not take"
    assert "exchange" not in f.fix
