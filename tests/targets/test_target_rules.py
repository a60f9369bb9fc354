"""Every rule of every target has a model that breaks it and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from helpers.target_models import (
    BIAS,
    CHANNELS,
    MAPS,
    MATRIX,
    RESULT,
    WEIGHTS,
    Build,
    F,
    Q,
    binary,
    channels,
    conv,
    conv_integer,
    gemm,
    lone,
    matmul,
    node,
    on_codes,
    qlinear_conv,
    qlinear_matmul,
    unary,
)

from qrun.checking import targets
from qrun.ir.load import load

Made = Callable[[], onnx.ModelProto]
I8, FLOAT = Q(), F()
U8 = Q("uint8", zero=128)
ONE = Q(scale=[0.0625])
"""Scale and zero point of shape [1]."""
U8Y = Q("uint8", 0.125, 128)
I16, U16 = Q("int16"), Q("uint16")
W8U = replace(WEIGHTS, kind="uint8", zero=128)
W16 = replace(WEIGHTS, kind="int16")
FLAT = (1, 16)
DEEP = (1, 8, 4, 8, 8)
COLUMNS = Q(scale=CHANNELS, zero=0, axis=1, const=True, shape=(16, 8))
CHANNELED = replace(U8, scale=CHANNELS, axis=1)
ELEMENTS = Q("uint8", [0.1] * 15 + [0.2], 128, 1)
SQUARE = Q(scale=CHANNELS, zero=0, axis=0, const=True, shape=(8, 8))
"""A matrix with a scale for each row, as many as it has columns."""
ROWS = Q(scale=[2.0**-5] * 15 + [2.0**-6], zero=0, axis=0, const=True, shape=(16, 8))
FOUR = Q("int4", [[2.0**-5] * 8] * 2, 0, 0, const=True, shape=(32, 8), block=16)


def unknown() -> onnx.ModelProto:
    """A model whose second operator no operator set defines."""
    made = unary("Relu")
    made.graph.node.append(onnx.helper.make_node("Clamp", [made.graph.output[0].name], ["clamped"], domain="com.acme"))
    made.opset_import.add(domain="com.acme", version=1)
    made.graph.output[0].name = "clamped"
    return made


def reads(op: str, *more: F, x: Q | F = I8, y: Q | None = I8, **other: object) -> onnx.ModelProto:
    """An operator with further inputs."""
    return node(op, [x, *more], y, **other)  # type: ignore[arg-type]


def axes(*values: int) -> F:
    return F("int64", value=np.array(values))


def scales() -> F:
    return F(value=np.float32([1, 1, 1, 1]))


def resize(y: Q | None = I8, factor: float = 2, x: Q | F = I8, **attributes: object) -> onnx.ModelProto:
    made = (1, 8, int(8 * factor), int(8 * factor))
    scales = F(value=np.float32([1, 1, factor, factor]))
    return node("Resize", [x, "", scales], y, made=made, **attributes)  # type: ignore[arg-type]


def volume(x: Q | F, y: Q | None = RESULT, **attributes: object) -> onnx.ModelProto:
    w = replace(WEIGHTS, shape=(8, 8, 1, 1, 1)) if isinstance(x, Q) else F(const=True, shape=(8, 8, 1, 1, 1))
    more = {"kernel_shape": [1] * 3, "pads": [0] * 6, "strides": [1] * 3, "dilations": [1] * 3}
    return conv(x, w, None, y, shape=DEEP, **{**more, **attributes})


def pool(op: str = "MaxPool", x: Q | F = I8, y: Q | None = I8, **more: object) -> onnx.ModelProto:
    return unary(op, x, y, **{"kernel_shape": [1, 1], **more})  # type: ignore[arg-type]


def spread() -> onnx.ModelProto:
    """A Reshape of int8 codes between two operators, whose result no QuantizeLinear reads."""
    g = Build()
    name = g.add("Reshape", [g.pair(g.feed(MAPS), Q(), MAPS), g.store([1, 512], "int64")], (1, 512))
    g.result(g.add("Sin", [name]), (1, 512))
    return g.model()


def twice(op: str, kind: str, *more: Q, y: str = "") -> onnx.ModelProto:
    """An operator whose quantized input another one reads too; y: the type of its result, if it is another."""
    g = Build()
    shape, made = (FLAT, (1, 8)) if op == "Gemm" else (MAPS, MAPS)
    name = g.pair(g.feed(shape), Q(kind), shape)
    own = g.add(op, [name, *(g.read(each, made) for each in more)], made)
    g.result(own if y == "float" else g.pair(own, Q(y or kind, 0.125), made), made)
    g.result(g.add("Sin", [name]), shape)
    return g.model()


def silu(kind: str) -> onnx.ModelProto:
    """A convolution that reads what Sin reads too."""
    return twice("Conv", kind, replace(WEIGHTS, shape=(8, 8, 1, 1)))


def twice_gemm(kind: str, w: Q = MATRIX) -> onnx.ModelProto:
    return twice("Gemm", kind, w)


def two_types() -> onnx.ModelProto:
    """A Sigmoid from int8 to uint8."""
    return twice("Sigmoid", "int8", y="uint8")


def four(x: Q | F = FLOAT, axis: int = 0) -> onnx.ModelProto:
    """A product with weights of 4 bits in blocks."""
    scales = [[2.0**-5] * 8] * 2 if axis == 0 else [[2.0**-5]] * 32
    w = replace(FOUR, scale=scales, axis=axis, block=16 if axis == 0 else 8)
    return node("MatMul", [x, w], None, shape=(1, 32), made=(1, 8))


def half_scale() -> onnx.ModelProto:
    """A QuantizeLinear of float16 whose scale is float32."""
    g = Build(23)
    g.result(g.add("QuantizeLinear", [g.feed(MAPS, "float16"), g.store(0.5), g.store(0, "int8")]), MAPS, "int8")
    return g.model()


def half_product(real: str) -> onnx.ModelProto:
    """A QLinearMatMul with scales of 16 bits."""
    g = Build()
    names = [g.store(0.5, real), g.store(0, "int8")]
    read = [g.feed((4, 4), "int8"), *names, g.store(np.ones((4, 4)), "int8"), *names, *names]
    g.result(g.add("QLinearMatMul", read, (4, 4), "int8"), (4, 4), "int8")
    return g.model()


def fed_weights() -> onnx.ModelProto:
    """A convolution whose weights are codes that a caller gives."""
    g, shape = Build(), (8, 8, 3, 3)
    w = g.dequantize(g.feed(shape, "int16"), I16, g.parameters(I16), shape)
    made = g.add("Conv", [g.pair(g.feed(MAPS), I8, MAPS), w], MAPS, pads=[1] * 4)
    g.result(g.pair(made, RESULT, MAPS), MAPS)
    return g.model()


def added(x: Q) -> onnx.ModelProto:
    """A product, to which a float bias is added."""
    g = Build()
    product = g.add("MatMul", [g.read(x, FLAT), g.read(MATRIX, None)], (1, 8))
    g.result(g.pair(g.add("Add", [product, g.read(vector(), None)], (1, 8)), RESULT, (1, 8)), (1, 8))
    return g.model()


def half_split(q: Q = I8) -> onnx.ModelProto:
    """A Split whose second result is not quantized."""
    g = Build()
    name = g.pair(g.feed(MAPS), q, MAPS)
    g.nodes.append(onnx.helper.make_node("Split", [name], ["a", "b"], "Split", num_outputs=2, axis=1))
    g.result(g.pair("a", q, (1, 4, 8, 8)), (1, 4, 8, 8))
    g.result("b", (1, 4, 8, 8))
    return g.model()


def vector() -> F:
    return F(const=True, shape=(8,))


def normalization(op: str, shape: Sequence[int] = MAPS) -> onnx.ModelProto:
    return reads(op, *[vector()] * 4, shape=shape)


def summed(kind: str = "int8", y: Q | None = None, bias: Sequence[int] = (8,)) -> onnx.ModelProto:
    """A product of a tensor of three axes and a matrix, and the sum with a stored tensor. bias: its shape."""
    g, shape, made = Build(), (2, 4, 16), (2, 4, 8)
    product = g.add("MatMul", [g.pair(g.feed(shape), Q(kind), shape), g.read(MATRIX, MATRIX.shape)], made)
    name = g.add("Add", [product, g.store(np.ones(bias))], made)
    g.result(name if y is None else g.pair(name, y, made), made)
    return g.model()


def turned(zero: int = 0) -> onnx.ModelProto:
    """A product whose second input is a Transpose between two scales. zero: of the first input."""
    g, shape = Build(), (4, 8)
    name = g.pair(g.add("Transpose", [g.pair(g.feed(shape), I8, shape)], (8, 4), perm=[1, 0]), RESULT, (8, 4))
    g.result(g.add("MatMul", [g.pair(g.feed(shape), Q(zero=zero), shape), name], (4, 4)), (4, 4))
    return g.model()


def pixels(**more: object) -> onnx.ModelProto:
    """A convolution of 1x1."""
    w = replace(WEIGHTS, shape=(8, 8, 1, 1))
    return conv(
        w=w, b=None, kernel_shape=[1, 1], pads=[0] * 4, made=(1, 8, 8 // more.get("strides", [1])[0], 8), **more
    )  # type: ignore[index,operator]


def grouped(x: Q) -> onnx.ModelProto:
    """A convolution of three dimensions in two groups."""
    w = replace(WEIGHTS, shape=(8, 4, 1, 1, 1))
    return node("Conv", [x, w], RESULT, DEEP, group=2)


def padded(x: Q) -> onnx.ModelProto:
    return pool("AveragePool", x, None, kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)


def slope(*shape: int) -> onnx.ModelProto:
    return node("PRelu", [I8, F(const=True, shape=shape)], None, shape=(1, 8, 8))


def mean(shape: Sequence[int]) -> onnx.ModelProto:
    """A mean over height and width."""
    return reads("ReduceMean", axes(2, 3), shape=shape, made=(*shape[:2], 1, 1))


NOTHING = conv
"""A model without the operator that a target does not take."""

ONNXRUNTIME: Mapping[str, tuple[Made, Made]] = {
    "unknown-operator": (unknown, lambda: unary("Relu")),
    "joined-and-retyped": (summed, lambda: summed("uint8")),
    "float-bias-scalars": (
        lambda: conv(replace(U8, scale=[0.0625]), b=F(const=True, shape=(8,)), y=U8Y),
        lambda: conv(U8, b=F(const=True, shape=(8,)), y=U8Y),
    ),
    "few-bits-float": (lambda: matmul(F(), y=None), four),
    "few-bits-gemm": (lambda: gemm(F(), b=None, y=None), gemm),
    "old-float-bias": (lambda: conv(b=F(const=True, shape=(8,))), conv),
    "opset-22": (lambda: lone(opset=22), lone),
    "opset-23": (lambda: lone(opset=23), lambda: lone(opset=22)),
    "opset-28": (lambda: lone(opset=28), lambda: lone(opset=25)),
    "kernel-types": (lambda: lone(Q(real="bfloat16"), opset=23), lambda: lone(Q(real="float16"), opset=23)),
    "spread-and-retyped": (
        spread,
        lambda: reads("Reshape", axes(1, 512), made=(1, 512)),
    ),
    "no-integer-form": (lambda: unary("Tanh"), lambda: unary("Sigmoid")),
    "inputs-quantized": (lambda: binary("Add", b=F()), lambda: binary("Add")),
    "data-quantized": (lambda: conv(x=F()), conv),
    "first-input-quantized": (lambda: node("Resize", [F(), Q(const=True, shape=(8,)), scales()]), resize),
    "result-quantized": (lambda: conv(y=None), conv),
    "result-read-once": (lambda: conv(readers=1), conv),
    "activation-behind": (lambda: matmul(y=Q(scale=0.125, zero=3), behind="Relu"), lambda: matmul(y=None)),
    "old-max-pool": (lambda: pool(opset=11), pool),
    "sixteen-bit-activations": (lambda: matmul(I16, y=Q("int16", 0.125)), matmul),
    "eight-bit": (lambda: conv(I16, y=Q("int16", 0.125)), conv),
    "half-precision": (lambda: unary("Sigmoid", Q(real="float16"), Q(real="float16")), lambda: unary("Sigmoid")),
    "signed-activations": (lambda: silu("int8"), lambda: silu("uint8")),
    "signed-and-unsigned": (lambda: twice("Sigmoid", "int8"), lambda: twice("Sigmoid", "uint8")),
    "gemm-signed-and-unsigned": (lambda: twice_gemm("int8"), lambda: twice_gemm("uint8")),
    "signed-weights": (lambda: twice("Gemm", "int8", replace(MATRIX, kind="uint8"), y="float"), gemm),
    "one-type": (two_types, lambda: unary("Sigmoid")),
    "stored-operand": (lambda: binary("Add", b=Q(const=True)), lambda: binary("Add", U8, replace(U8, const=True), U8)),
    "one-type-all": (lambda: binary("Add", U8, Q(const=True), U8), lambda: binary("Add")),
    "same-parameters": (lambda: pool(y=Q(scale=0.125)), pool),
    "positive-scale": (lambda: pool(x=Q(scale=-0.5), y=Q(scale=-0.5)), pool),
    "stored-parameters": (lambda: pool(x=Q(zero=None), y=Q(zero=None)), pool),
    "resize-nearest": (lambda: resize(mode="linear"), resize),
    "bias-type": (lambda: conv(b=Q("int8", 2.0**-9, const=True, shape=(8,))), conv),
    "bias-scale": (lambda: conv(b=replace(BIAS, scale=2.0**-8)), conv),
    "gemm-factors": (lambda: gemm(alpha=2.0), gemm),
    "float-bias": (lambda: gemm(b=F(const=True, shape=(8,)), y=None), gemm),
    "conv-weight-axis": (lambda: conv(w=channels(axis=1), b=F(const=True, shape=(8,))), conv),
    "matmul-weight-axis": (lambda: matmul(w=ROWS), lambda: matmul(w=COLUMNS)),
    "gemm-weight-scales": (lambda: gemm(w=ROWS, b=None), lambda: gemm(w=COLUMNS, b=None)),
    "gemm-weight-axis": (lambda: gemm(w=SQUARE, b=vector(), shape=(1, 8)), lambda: gemm(w=COLUMNS, b=vector())),
    "half-precision-weights": (
        lambda: matmul(Q(real="float16"), replace(MATRIX, real="float16"), Q(real="float16")),
        lambda: matmul(Q(real="float16"), replace(MATRIX, real="float16", const=False), Q(real="float16")),
    ),
    "half-precision-concat": (
        lambda: binary("Concat", *[Q(real="float16")] * 3, axis=1),
        lambda: binary("Concat", axis=1),
    ),
    "old-extremes": (lambda: unary("ReduceMax", opset=11), lambda: unary("ReduceMax", opset=13)),
    "old-depth-to-space": (
        lambda: unary("DepthToSpace", blocksize=1, opset=10),
        lambda: unary("DepthToSpace", blocksize=1, opset=13),
    ),
    "few-bits": (four, lambda: four(axis=1)),
    "not-quantized": (lambda: conv(F(), F(const=True, shape=(8, 8, 3, 3)), None, None), conv),
    "conv-weight-axis-wrong": (lambda: conv(w=channels(axis=1), b=None), lambda: conv(w=channels(), b=None)),
    "matmul-weight-axis-wrong": (
        lambda: matmul(w=SQUARE, y=None, shape=(1, 8)),
        lambda: matmul(w=COLUMNS, y=None),
    ),
    "bias-scale-wrong": (lambda: conv(b=replace(BIAS, scale=2.0**-8)), conv),
    "weight-scales-crash": (lambda: matmul(w=ROWS, y=None), lambda: matmul(w=COLUMNS, y=None)),
    "weight-zero-points": (lambda: conv(w=channels(zero=list(range(8))), b=None), lambda: conv(w=channels(), b=None)),
    "max-pool-22": (lambda: pool(opset=22), pool),
    "depth-to-space": (lambda: unary("DepthToSpace", blocksize=1), pool),
    "conv-integer-signed": (lambda: conv_integer("int8"), lambda: conv_integer("uint8")),
    "qlinear-scalars": (lambda: on_codes("QLinearAdd", shape=[1]), lambda: on_codes("QLinearAdd")),
    "qlinear-zero-points": (lambda: on_codes("QLinearAdd", without="x"), lambda: on_codes("QLinearAdd")),
    "qlinear-curve-zero-point": (
        lambda: on_codes("QLinearSigmoid", without="y"),
        lambda: on_codes("QLinearSigmoid", without="x"),
    ),
    "qlinear-concat-zero-points": (
        lambda: on_codes("QLinearConcat", without="x"),
        lambda: on_codes("QLinearConcat"),
    ),
    "integer-kernel-scales": (lambda: half_product("bfloat16"), lambda: half_product("float16")),
    "qlinear-conv-types": (lambda: qlinear_conv(y="int8"), qlinear_conv),
    "integer-kernels": (lambda: qlinear_conv("uint16", "int8", "uint16"), qlinear_conv),
    "qlinear-signed-unsigned": (
        lambda: qlinear_conv("int8", "uint8", "int8"),
        lambda: qlinear_conv("int8", "int8", "int8"),
    ),
    "scale-type": (half_scale, lone),
    "gemm-bias-scale": (lambda: gemm(b=replace(BIAS, scale=2.0**-8)), gemm),
    "average-pool-scalars": (lambda: pool("AveragePool", x=ONE, y=ONE), lambda: pool("AveragePool")),
    "sums-scalars": (lambda: binary("Add", ONE, ONE, ONE), lambda: binary("Add")),
    "sums-scalars-refused": (lambda: binary("Add", ONE, ONE, ONE), lambda: binary("Add")),
    "sixteen-bit-float": (lambda: matmul(I16, y=Q("int16", 0.125)), matmul),
    "activations-per-tensor-crash": (lambda: conv(b=None, y=Q("uint8", CHANNELS, 128, 1)), lambda: conv(b=None)),
    "concat-per-tensor": (
        lambda: binary("Concat", U8, CHANNELED, U8, axis=1),
        lambda: binary("Concat", U8, U8, U8, axis=1),
    ),
    "concat-per-tensor-refused": (
        lambda: binary("Concat", U8, CHANNELED, U8, axis=1),
        lambda: binary("Concat", U8, U8, U8, axis=1),
    ),
    "activations-per-tensor": (lambda: matmul(ELEMENTS, y=U8Y), matmul),
    "gemm-activations-per-tensor": (lambda: gemm(ELEMENTS, b=None, y=U8Y), gemm),
    "softmax-input-per-tensor": (
        lambda: unary("Softmax", CHANNELED, U8),
        lambda: unary("Softmax"),
    ),
    "softmax-input-refused": (
        lambda: unary("Softmax", CHANNELED, U8),
        lambda: unary("Softmax"),
    ),
    "softmax-first-scale": (
        lambda: unary("Softmax", U8, CHANNELED),
        lambda: unary("Softmax"),
    ),
    "gemm-weight-zero-point": (lambda: gemm(w=replace(MATRIX, zero=None), b=None), gemm),
    "curves-per-tensor": (lambda: unary("Sigmoid", U8, CHANNELED), lambda: unary("Sigmoid")),
    "old-opset-16-bit": (lambda: lone(I16, opset=13), lambda: lone(replace(I16, domain="com.microsoft"), opset=13)),
    "old-opset-float8": (lambda: lone(Q("float8e4m3fn"), opset=13), lambda: lone(Q("float8e4m3fn"), opset=19)),
    "old-opset-blocks": (lambda: lone(FOUR, opset=19), lambda: lone(FOUR)),
}

OPENVINO: Mapping[str, tuple[Made, Made]] = {
    "unknown-operator": (unknown, lambda: unary("Relu")),
    "float-activations": (lambda: matmul(F()), matmul),
    "matmul-second-signed": (
        lambda: matmul(w=replace(MATRIX, const=False, kind="uint8")),
        lambda: matmul(w=replace(MATRIX, const=False)),
    ),
    "matmul-first-zero-0": (
        lambda: matmul(Q(zero=3), replace(MATRIX, const=False)),
        lambda: matmul(w=replace(MATRIX, const=False)),
    ),
    "transposed-operand": (lambda: turned(3), turned),
    "single-pixel-stride": (lambda: pixels(strides=[2, 1]), pixels),
    "grouped-volumes": (lambda: grouped(I8), lambda: grouped(U8)),
    "resize-corners": (lambda: resize(coordinate_transformation_mode="align_corners"), resize),
    "average-pool-padding": (lambda: padded(U8), lambda: padded(I8)),
    "slope-axis": (lambda: slope(8), lambda: slope(8, 1)),
    "transposed-unsigned-weights": (
        lambda: conv(w=W8U, op="ConvTranspose"),
        lambda: conv(U8, W8U, op="ConvTranspose"),
    ),
    "transposed-symmetric-weights": (
        lambda: conv(w=W8U, op="ConvTranspose"),
        lambda: conv(w=replace(W8U, zero=0), op="ConvTranspose"),
    ),
    "concat-quantized": (lambda: binary("Concat", b=F(), axis=1), lambda: binary("Concat", axis=1)),
    "int16-weights": (fed_weights, lambda: conv(w=replace(W16, const=False), b=None)),
    "contrib-operators": (lambda: on_codes("QLinearLeakyRelu"), lambda: on_codes("QLinearSigmoid")),
    "old-contrib-operators": (lambda: on_codes("QLinearAdd"), NOTHING),
    "contrib-float": (lambda: on_codes("QLinearSoftmax"), NOTHING),
    "matmul-second-quantized": (lambda: matmul(w=F(shape=(16, 8))), matmul),
    "sixteen-bit-max-pool": (lambda: pool(x=I16, y=I16), lambda: pool(x=I16, y=None)),
    "sixteen-bit-split": (lambda: half_split(I16), half_split),
    "qlinear-conv-channels-float": (lambda: qlinear_conv(zeros=[0] * 8), qlinear_conv),
    "qlinear-conv-unsigned": (lambda: qlinear_conv(w="uint8", zero=128), lambda: qlinear_conv(w="uint8")),
    "qlinear-matmul-columns": (lambda: qlinear_matmul(zeros=[0] * 8), qlinear_matmul),
    "activations-per-tensor": (lambda: conv(Q(scale=CHANNELS, zero=0, axis=1), b=None), conv),
    "qlinear-conv-weights": (lambda: qlinear_conv(w="uint8"), qlinear_conv),
    "qlinear-conv-channels": (lambda: qlinear_conv(zeros=[0] * 8, inner=4), qlinear_conv),
    "qlinear-conv-channels-wrong": (lambda: qlinear_conv(zeros=[0] * 8), qlinear_conv),
    "qlinear-conv-scalars": (lambda: qlinear_conv(shape=[1]), qlinear_conv),
    "qlinear-matmul-weights": (lambda: qlinear_matmul("uint8"), lambda: qlinear_matmul("int8")),
    "dynamic-quantization": (conv_integer, NOTHING),
    "not-quantized": (lambda: conv(F(), F(const=True, shape=(8, 8, 3, 3)), None, None), conv),
    "no-integer-form": (lambda: unary("Tanh"), pool),
    "weights-stored": (lambda: conv(w=replace(WEIGHTS, const=False), b=None), conv),
    "weights-quantized": (lambda: conv(w=F(const=True, shape=(8, 8, 3, 3)), b=None), conv),
    "activations-quantized": (lambda: conv(x=F()), conv),
    "matmul-activations-quantized": (lambda: matmul(F(), replace(MATRIX, const=False)), matmul),
    "matmul-unsigned-weights": (lambda: matmul(w=replace(MATRIX, kind="uint8")), matmul),
    "matmul-symmetric-weights": (lambda: matmul(w=replace(MATRIX, zero=3)), matmul),
    "symmetric-weights": (lambda: conv(w=W8U), conv),
    "matmul-eight-bit": (lambda: matmul(I16), matmul),
    "matmul-eight-bit-both": (lambda: matmul(I16, replace(MATRIX, const=False, kind="int16")), matmul),
    "eight-bit": (lambda: conv(I16, y=Q("int16", 0.125)), conv),
    "weight-axis": (lambda: conv(w=channels(axis=1)), lambda: conv(w=channels())),
    "transposed-weight-axis": (
        lambda: conv(w=channels(), op="ConvTranspose"),
        lambda: conv(w=channels(axis=1), op="ConvTranspose"),
    ),
    "matmul-weight-axis": (lambda: matmul(w=ROWS), lambda: matmul(w=COLUMNS)),
    "transposed-zero-0": (lambda: conv(U8, op="ConvTranspose"), lambda: conv(op="ConvTranspose")),
    "matmul-second-zero-0": (
        lambda: matmul(w=replace(MATRIX, const=False, zero=3)),
        lambda: matmul(w=replace(MATRIX, const=False)),
    ),
    "average-pool-ceil": (lambda: pool("AveragePool", ceil_mode=1), lambda: pool("AveragePool")),
    "resize-nearest": (lambda: resize(mode="linear"), resize),
    "four-bit-weights": (lambda: four(Q()), matmul),
}

QNN: Mapping[str, tuple[Made, Made]] = {
    "unknown-operator": (unknown, lambda: unary("Relu")),
    "operators": (lambda: unary("Mish"), lambda: unary("Tanh")),
    "reduce-prod": (lambda: unary("ReduceProd"), NOTHING),
    "static-shapes": (lambda: conv(shape=("N", 8, 8, 8)), conv),
    "rank-5": (lambda: unary("Sigmoid", shape=(1, 1, 1, 2, 2, 2)), lambda: unary("Sigmoid", shape=(1, 1, 2, 2, 2))),
    "conv-weight-axis": (lambda: conv(w=channels(axis=1)), lambda: conv(w=channels())),
    "transposed-weight-axis": (
        lambda: conv(w=channels(), op="ConvTranspose"),
        lambda: conv(w=channels(axis=1), op="ConvTranspose"),
    ),
    "channel-zero-points": (lambda: conv(w=channels(zero=3)), lambda: conv(w=channels())),
    "weights-stored": (
        lambda: conv(w=channels(const=False), b=None),
        lambda: conv(w=replace(WEIGHTS, const=False), b=None),
    ),
    "gemm-weights-stored": (
        lambda: gemm(w=replace(COLUMNS, const=False), b=None),
        lambda: gemm(w=replace(COLUMNS, const=False, axis=0, shape=(8, 16)), b=None, transB=1),
    ),
    "conv-16-bit-weights": (lambda: conv(I16, W16, y=Q("int16", 0.125)), lambda: conv(I16, y=Q("int16", 0.125))),
    "matmul-16-bit-weights": (
        lambda: matmul(I16, replace(MATRIX, kind="int16"), Q("int16", 0.125)),
        lambda: matmul(I16, y=Q("int16", 0.125)),
    ),
    "matmul-channel-zero-points": (lambda: matmul(w=replace(COLUMNS, zero=3)), lambda: matmul(w=COLUMNS)),
    "conv-3d-float": (lambda: volume(F(shape=DEEP), None), lambda: volume(Q(shape=DEEP))),
    "min-int16": (lambda: binary("Min", I16, I16, I16), lambda: binary("Min", U16, U16, U16)),
    "conv-3d-dilations": (lambda: volume(Q(shape=DEEP), dilations=[2] * 3), lambda: volume(Q(shape=DEEP))),
    "curves-int8": (lambda: unary("LeakyRelu"), lambda: unary("LeakyRelu", U8, U8)),
    "conv-uint16-channel": (
        lambda: conv(U16, channels("uint16"), None, Q("uint16", 0.125)),
        lambda: conv(U16, channels("int16"), None, Q("uint16", 0.125)),
    ),
    "gemm-factors": (lambda: gemm(alpha=2.0), gemm),
    "gemm-result": (lambda: gemm(y=None), gemm),
    "max-pool-3d": (lambda: pool(kernel_shape=[1] * 3, shape=DEEP), pool),
    "pool-dilations": (lambda: pool(dilations=[2, 2]), pool),
    "transposed-dilations": (lambda: conv(op="ConvTranspose", dilations=[2, 2]), lambda: conv(op="ConvTranspose")),
    "conv-rank": (lambda: conv(shape=(8, 8)), conv),
    "batch-normalization-rank": (
        lambda: normalization("BatchNormalization", DEEP),
        lambda: normalization("BatchNormalization"),
    ),
    "layer-normalization-axis": (
        lambda: reads("LayerNormalization", vector(), axis=1),
        lambda: reads("LayerNormalization", vector()),
    ),
    "transposed-channel-zero-points": (
        lambda: conv(w=channels(axis=1, zero=3), op="ConvTranspose"),
        lambda: conv(w=channels(axis=1), op="ConvTranspose"),
    ),
    "conv-4-bit-bias": (
        lambda: conv(U8, replace(WEIGHTS, kind="int4"), y=U8Y),
        lambda: conv(U8, replace(WEIGHTS, kind="int4"), None, U8Y),
    ),
    "conv-uint4-int16": (
        lambda: conv(I16, replace(WEIGHTS, kind="uint4"), None, Q("int16", 0.125)),
        lambda: conv(U16, replace(WEIGHTS, kind="uint4"), None, Q("uint16", 0.125)),
    ),
    "float-bias-scalar": (lambda: conv(replace(ONE, zero=[0]), b=vector()), lambda: conv(b=vector())),
    "added-bias-scalar": (lambda: added(replace(ONE, zero=[0])), lambda: added(I8)),
    "conv-input-channels": (
        lambda: conv(Q(scale=CHANNELS, zero=0, axis=1), channels(), None),
        lambda: conv(Q(scale=CHANNELS, zero=0, axis=1), b=None),
    ),
    "depthwise-int16": (
        lambda: conv(I16, replace(WEIGHTS, shape=(8, 1, 3, 3)), None, Q("int16", 0.125), group=8),
        lambda: conv(I16, replace(WEIGHTS, shape=(8, 4, 3, 3)), None, Q("int16", 0.125), group=2),
    ),
    "depthwise-float-dilations": (
        lambda: conv(F(), F(const=True, shape=(8, 1, 3, 3)), None, None, group=8, dilations=[2, 2], strides=[2, 2]),
        lambda: conv(F(), F(const=True, shape=(8, 1, 3, 3)), None, None, group=8, dilations=[2, 2]),
    ),
    "layout-int16": (lambda: pool("AveragePool", I16, I16), lambda: pool("AveragePool", U16, U16)),
    "activations-per-tensor": (
        lambda: unary("Sigmoid", Q(scale=CHANNELS, zero=0, axis=1)),
        lambda: unary("Sigmoid", y=Q(scale=CHANNELS, zero=0, axis=1)),
    ),
    "arg-max-per-tensor": (
        lambda: unary("ArgMax", Q(scale=CHANNELS, zero=0, axis=1), None),
        lambda: unary("ArgMax", y=None),
    ),
    "split-per-tensor": (lambda: unary("Split", Q(scale=CHANNELS, zero=0, axis=1)), lambda: unary("Split")),
    "float-curves": (lambda: unary("Elu", y=None), lambda: unary("Elu")),
    "float-reciprocal": (lambda: unary("Reciprocal", y=None), lambda: unary("Reciprocal")),
    "float-pad-edge": (
        lambda: reads("Pad", axes(*[0] * 8), y=None, mode="edge"),
        lambda: reads("Pad", axes(*[0] * 8), y=None),
    ),
    "float-gather": (
        lambda: reads("Gather", axes(1, 2), y=None, made=(2, 8, 8, 8)),
        lambda: reads("Gather", axes(1, 2), made=(2, 8, 8, 8)),
    ),
    "instance-normalization-float": (
        lambda: reads("InstanceNormalization", vector(), vector()),
        lambda: node("InstanceNormalization", [U8, Q("uint8", const=True, shape=(8,)), BIAS], U8),
    ),
    "instance-normalization-signed": (
        lambda: node("InstanceNormalization", [Q(), Q(const=True, shape=(8,)), BIAS]),
        lambda: node("InstanceNormalization", [U8, Q("uint8", const=True, shape=(8,)), BIAS], U8),
    ),
    "instance-normalization-rank": (
        lambda: reads("InstanceNormalization", vector(), vector(), x=F(), y=None, shape=DEEP),
        lambda: reads("InstanceNormalization", vector(), vector(), x=F(), y=None),
    ),
    "resize-nearest-asymmetric": (lambda: resize(coordinate_transformation_mode="asymmetric"), resize),
    "resize-floor-pytorch": (
        lambda: resize(coordinate_transformation_mode="pytorch_half_pixel", nearest_mode="floor"),
        resize,
    ),
    "resize-antialias": (lambda: resize(mode="linear", antialias=1), resize),
    "pad-rank": (lambda: reads("Pad", F("int64", shape=(8,))), lambda: reads("Pad", axes(*[0] * 8))),
    "clip-bounds": (lambda: reads("Clip", F(shape=()), F(shape=())), lambda: reads("Clip", F(value=0.0), F(value=6.0))),
    "stored-arguments": (lambda: reads("Tile", F("int64", shape=(4,))), lambda: reads("Tile", axes(1, 1, 1, 1))),
    "sum-two": (lambda: node("Sum", [Q(), Q(), Q()]), lambda: binary("Sum")),
    "float-type": (lambda: binary("Add", F("double"), F("double"), None), lambda: binary("Add", F(), F(), None)),
    "not-quantized": (lambda: conv(F(), F(const=True, shape=(8, 8, 3, 3)), None, None), conv),
    "result-quantized": (lambda: conv(y=None), conv),
    "result-read-once": (lambda: conv(readers=1), conv),
    "gemm-float-result": (lambda: gemm(b=F(const=True, shape=(8,)), y=None), gemm),
    "same-parameters": (lambda: pool(y=Q(scale=0.125)), pool),
    "inputs-quantized": (lambda: conv(w=F(shape=(8, 8, 3, 3)), b=None), conv),
    "operands-quantized": (lambda: binary("Add", b=F(const=True, shape=(8, 1, 1))), lambda: binary("Add")),
    "second-operand-only": (lambda: binary("Add", a=F()), lambda: binary("Add")),
    "matmul-int16": (
        lambda: matmul(I16, replace(MATRIX, kind="int16", const=False), Q("int16", 0.125)),
        lambda: matmul(I16, y=Q("int16", 0.125)),
    ),
    "qlinear-channels": (lambda: qlinear_conv(shape=[8]), qlinear_conv),
    "split-results": (half_split, lambda: unary("Split")),
    "batch-normalization-scale": (
        lambda: node("BatchNormalization", [Q(), vector(), Q(const=True, shape=(8,)), vector(), vector()]),
        lambda: normalization("BatchNormalization"),
    ),
    "operand-types": (lambda: binary("Add", U8, Q(const=True), U8), lambda: binary("Add", U8, U8, U8)),
    "layer-normalization-bias": (
        lambda: node("LayerNormalization", [Q(), *[Q(const=True, shape=(8,))] * 2]),
        lambda: node("LayerNormalization", [Q(), Q(const=True, shape=(8,)), BIAS]),
    ),
    "batch-normalization-int16": (
        lambda: node("BatchNormalization", [I16, *[Q("int16", const=True, shape=(8,))] * 4], I16),
        lambda: node("BatchNormalization", [U16, Q("uint8", const=True, shape=(8,)), *[vector()] * 3], U16),
    ),
    "batch-normalization-int8": (
        lambda: node("BatchNormalization", [Q(), Q(const=True, shape=(8,)), *[vector()] * 3]),
        lambda: node("BatchNormalization", [Q(), *[Q(const=True, shape=(8,))] * 2, *[vector()] * 2]),
    ),
    "batch-normalization-input": (
        lambda: node("BatchNormalization", [F(), Q(const=True, shape=(8,)), *[vector()] * 3]),
        lambda: node("BatchNormalization", [F(), *[vector()] * 4]),
    ),
    "qlinear-reshape": (lambda: qlinear_matmul(reshaped=True), qlinear_matmul),
    "qlinear-channel-zero-points": (
        lambda: qlinear_conv(w="uint8", zeros=[3] * 8),
        lambda: qlinear_conv(w="uint8", zeros=[128] * 8),
    ),
    "qlinear-channel-zero-points-signed": (
        lambda: qlinear_conv("int8", "uint8", "int8", zeros=[3] * 8),
        lambda: qlinear_conv("int8", "uint8", "int8"),
    ),
    "batch-normalization-float": (
        lambda: normalization("BatchNormalization"),
        lambda: node("BatchNormalization", [Q(), *[Q(const=True, shape=(8,))] * 4]),
    ),
    "arg-max-16-bit": (lambda: unary("ArgMax", Q("int16"), None), lambda: unary("ArgMax", y=None)),
    "max-pool-codes": (lambda: pool(x=F("uint8"), y=None), lambda: pool(x=F(), y=None)),
    "qlinear-scalars": (lambda: on_codes("QLinearAdd", shape=[1]), lambda: on_codes("QLinearAdd")),
    "qlinear-columns": (lambda: qlinear_matmul(zeros=[0] * 8), qlinear_matmul),
    "qlinear-conv-types": (lambda: qlinear_conv(y="int8"), qlinear_conv),
    "one-type": (lambda: conv(y=Q("int16", 0.125)), conv),
    "signed-weights": (lambda: conv(w=W8U), conv),
    "weight-only": (lambda: matmul(F(), y=None), matmul),
    "weights-quantized": (lambda: gemm(w=F(const=True, shape=(16, 8)), b=None), gemm),
    "dynamic-quantization": (conv_integer, NOTHING),
    "old-opset-16-bit": (lambda: lone(I16, opset=13), lambda: lone(replace(I16, domain="com.microsoft"), opset=13)),
    "old-opset-float8": (lambda: lone(Q("float8e4m3fn"), opset=13), lambda: lone(Q("float8e4m3fn"), opset=19)),
    "old-opset-blocks": (lambda: lone(FOUR, opset=19), lambda: lone(FOUR)),
}

TENSORRT: Mapping[str, tuple[Made, Made]] = {
    "unknown-operator": (unknown, lambda: unary("Relu")),
    "zero-point-0": (lambda: lone(Q(zero=81)), lone),
    "dequantize-uint8": (lambda: lone(U8), lone),
    "quantize-uint8": (lambda: lone(Q("uint8")), lone),
    "no-16-bit": (lambda: lone(I16), lone),
    "no-int32-bias": (conv, lambda: conv(b=F(const=True, shape=(8,)))),
    "scale-positive": (lambda: conv(w=replace(channels(), scale=[*CHANNELS[:7], 0.0])), lambda: conv(w=channels())),
    "stored-parameters": (lambda: lone(Q(through="Identity")), lone),
    "float8-kind": (lambda: lone(Q("float8e5m2")), lambda: lone(Q("float8e4m3fn"))),
    "uint4": (lambda: lone(Q("uint4", const=True)), lambda: lone(Q("int4", const=True))),
    "int4-weights-only": (lambda: lone(Q("int4")), lambda: lone(Q("int4", const=True))),
    "int4-even": (lambda: lone(Q("int4", const=True), (3, 5)), lambda: lone(Q("int4", const=True), (3, 4))),
    "blocks-one-axis": (lambda: lone(replace(FOUR, shape=(33, 8))), lambda: lone(FOUR)),
    "old-opset-blocks": (lambda: lone(FOUR, opset=19), lambda: lone(FOUR)),
    "activations-per-tensor": (lambda: lone(Q(scale=CHANNELS, zero=0, axis=1)), lambda: lone(channels())),
    "axis-explicit": (lambda: lone(channels(axis=None, shape=(8, 8))), lambda: lone(channels())),
    "conv-weight-axis": (lambda: conv(w=channels(axis=1)), lambda: conv(w=channels())),
    "transposed-conv-axis": (
        lambda: conv(w=channels(axis=1), op="ConvTranspose"),
        lambda: conv(w=channels(), op="ConvTranspose"),
    ),
    "integer-operators": (qlinear_conv, NOTHING),
    "contrib-operators": (lambda: unary("FastGelu", domain="com.microsoft"), lambda: unary("Gelu", opset=20)),
    "not-quantized": (lambda: conv(F(), F(const=True, shape=(8, 8, 3, 3)), None, None), conv),
    "inputs-quantized": (lambda: conv(x=F()), conv),
    "weight-only": (four, matmul),
    "weights-quantized": (lambda: conv(w=F(const=True, shape=(8, 8, 3, 3))), conv),
    "residual-add": (lambda: binary("Add", b=F()), lambda: binary("Add")),
    "residual-add-second": (lambda: binary("Add", a=F()), lambda: binary("Add")),
    "result-in-float": (lambda: conv(y=None, behind="Sin"), conv),
}

VITISAI: Mapping[str, tuple[Made, Made]] = {
    "unknown-operator": (unknown, lambda: unary("Relu")),
    "power-of-two": (lambda: lone(Q(scale=0.05)), lone),
    "per-tensor": (lambda: conv(w=channels()), conv),
    "types": (lambda: lone(I16), lone),
    "symmetric": (lambda: lone(Q(zero=3)), lone),
    "static-shapes": (lambda: conv(shape=("N", 8, 8, 8)), conv),
    "attributes-written": (lambda: conv(without="strides"), conv),
    "no-lstm": (lambda: unary("LSTM", F(), None), NOTHING),
    "cpu-operators": (lambda: unary("Softmax"), NOTHING),
    "integer-operators": (qlinear_conv, NOTHING),
    "hard-sigmoid": (lambda: unary("HardSigmoid"), lambda: unary("HardSigmoid", alpha=1 / 6)),
    "quantized": (lambda: binary("Add", b=F()), lambda: binary("Add")),
    "shift-cut": (lambda: conv(y=Q(scale=2.0**-12)), conv),
    "shift-bias": (lambda: conv(b=replace(BIAS, scale=2.0**9)), conv),
    "shift-read": (lambda: binary("Add", b=Q(scale=2.0**8)), lambda: binary("Add")),
    "shift-swish": (lambda: binary("Mul", y=Q(scale=2.0**-12)), lambda: binary("Mul")),
    "concat-aligned": (lambda: binary("Concat", b=Q(scale=0.125), axis=1), lambda: binary("Concat", axis=1)),
    "moves-aligned": (lambda: pool(y=Q(scale=0.125)), pool),
}

ETHOS: Mapping[str, tuple[Made, Made]] = {
    "operators": (lambda: unary("Sin"), lambda: unary("Tanh")),
    "quantized": (lambda: binary("Add", b=F()), lambda: binary("Add")),
    "static-shapes": (lambda: conv(shape=("N", 8, 8, 8)), conv),
    "activation-type": (lambda: unary("Abs", U16, U16), lambda: unary("Abs")),
    "no-unsigned-codes": (lambda: lone(U8), lone),
    "activations-per-tensor": (lambda: lone(Q(scale=CHANNELS, zero=0, axis=1)), lone),
    "no-blocks": (lambda: lone(FOUR), lone),
    "eight-or-sixteen": (lambda: lone(U16), lone),
    "scale-positive": (lambda: lone(Q(scale=0.0)), lone),
    "weights-8-bit": (lambda: conv(w=W16), conv),
    "weights-zero-0": (lambda: conv(w=replace(WEIGHTS, zero=3)), conv),
    "weights-stored": (lambda: conv(w=replace(WEIGHTS, const=False), b=None), conv),
    "weight-axis": (lambda: conv(w=channels(axis=1)), lambda: conv(w=channels())),
    "transposed-weight-axis": (
        lambda: conv(w=channels(), op="ConvTranspose"),
        lambda: conv(w=channels(axis=1), op="ConvTranspose"),
    ),
    "bias-type": (lambda: conv(b=Q(scale=2.0**-9, const=True, shape=(8,))), conv),
    "bias-scale": (lambda: conv(b=replace(BIAS, scale=2.0**-8)), conv),
    "bias-zero": (lambda: conv(b=replace(BIAS, zero=3)), conv),
    "int16-symmetric": (lambda: lone(replace(I16, zero=3)), lambda: lone(I16)),
    "same-parameters": (lambda: pool(y=Q(scale=0.125)), pool),
    "min-max-parameters": (lambda: binary("Max", y=Q(scale=0.125)), lambda: binary("Max")),
    "softmax-output": (lambda: unary("Softmax"), lambda: unary("Softmax", y=Q(scale=1 / 256, zero=-128))),
    "log-softmax-output": (lambda: unary("LogSoftmax"), lambda: unary("LogSoftmax", y=Q(zero=127))),
    "sigmoid-output": (lambda: unary("Sigmoid"), lambda: unary("Sigmoid", y=Q(scale=1 / 256, zero=-128))),
    "tanh-output": (lambda: unary("Tanh"), lambda: unary("Tanh", y=Q(scale=1 / 128))),
    "conv-strides": (lambda: conv(strides=[4, 4]), conv),
    "conv-kernel": (lambda: conv(kernel_shape=[65, 65]), conv),
    "conv-rank": (lambda: volume(Q(shape=DEEP)), conv),
    "average-pool-kernel": (
        lambda: pool("AveragePool", kernel_shape=[9, 9], pads=[4] * 4),
        lambda: pool("AveragePool", kernel_shape=[9, 9]),
    ),
    "pool-strides": (lambda: pool(strides=[4, 4]), pool),
    "arg-max-depth": (
        lambda: unary("ArgMax", y=None, shape=(1, 128, 4, 4)),
        lambda: unary("ArgMax", y=None, shape=(1, 127, 4, 4)),
    ),
    "transpose-rank": (lambda: unary("Transpose", shape=[1] * 9), lambda: unary("Transpose", shape=[1] * 8)),
    "mean-size": (lambda: mean((1, 2, 256, 400)), lambda: mean((1, 2, 100, 400))),
    "mean-axes": (lambda: mean((1, 2, 2, 4096)), lambda: mean((1, 2, 2, 4095))),
    "mean-batch": (lambda: mean((2, 2, 4, 4)), lambda: mean((1, 2, 4, 4))),
    "matmul-int8": (
        lambda: matmul(I16, replace(MATRIX, kind="int16", const=False), Q("int16")),
        lambda: matmul(w=replace(MATRIX, const=False)),
    ),
    "elu-int8": (lambda: unary("Elu", I16, I16), lambda: unary("Elu")),
    "resize-mode": (lambda: resize(mode="cubic"), resize),
    "resize-factor": (lambda: resize(factor=3), resize),
    "integer-operators": (qlinear_conv, NOTHING),
}
CASES = {
    "onnxruntime-cpu": ONNXRUNTIME,
    "openvino-cpu": OPENVINO,
    "qnn-htp": QNN,
    "tensorrt": TENSORRT,
    "vitisai-xint8": VITISAI,
    "ethos-u55": ETHOS,
}


def broken(name: str, version: str, proto: onnx.ModelProto) -> set[str]:
    """The rules that the nodes of a model break, as far as they are told."""
    verdict = targets.find(name, version).verdict(load(proto.SerializeToString()))
    return {rule.id for each in verdict.judged for rule in each.rules}


@pytest.mark.parametrize("name", CASES)
def test_each_rule_has_models(name: str) -> None:
    """A rule of any version."""
    versions = targets.find(name).versions
    known = {rule.id for version in versions for rule in targets.find(name, version).rules}
    assert CASES[name].keys() == known


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, rules in CASES.items() for rule in rules])
def test_rule(name: str, rule: str) -> None:
    """In the newest version that has the rule."""
    fails, passes = CASES[name][rule]
    versions = [v for v in targets.find(name).versions if any(r.id == rule for r in targets.find(name, v).rules)]
    assert rule in broken(name, versions[-1], fails())
    assert rule not in broken(name, versions[-1], passes())


@pytest.mark.parametrize("rule", ONNXRUNTIME)
def test_onnxruntime_loads_and_refuses_as_foretold(rule: str) -> None:
    """The models of a rule, whatever else they break, in the newest measured version."""
    ort = pytest.importorskip("onnxruntime")
    known = targets.find("onnxruntime-cpu")
    if ort.__version__ != known.version:
        pytest.skip(f"the rules are of onnxruntime {known.version}")
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    for made in ONNXRUNTIME[rule]:
        proto = made()
        foretold = known.verdict(load(proto.SerializeToString())).worst
        try:
            ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
            refused = False
        except Exception:
            refused = True
        assert refused == (foretold == "refused")


@pytest.mark.parametrize(
    ("made", "rules"),
    [
        (lambda: summed("uint8", U8Y), set()),
        (lambda: summed("uint8"), {"float-bias"}),
        (lambda: summed("uint8", bias=(1, 8)), set()),
        (lambda: summed("int8", Q(scale=0.125)), {"joined-and-retyped"}),
    ],
)
def test_onnxruntime_makes_a_gemm_of_matmul_and_add(made: Made, rules: set[str]) -> None:
    """Between two Reshape, over which scales spread; of a vector only if there are more than two axes."""
    assert broken("onnxruntime-cpu", "", made()) == rules
