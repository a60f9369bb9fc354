"""What kernels refuse for stored tensors and stated shapes: `check` and `inspect` know it, and a run is the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.nodes import OWN
from helpers.support import node_model

import qrun
from qrun import QrunError
from qrun.ir.load import load
from qrun.ir.schema import MCT, QONNX, QUARK
from qrun.report.modelfacts import ModelFacts

F32, U8, I8 = np.float32, np.uint8, np.int8
HALF, THREE, CODES = F32(0.5), U8(3), np.ones((2, 6), U8)
MATRIX = [np.ones((6, 4), I8), np.full(4, 0.5, F32), np.zeros(4, I8)]
FILTERS = [np.ones((4, 3, 3, 3), I8), np.full(4, 0.5, F32), np.zeros(4, I8)]
IMAGE = np.ones((1, 3, 5, 5), U8)
CASES: dict[str, tuple[list[Any], dict[str, Any], type]] = {
    **{
        f"com.microsoft::{name}": OWN[name]
        for name in [
            "QAttention",
            "DynamicQuantizeLSTM",
            "MatMulNBits",
            "MatMulBnb4",
            "GatherBlockQuantized",
            "QMoE",
            "QGemm",
            "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul",
            "QLinearAdd",
            "QLinearConcat",
            "QLinearSigmoid",
            "QLinearAveragePool",
            "QLinearSoftmax",
        ]
    },
    "QLinearConv": ([IMAGE, HALF, THREE, *FILTERS, HALF, THREE, np.zeros(4, np.int32)], {}, U8),
    "ConvInteger": ([IMAGE, FILTERS[0], THREE, FILTERS[2]], {}, np.int32),
    "QLinearMatMul": ([CODES, HALF, THREE, *MATRIX, HALF, THREE], {}, U8),
    "QuantizeLinear": ([np.ones((2, 6), F32), np.ones(6, F32), np.zeros(6, U8)], {"axis": 1}, U8),
    "DequantizeLinear": ([CODES, np.ones((2, 3), F32), np.zeros((2, 3), U8)], {"axis": 1, "block_size": 2}, F32),
    f"{QUARK}::ExtendedQuantizeLinear": ([np.ones((2, 6), F32), np.ones(6, F32), np.zeros(6, U8)], {"axis": 1}, U8),
    f"{MCT}::WeightsPOTQuantizer": (
        [np.ones((2, 6), F32), np.ones(6, F32)],
        {"num_bits": 8, "per_channel": 1, "channel_axis": 1},
        F32,
    ),
    f"{QONNX}::IntQuant": ([np.ones((2, 6), F32), np.ones(6, F32), F32(0), F32(4)], {}, F32),
}


def other_shapes(array: Any) -> Iterator[np.ndarray]:
    array = np.asarray(array)
    if not array.ndim:
        yield from (np.repeat(array, 3), array.reshape(1)[:0], array.reshape(1, 1))
        return
    for axis in range(array.ndim):
        yield np.concatenate([array, array.take([0], axis)], axis)
        yield array.take(range(array.shape[axis] - 1), axis)
    yield from (array[None], array.reshape(-1)[0])


def one(op: str, inputs: list[Any]) -> onnx.ModelProto:
    _, attributes, made = CASES[op]
    return node_model(op, inputs, attributes, outputs=[made], constants=range(1, len(inputs)))[0]


def ran(model: onnx.ModelProto, x: Any) -> str:
    """The code of the error of a run; "" if it succeeds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            qrun.Session(model, backend="reference").run({model.graph.input[0].name: np.asarray(x)})
    except QrunError as error:
        return error.code
    return ""


@pytest.mark.parametrize("op", CASES)
def test_what_a_run_refuses_of_stored_parameters_is_known_before(op: str) -> None:
    inputs = CASES[op][0]
    assert ran(one(op, inputs), inputs[0]) == ""
    wrong = 0
    for place, value in enumerate(inputs[1:], 1):
        for other in other_shapes(value) if value is not None else ():
            model = one(op, [*inputs[:place], other, *inputs[place + 1 :]])
            code = ran(model, inputs[0])
            found = [f.rule for f in qrun.check(model) if f.level == "error"]
            obstacle = ModelFacts(load(model)).obstacle
            assert bool(code) == bool(found) == bool(obstacle), (place, other.shape, code, found, obstacle)
            wrong += bool(code)
    assert wrong


def lstm(x: Any, r_scale: int) -> onnx.ModelProto:
    """A DynamicQuantizeLSTM of 3 hidden values, on X of this shape."""
    inputs: list[Any] = [np.zeros((2, 1, 4), F32), np.ones((1, 4, 12), I8), np.ones((1, 3, 12), I8), *[None] * 5]
    inputs += [np.ones((1, 12), F32), np.zeros((1, 12), I8), np.ones((1, r_scale), F32), np.zeros((1, 12), I8)]
    op = "com.microsoft::DynamicQuantizeLSTM"
    model = node_model(op, inputs, {"hidden_size": 3}, constants=range(1, len(inputs)))[0]
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, size in zip(dims, x, strict=True):
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(size, str) else "dim_value", size)
    return model


def test_the_shape_of_the_scales_of_an_lstm() -> None:
    (f,) = [f for f in qrun.check(lstm([2, 1, 4], 3)) if f.level == "error"]
    assert (f.rule, f.message, f.expected) == ("QR301", "R_scale has shape [1,3]", "[1] or [1,12]")
    assert ModelFacts(load(lstm([2, 1, 4], 3))).obstacle.startswith("R_scale has shape [1,3] (QR301, node 0")
    assert not [f for f in qrun.check(lstm([2, 1, 4], 12)) if f.level == "error"]


def test_free_sizes_prove_nothing_but_what_is_wrong_with_parameters() -> None:
    assert [f.rule for f in qrun.check(lstm(["T", "N", 4], 3)) if f.level == "error"] == ["QR301"]
    assert not [f for f in qrun.check(lstm(["T", "N", "width"], 12)) if f.level == "error"]


def test_inspect_knows_what_a_run_refuses_of_types() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 11]>
        main (float[4] x) => (float[4] y)
        <float s = {0.25}, int8 z = {0}, int8 lo = {-8}, int8 hi = {7}>
        {
            q = QuantizeLinear(x, s, z)
            c = Clip(q, lo, hi)
            y = DequantizeLinear(c, s, z)
        }
    """
    assert "int8, which Clip-11 does not take (QR203" in ModelFacts(load(onnx.parser.parse_model(text))).obstacle


def test_stored_zero_points_of_an_lstm_that_are_single_numbers_do_not_fail() -> None:
    """Rules look at its weights, whatever is wrong with the rest."""
    model = lstm([2, 1, 4], 12)
    stored = next(t for t in model.graph.initializer if t.name == "i9")
    stored.CopyFrom(onnx.numpy_helper.from_array(np.zeros((), I8), "i9"))
    assert "QR302" in [f.rule for f in qrun.check(model)]


def test_sizes_that_no_array_has_are_not_judged() -> None:
    assert not [f for f in qrun.check(lstm([2**40, 2**40, 4], 12)) if f.level == "error"]
