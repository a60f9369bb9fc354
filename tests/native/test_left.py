"""Nodes that native lowerings leave to the reference kernel, with the reason, and nodes that both backends refuse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.native import ISAS, OBJECTS, Array
from helpers.placed import same_refusal
from helpers.support import MS, node_model

import qrun
from qrun.ir.types import NUMBERS

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
F, H, D, U8, S8, I64 = np.float32, np.float16, np.float64, np.uint8, np.int8, np.int64
TEXT = np.dtype(object)
Model = tuple[onnx.ModelProto, dict[str, Array]]
X, ROWS, CODES = np.ones(3, F), np.ones((2, 3), F), np.zeros((2, 3), U8)
WORDS = np.ones((2, 3), F).astype(str).astype(object)
ONE, ZERO = np.array(F(1)), np.array(0, U8)


def ints(*numbers: int) -> Array:
    return np.array(numbers, I64)


def node(op_type: str, *inputs: Any, of: Any = (), out: Any = None, opset: int = 21, **attributes: Any) -> Model:
    """A node whose inputs `of` are constant; it has outputs of the types `out`, or one of its first input's."""
    return node_model(
        op_type, inputs, attributes, opset=opset, outputs=[inputs[0].dtype] if out is None else out, constants=of
    )


def cast(x: Array, to: Any) -> Model:
    return node("Cast", x, out=[to], to=NUMBERS[np.dtype(to)])


def moving() -> list[tuple[str, Model]]:
    index, wide = np.zeros((2, 3), I64), np.zeros((1, 2, 66, 2, 3, 2, 3, 2), U8)
    return [
        ("shape is not constant", node("Reshape", CODES, ints(6))),
        ("axes of more than 65536 elements", node("Pad", CODES, ints(0, 1 << 17, 0, 1), of=[1], mode="edge")),
        ("a copy along too many axes", node("Transpose", wide, perm=[2, 0, 4, 1, 6, 3, 5, 7])),
        ("no native copies of string", node("Identity", WORDS, out=[TEXT])),
        ("no native copies of complex128", node("Transpose", np.zeros(3, np.complex128))),
        ("shape is not constant", node("Expand", CODES, ints(4, 2, 3))),
        ("repeats is not constant", node("Tile", CODES, ints(4, 2))),
        ("split is not constant", node("Split", CODES, ints(1, 1), out=[U8] * 2, axis=0)),
        ("no native copies of string", node("Split", WORDS, out=[TEXT] * 2, opset=13, axis=0)),
        ("more than 1024 parts", node("Split", np.zeros(1025, U8), out=[U8] * 1025, opset=13, axis=0)),
        ("k is not constant", node("Trilu", ROWS, np.array(1))),
        ("no native copies of string", node("Trilu", WORDS, out=[TEXT])),
        ("no elements", node("Gather", CODES, ints(), of=[1])),
        ("no elements", node("Gather", ROWS, ints())),
        ("no elements", node("Gather", ROWS[:, :0], ints(0, 0))),
        ("no native copies of object by int64", node("Gather", WORDS, ints(0, 0), out=[TEXT])),
        ("no native copies of complex128 by int64", node("Gather", ROWS.astype(np.complex128), ints(0, 0))),
        ("its indices are not as many as data along the other axes", node("GatherElements", ROWS, index[:1, :2])),
        ("no elements", node("ScatterElements", ROWS, index[:, :0], ROWS[:, :0], axis=1)),
        ("its updates do not fit", node("ScatterND", ROWS, index[:, :0], np.ones((2, 2, 3), F))),
        ("its indices are not as many as data along the other axes",
         node("ScatterElements", ROWS, index[:1, :2], ROWS[:1, :2])),
        ("no native max of float32 by int64", node("ScatterElements", ROWS, index, ROWS, reduction="max")),
        ("no native kernel for float64", node("TopK", np.ones(3), ints(2), of=[1], out=[D, I64])),
        ("no native kernel for int64", node("TopK", np.ones(3, I64), ints(2), of=[1], out=[I64, I64])),
        ("K is not constant", node("TopK", X, ints(2), out=[F, I64])),
        ("no native kernel for float64", node("ArgMax", np.ones(3), out=[I64])),
        ("no native kernel for int16", node("ArgMax", np.ones(3, np.int16), out=[I64])),
        ("indices that are float32", node("OneHot", X, np.array(3), ROWS[0, :2], of=[1, 2])),
        ("depth is not constant", node("OneHot", ints(1, 2), np.array(3), ROWS[0, :2], of=[2], out=[F])),
        ("values is not constant", node("OneHot", ints(1, 2), np.array(3), ROWS[0, :2], of=[1], out=[F])),
        ("no native copies of string",
         node("OneHot", ints(1, 2), np.array(3), np.array(["a", "b"], object), of=[1, 2], out=[TEXT])),
    ]  # fmt: skip


def resizing() -> list[tuple[str, Model]]:
    x, large, wide = np.zeros((1, 1, 4, 4), F), ints(1, 1, 8, 8), ints(1, 1, 4, 65533)

    def to(sizes: Array, x: Array = x, **options: Any) -> Model:
        return node("Resize", x, np.zeros(8, F), None, sizes, of=[1, 3], opset=19, **options)

    return [
        ("tf_crop_and_resize", to(large, coordinate_transformation_mode="tf_crop_and_resize")),
        ("antialias", to(large, mode="linear", antialias=1)),
        ("axes of more than 65536 elements", to(wide, mode="linear")),
        ("no native sums of int32", to(large, x.astype(np.int32), mode="linear")),
        ("no native copies of string", to(large, x.astype(object).astype(str).astype(object))),
        ("sizes is not constant", node("Resize", x, None, None, large, opset=19)),
        ("pads is not constant", node("Pad", x, ints(0, 0, 0, 9, 0, 0, 0, 9), mode="edge")),
    ]


def computing() -> list[tuple[str, Model]]:
    cube, line = np.ones((1, 2, 3), F), np.ones(2, F)
    stats = [np.ones((2, 4, 3), F), *[np.ones(4, F)] * 4]
    float8 = ml_dtypes.float8_e4m3fn
    return [
        ("no native kernel for float64", node("Exp", np.ones(3))),
        ("no native choice of complex128",
         node("Where", np.ones(3, bool), *[np.ones(3, np.complex128)] * 2, out=[np.complex128])),
        ("Y is not constant", node("Pow", X, np.array(3, F))),
        *(("an exponent that is 0, or no finite float32 number", node("Pow", X, np.array(y), of=[1]))
          for y in (0.0, np.inf, np.nan, 1e39, 0.1)),
        ("Y is not one exponent for all of X", node("Pow", X, np.full(3, 4, F), of=[1])),
        ("no native kernel for float64", node("IsInf", np.ones(3), out=[bool])),
        ("no native kernel for float32", node("Mod", X, X, fmod=1)),
        ("no native kernel for float64", node("Sum", np.ones(3), np.ones(3))),
        ("more than 8 inputs", node("Min", *[np.ones(3, H)] * 9)),
        ("more than 8 inputs", node("Sum", *[X] * 9)),
        ("no native conversion of float32 to float8e4m3fn", cast(X, float8)),
        ("no native conversion of float8e4m3fn to int32", cast(np.ones(3, float8), np.int32)),
        ("no native conversion of string to int64", cast(np.array(["1", "2"], object), I64)),
        ("float64 to float16", cast(np.ones(3), H)),
        ("over no axes", node("ReduceSum", ROWS, noop_with_empty_axes=1)),
        ("over no axes", node("ReduceMean", ROWS, noop_with_empty_axes=1)),
        ("no elements", node("ReduceMax", np.ones((2, 0), F))),
        ("no elements", node("ReduceMax", np.ones((2, 0), np.int32))),
        ("no native kernel for float64", node("ReduceMin", np.ones((2, 3)))),
        ("no native kernel for float64", node("ReduceSum", np.ones((2, 3)))),
        ("no native mean of int64", node("ReduceMean", np.ones((2, 3), I64))),
        ("no native norm of int32", node("ReduceL2", np.ones((2, 3), np.int32))),
        ("no native products of that many float32", node("ReduceProd", ROWS)),
        ("no spatial axes", node("GlobalMaxPool", ROWS)),
        ("axis is not constant", node("CumSum", ROWS, np.array(0))),
        ("no native kernel for float64", node("Softmax", np.ones((2, 3)))),
        ("no elements", node("Softmax", np.ones((2, 0), F))),
        ("its scale differs from row to row", node("LayerNormalization", ROWS, np.ones((2, 1), F), of=[1])),
        ("its mean or deviation is asked for", node("LayerNormalization", ROWS, X, of=[1], out=[F, F])),
        ("Scale is not constant", node("LayerNormalization", ROWS, X)),
        ("scale is not constant", node("BatchNormalization", *stats)),
        ("statistics of the batch are asked for", node("BatchNormalization", *stats, of=[1, 2, 3, 4], training_mode=1)),
        ("no native kernel for float64", node("InstanceNormalization", *map(D, (cube, line, line)), of=[1, 2])),
        ("B is not constant", node("InstanceNormalization", cube, line, line, of=[1])),
        ("no elements", node("InstanceNormalization", cube[:, :, :0], line, line, of=[1, 2])),
        ("not float32 to the power of 0.75", node("LRN", np.ones((1, 3, 2), F), size=3, beta=0.5)),
        ("not float32 to the power of 0.75", node("LRN", np.ones((1, 3, 2)), size=3)),
        ("sums of more than 16 squares", node("LRN", np.ones((1, 40, 2), F), size=17)),
    ]  # fmt: skip


def pooling() -> list[tuple[str, Model]]:
    x, two = np.zeros((1, 4, 5, 5), U8), [2, 2]
    return [
        ("no native pools of float64", node("MaxPool", D(x), kernel_shape=two)),
        ("no native means of float64", node("AveragePool", D(x), kernel_shape=two)),
        ("Indices are asked for", node("MaxPool", x, out=[U8, I64], kernel_shape=two)),
        ("y_scale is not constant",
         node(f"{MS}::QLinearGlobalAveragePool", x, ONE, ZERO, ONE, ZERO, of=[1, 2, 4])),
    ]  # fmt: skip


def simplified() -> list[tuple[str, Model]]:
    x, scale, name = np.ones((2, 8), F), np.ones(8, F), "SimplifiedLayerNormalization"
    return [
        ("scale is not constant", node(name, x, scale)),
        ("epsilon is negative", node(name, x, scale, of=[1], epsilon=-0.5)),
        ("its scale differs from row to row", node(name, x, x, of=[1])),
        ("no elements", node(name, x[:0], scale, of=[1])),
        ("a scale that is not float32", node(name, x, scale.astype(H), of=[1], out=[H])),
        ("its inverse root is asked for, in another type", node(name, x, scale, of=[1], out=[F, H], stash_type=10)),
    ]


def quantizing() -> list[tuple[str, Model]]:
    x, c, u4, s4, u16 = np.zeros((4, 6), F), np.zeros((4, 6), U8), ml_dtypes.uint4, ml_dtypes.int4, np.uint16
    half = np.array(H(1))

    def q(x: Array, scale: Any, zero: Any, of: Any = (1, 2), **attributes: Any) -> Model:
        return node("QuantizeLinear", x, scale, zero, of=of, out=[zero.dtype], opset=23, **attributes)

    def dq(x: Array, scale: Any, zero: Any, of: Any = (1, 2)) -> Model:
        return node("DequantizeLinear", x, scale, zero, of=of, out=[scale.dtype], opset=23)

    return [
        ("no native division in float16", q(x.astype(H), half, ZERO)),
        ("no native division in float64", q(x, ONE, ZERO, precision=11)),
        ("16-bit codes with a scale per axis", q(x, np.ones(6, F), np.zeros(6, u16))),
        ("no native division of float32 by float32 to uint4", q(x, ONE, np.zeros((), u4))),
        ("no native division in float16", q(x.astype(H), half, u16(0))),
        ("no native division in float64", q(x.astype(np.int32), ONE, ZERO)),
        ("y_scale is not constant", q(x, ONE, ZERO, [2])),
        ("the scales are blocked", q(x, np.ones((2, 6), F), np.zeros((2, 6), U8), axis=0, block_size=2)),
        ("scales along axis 0", q(x, np.ones(4, F), np.zeros(4, U8), axis=0)),
        ("no native product of uint8 by float16 to float16", dq(c, half, ZERO)),
        ("no native product of int4 by float32 to float32", dq(c.astype(s4), ONE, np.zeros((), s4))),
        ("int32 codes with a zero point", dq(c.astype(np.int32), ONE, np.int32(3))),
        ("x_zero_point is not constant", dq(c, ONE, ZERO, [1])),
        ("min is not constant", node("Clip", np.zeros(3, S8), np.array(5, S8))),
    ]


def multiplying() -> list[tuple[str, Model]]:
    a, b, s = np.ones((2, 3), U8), np.arange(12, dtype=S8).reshape(3, 4), np.array(0, S8)
    half, float8, stack = np.array(H(1)), ml_dtypes.float8_e4m3fn, np.ones((2, 3, 3), U8)
    images, taps, row = np.ones((1, 2, 3, 3, 3), U8), np.ones((1, 2, 1, 1, 1), S8), np.zeros(4, np.int32)

    def qmatmul(a_scale: Any = ONE, a_zero: Any = ZERO, b_zero: Any = s, scale: Any = ONE, of: Any = ()) -> Model:
        return node("QLinearMatMul", a, a_scale, a_zero, b, scale, b_zero, scale, ZERO, of=of or range(1, 8))

    def gemm(bias: Any, *end: Any, of: Any = range(1, 9), scale: Any = ONE, **attributes: Any) -> Model:
        ends, out = end or (ONE, ZERO), [U8] if end != (None,) else [F]
        ends = () if end == (None,) else ends
        return node(f"{MS}::QGemm", a, scale, ZERO, b, ONE, s, bias, *ends, of=of, out=out, **attributes)

    def to_float(a: Array, b: Array, a_scale: Any = ONE, b_scale: Any = ONE, *zeros: Any) -> Model:
        return node(f"{MS}::MatMulIntegerToFloat", a, b, a_scale, b_scale, *zeros, out=[a_scale.dtype])

    return [
        ("a_scale is not constant", qmatmul(of=[3, 4, 6, 7])),
        ("b_scale is not constant", qmatmul(of=[1, 3, 6, 7])),
        ("y_scale is not constant", qmatmul(of=[1, 4, 7])),
        ("y_zero_point is not constant", qmatmul(of=[1, 4, 6])),
        ("a_zero_point has several values", qmatmul(a_zero=a[:, 0], of=[1, 3, 4, 6, 7])),
        ("b_zero_point has several values", qmatmul(b_zero=b[0], of=[1, 4, 5, 6, 7])),
        ("the scale of the first operand is per row", qmatmul(np.ones(2, F))),
        ("no native float16 scales", qmatmul(half, scale=half)),
        ("no native float8e4m3fn results",
         node("QLinearMatMul", *(v.astype(float8) if v.dtype != F else v for v in (a, ONE, ZERO, b, ONE, s, ONE, ZERO)),
              of=range(1, 8))),
        ("C is not constant", gemm(row, of=[1, 4, 7, 8])),
        ("C is not one row", gemm(np.zeros((2, 4), np.int32), of=[1, 4, 6, 7, 8])),
        ("C is not one row", gemm(np.ones((2, 4), np.int32))),
        ("alpha * a_scale is not a float32 number", gemm(None, of=[1, 4, 7, 8], scale=ONE * F(0.7), alpha=0.3)),
        ("alpha * a_scale is not a float32 number", gemm(None, scale=ONE * F(0.7), alpha=0.3)),
        ("C is not constant", gemm(row, None, of=[1])),
        ("b_zero_point has several values", to_float(a, b, ONE, ONE, ZERO, b[0])),
        ("b_scale differs from matrix to matrix", to_float(stack, stack, ONE, stack[:, :1] * F(1))),
        ("an empty product", to_float(a, b[:, :0])),
        ("no native float16 results", to_float(a, b, half, half)),
        ("3 spatial axes (native kernels take 1 or 2)", node("ConvInteger", images, taps, of=[1], out=[np.int32])),
        ("more than 256 groups",
         node("ConvInteger", np.ones((1, 300, 2), U8), np.ones((600, 1, 1), S8), of=[1], out=[np.int32], group=300)),
        ("no native kernel", node("Unique", np.ones(2, F))),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "cases",
    [moving, resizing, computing, pooling, simplified, quantizing, multiplying],
    ids=lambda cases: cases.__name__,
)
def test_what_is_left_to_the_reference_and_why(cases: Any) -> None:
    for why, (model, feeds) in cases():
        (event,) = qrun.Session(model, backend="native", cache=OBJECTS).execute(feeds).events
        assert (event.backend, event.why) == ("reference", why), model.graph.node[0].op_type


def refused_moves() -> list[Model]:
    index, options = np.zeros((2, 3), I64), {"of": [1], "out": [F, I64]}
    return [
        node("Reshape", CODES, ints(7), of=[1]),
        node("Transpose", CODES, perm=[0, 0]),
        node("Flatten", CODES, axis=5),
        node("Slice", CODES, ints(0), ints(1), ints(0), ints(0), of=range(1, 5)),
        node("Pad", CODES, ints(0, -4, 0, 0), of=[1]),
        node("Squeeze", CODES, ints(0), of=[1]),
        node("Split", CODES, out=[U8] * 2, opset=13, axis=5),
        node("Split", CODES, out=[U8] * 2, opset=13, axis=1),
        node("Expand", CODES, ints(3, 3), of=[1]),
        node("Tile", CODES, ints(-1, 2), of=[1]),
        node("DepthToSpace", CODES[None, None], blocksize=2),
        node("Trilu", X),
        node("Trilu", ROWS, ints(1, 2), of=[1]),
        node("ScatterElements", ROWS, index, ROWS[:1]),
        node("ScatterElements", ROWS, index, ROWS, reduction="xor"),
        node("ScatterElements", ROWS, index + 5, ROWS[:1]),
        node("ScatterElements", ROWS, index[0], ROWS),
        node("ScatterND", ROWS, index, ROWS),
        *(node("TopK", ROWS.T, ints(k), axis=axis, **options) for k, axis in ((4, 0), (1, 3), (-1, 0))),
        node("ArgMin", ROWS, out=[I64], axis=2),
        node("ArgMin", ROWS[:, :0], out=[I64], axis=1),
        node("OneHot", ints(1, 2), np.array(-1), X[:2], of=[1, 2], out=[F]),
        node("OneHot", ints(1, 2), np.array(3), X[:1], of=[1, 2], out=[F]),
    ]


def refused_sums() -> list[Model]:
    x, one, image = np.ones((1, 2, 3)), np.ones(2), np.zeros((1, 4, 5, 5), U8)
    f, u = np.zeros((4, 6), F), np.zeros((4, 6), U8)
    axes = np.array(2), ints(0, 1)

    def pool(op_type: str, x: Array, **attributes: Any) -> Model:
        if not op_type.startswith("QLinear"):
            return node(op_type if op_type == "MaxPool" else f"{MS}::{op_type}", x, **attributes)
        return node(f"{MS}::{op_type}", x, ONE, ZERO, ONE, ZERO, of=range(1, 5), **attributes)

    return [
        *(node("CumSum", ROWS, axis, of=of) for axis in axes for of in ([1], [])),
        node("GroupNormalization", x, one, one, of=[1, 2], num_groups=3),
        node("InstanceNormalization", x, one[:1], one, of=[1, 2]),
        node("Mod", ints(1, 1, 1), ints(1, 1, 1), fmod=2),
        pool("MaxPool", image, kernel_shape=[9, 9]),
        pool("MaxPool", image, kernel_shape=[2]),
        pool("NhwcMaxPool", image, kernel_shape=[6, 6]),
        pool("QLinearAveragePool", image, kernel_shape=[2, 2], pads=[1, 1, 1, -1]),
        pool("QLinearGlobalAveragePool", image[0, 0]),
        node("QuantizeLinear", f, np.ones(3, F), np.zeros(3, U8), of=[1, 2], out=[U8]),
        node("QuantizeLinear", f, ONE, np.zeros(2, U8), of=[1, 2], out=[U8]),
        node("QuantizeLinear", f, np.ones(6, F), np.zeros(6, U8), of=[1, 2], out=[U8], axis=7),
        node("DequantizeLinear", u, np.ones(3, F), np.zeros(3, U8), of=[1, 2], out=[F]),
        node("DequantizeLinear", u, ONE, S8(0), of=[1, 2], out=[F]),
    ]


@pytest.mark.parametrize("cases", [refused_moves, refused_sums], ids=lambda cases: cases.__name__)
def test_refusals_are_those_of_the_reference(cases: Any) -> None:
    for number, (model, feeds) in enumerate(cases()):
        try:
            same_refusal(model, feeds)
        except (AssertionError, pytest.fail.Exception) as error:
            raise AssertionError(f"{number}: {model.graph.node[0].op_type}") from error


def test_refusals_of_functions_name_the_parameter() -> None:
    for message, (model, feeds) in (
        ("min is not a scalar", node("Clip", ROWS, np.ones(2, F), of=[1])),
        ("approximate is cosh", node("Gelu", ROWS, approximate="cosh")),
        ("the inputs' shapes do not broadcast", node("Add", ROWS, np.ones(2, F), of=[1])),
        ("slope", node("PRelu", ROWS[:, :1], ROWS)),
        (
            "axis 2 does not exist",
            node(f"{MS}::QLinearConcat", ONE, ZERO, CODES, ONE, ZERO, of=[0, 1, 3, 4], out=[U8], axis=2),
        ),
    ):
        same_refusal(model, feeds)
        with pytest.raises(qrun.OperatorError, match=message):
            qrun.Session(model, backend="native", cache=OBJECTS).run(feeds)
