"""QR317 weight-axis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import nodes
from qrun.checking.rules._weights import dequantized
from qrun.ir import Model, Node
from qrun.ir.types import shape_text


@rule(
    "QR317",
    "weight-axis",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html",
    fix="quantize per output channel: axis=0 for Conv, the last axis for MatMul, by transB for Gemm",
    applies=("Conv", "MatMul", "Gemm"),
)
def weight_axis(model: Model) -> Iterator[Finding]:
    """In QDQ form, weights have one scale per slice of another axis than that of the output channels.

    Why is this bad?
        DequantizeLinear's axis is 1 unless written, but the output channels of Conv are on axis 0: a forgotten axis gives
        a model that loads wherever the two sizes are equal, and computes something else than was quantized. Even where
        it is meant, no integer operator can have such scales, because they differ inside one sum.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,2,2,2] x) => (float[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,2,1,1] w = {1, 2, 3, 4}, float[2] ws = {0.5, 0.25},
         int8[2] wz = {0, 0}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            y = Conv(xf, wf)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,2,2,2] x) => (float[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,2,1,1] w = {1, 2, 3, 4}, float[2] ws = {0.5, 0.25},
         int8[2] wz = {0, 0}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear<axis = 0>(w, ws, wz)
            y = Conv(xf, wf)
        }
    """
    for scope, node in nodes(model, (("", name) for name in ("Conv", "MatMul", "Gemm"))):
        if len(node.inputs) < 2:
            continue
        w = dequantized(scope, node.inputs[1])
        if w is None or w.scale is None or w.scale.ndim != 1 or np.all(w.scale == w.scale[:1]):
            continue
        shape = w.scope.shape(w.tensor)
        axis = w.node.attributes.get("axis", 1)
        if shape is None or len(shape) < 2 or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
            continue
        want = _channels(node, len(shape))
        if axis % len(shape) != want and shape[axis] == w.scale.size:
            written = "" if "axis" in w.node.attributes else ", the default: axis is not written"
            yield Finding(
                f"the weights of {node.op_type} {node.label} have one scale per slice of axis {axis}",
                **w.scope.at(w.node),
                tensor=f"{w.tensor} {shape_text(shape)}, feeds {node.op_type} {node.label}",
                expected=f"axis={want}, that of the output channels",
                got=f"axis {axis}{written}",
                why=f"{node.op}-{node.version} adds up along that axis, so its scales cannot be taken out of the sum.",
                fix=f"write axis={want}, or quantize along it",
            )


def _channels(node: Node, rank: int) -> int:
    turned = node.attributes.get("transB", 0)
    if node.op_type == "Conv" or (node.op_type == "Gemm" and isinstance(turned, int) and turned):
        return 0
    return rank - 1
