"""Rules on the axis of scales, and on block sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._forms import all_quantizers
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes, number, static_shape
from qrun.checking.rules._weights import quantized_source
from qrun.comparing.rewrites import axis_rewrites
from qrun.ir import Model, Node
from qrun.ir.schema import MS
from qrun.ir.types import shape_text
from qrun.ops import Slot, channel_axis


@rule(
    "QR308",
    "warning",
    spec="com.microsoft#com.microsoft.DequantizeLinear",
    fix="write the axis attribute",
    applies=("com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear"),
)
def axis_assumed(model: Model) -> Iterator[Finding]:
    """A com.microsoft QuantizeLinear or DequantizeLinear has one scale per channel, but no axis.

    Why is this bad?
        The operator's page says that without axis the scale is a scalar. onnxruntime uses axis 1, and so does qrun;
        other tools may refuse the model.

    Bad
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (int8[2,3] x) => (float[2,3] y)
        <float[3] scale = {0.5, 0.25, 0.5}, int8[3] zero = {0, 0, 0}>
        {
            y = com.microsoft.DequantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (int8[2,3] x) => (float[2,3] y)
        <float[3] scale = {0.5, 0.25, 0.5}, int8[3] zero = {0, 0, 0}>
        {
            y = com.microsoft.DequantizeLinear<axis = 1>(x, scale, zero)
        }
    """
    for scope, node, q in all_quantizers(model):
        assumed = node.domain == MS and "axis" not in node.attributes and q.form == "axis"
        got = static_shape(scope.shape(q.scale.tensor)) if assumed and q.scale else None
        if got is not None and q.scale and len(got) == 1 and got != (1,):
            yield Finding(
                f"{q.scale.name} has shape {shape_text(got)}, but the node has no axis",
                **scope.at(node, q.scale),
                expected="the axis attribute, or a scalar",
                got=f"{shape_text(got)} and no axis; 1 is assumed",
                why=f"{node.op}-{node.version}: without axis, the scale is per tensor.",
                cause=f"QR308 {node.op}",
            )


_BLOCKED = ("QuantizeLinear", "DequantizeLinear")


@rule(
    "QR310",
    "error",
    spec="QuantizeLinear",
    fix="write block_size and axis so that the scale has one value per block, or drop block_size",
    applies=_BLOCKED,
    stops=True,
)
def block_size(model: Model) -> Iterator[Finding]:
    """block_size is negative, or blocks run along an axis that the tensor does not have.

    Blocked quantization (opset 21) divides one axis, from -r to r-1 for a tensor of rank r, into blocks of block_size.
    QR301 reports scales that do not have one value per block.

    Why is this bad?
        There is no such axis or block, so no scale belongs to any element. onnx.checker accepts the model.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (int8[4,2] x) => (float[4,2] y)
        <float[2,2] scale = {0.5, 0.25, 0.5, 0.25}>
        {
            y = DequantizeLinear<axis = 2, block_size = 2>(x, scale)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (int8[4,2] x) => (float[4,2] y)
        <float[2,2] scale = {0.5, 0.25, 0.5, 0.25}>
        {
            y = DequantizeLinear<axis = 0, block_size = 2>(x, scale)
        }
    """
    for scope, node in nodes(model):
        block = number(node, "block_size") if node.op_type in _BLOCKED else 0
        if block and node.inputs:
            yield from _judge_block(scope, node, block)


def _judge_block(scope: Scope, node: Node, block: int) -> Iterator[Finding]:
    x, axis = scope.shape(node.inputs[0]), node.attributes.get("axis", 1)
    only_one = len(node.inputs) > 1 and scope.shape(node.inputs[1]) == ()
    why = f"{node.op}-{node.version}: block_size is positive, and axis lies in [-r, r-1]."
    if block < 0:
        expected = "a positive number, or 0 for none"
        yield Finding(f"block_size is {block}", **scope.at(node), expected=expected, got=str(block), why=why)
    elif x is not None and isinstance(axis, int) and not -len(x) <= axis < len(x) and not only_one:
        yield Finding(
            f"axis {axis} is out of range for {node.inputs[0]} {shape_text(x)}",
            **scope.at(node, Slot("x", 0, node.inputs[0])),
            expected=f"{-len(x)} to {len(x) - 1}" if x else "none: x is a scalar",
            got=str(axis),
            why=why,
            fix="write the axis of the blocks",
        )


@rule(
    "QR317",
    "warning",
    spec="DequantizeLinear",
    fix="quantize per output channel: axis=0 for Conv, the last axis for MatMul, by transB for Gemm",
    applies=("Conv", "MatMul", "Gemm"),
)
def weight_axis(model: Model) -> Iterator[Finding]:
    """In QDQ form, weights have one scale per slice of an axis other than the output channels.

    Why is this bad?
        DequantizeLinear's axis is 1 by default, but the output channels of Conv are on axis 0. If the two sizes are
        equal, a model with a forgotten axis loads and computes wrong values. Even if it is intended, no integer
        operator can use such scales, because they vary within one sum.

    Bad
        main (uint8[1,2,2,2] x) => (float[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,2,1,1] w = {1, 2, 3, 4}, float[2] ws = {0.5, 0.25},
         int8[2] wz = {0, 0}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            y = Conv(xf, wf)
        }

    Good
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
        w = quantized_source(scope, node.inputs[1])
        if w is None or w.scale is None or w.scale.ndim != 1 or np.all(w.scale == w.scale[:1]):
            continue
        shape = w.scope.shape(w.tensor)
        axis = w.node.attributes.get("axis", 1)
        if shape is None or len(shape) < 2 or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
            continue
        want = channel_axis(node) % len(shape)
        if axis % len(shape) != want and shape[axis] == w.scale.size:
            written = "" if "axis" in w.node.attributes else ", the default"
            yield Finding(
                f"the weights of {node.op_type} {node.label} have one scale per slice of axis {axis}",
                **w.scope.at(w.node, f"{w.tensor} {shape_text(shape)}, feeds {node.op_type} {node.label}"),
                expected=f"axis={want}, the output channels",
                got=f"axis {axis}{written}",
                why=_why_other_axis(scope, node),
                fix=f"write axis={want}, or quantize along it",
            )


def _why_other_axis(scope: Scope, node: Node) -> str:
    why = f"{node.op}-{node.version} sums along that axis, so its scales cannot be factored out of the sum."
    if not any(node.outputs[0] in found.nodes for found in axis_rewrites(scope.model)):
        return why
    return f"{why} The default session of onnxruntime 1.20 to 1.32 reads them as scales of the output channels and computes a different result."
