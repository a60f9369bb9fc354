"""QR305 bias-shape."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._forms import expected_bias, shaped
from qrun.checking.rules._parameters import TABLE, Bias, bias
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes
from qrun.checking.rules._typed import mistyped
from qrun.ir import Model, Node
from qrun.ir.types import shape_text, type_name


@rule(
    "QR305",
    "bias-shape",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="export one bias value per output channel",
    applies=("QLinearConv", "com.microsoft::QLinearConv", "com.microsoft::QGemm", "com.microsoft::MatMulIntegerToFloat",
             "com.microsoft::DynamicQuantizeMatMul", "Conv"),
)  # fmt: skip
def bias_shape(model: Model) -> Iterator[Finding]:
    """A bias does not have one value per output channel, or a quantized one is not int32.

    The bias of a convolution is 1-D with one value for each output channel. In QLinearConv and QGemm it is int32, with
    the implied scale x_scale * w_scale and zero point 0.

    Why is this bad?
        Some output channels have no bias. onnx.checker accepts the model; onnxruntime fails while running, and
        onnx.reference broadcasts a bias of one element over all channels.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}, int32[3] b = {10, 20, 30}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}, int32[2] b = {10, 20}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)
        }
    """
    for scope, node in nodes(model, TABLE):
        b = bias(node)
        if b is None or {b.bias.place, b.weight.place}.intersection(mistyped(scope, node)):
            continue
        yield from _shape(scope, node, b)
        yield from _type(scope, node, b)


def _shape(scope: Scope, node: Node, b: Bias) -> Iterator[Finding]:
    expected, shape = expected_bias(scope, node, b), scope.shape(b.bias.tensor)
    if expected:
        yield Finding(
            f"bias {shaped(b.bias.name, shape)}, expected {expected.split(': ')[0]}",
            **scope.at(node),
            tensor=f"{b.bias.tensor} (input {b.bias.place}, {b.bias.name})",
            expected=expected,
            got=shape_text(shape),
            why=f"{node.op}-{node.version}: {b.bias.name} has one value per output channel.",
        )


def _type(scope: Scope, node: Node, b: Bias) -> Iterator[Finding]:
    dtype = scope.dtype(b.bias.tensor)
    if b.integer and dtype is not None and dtype != np.int32:
        yield Finding(
            f"bias {b.bias.name} is {type_name(dtype)}, expected int32",
            **scope.at(node),
            tensor=f"{b.bias.tensor} (input {b.bias.place}, {b.bias.name})",
            expected="int32, with scale x_scale * w_scale and zero point 0",
            got=type_name(dtype),
            why=f"{node.op}-{node.version}: the bias is added to the int32 accumulator.",
            fix="np.rint(bias / (x_scale * w_scale)).astype(np.int32)",
        )
