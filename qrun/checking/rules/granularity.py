"""One scale per tensor, channel, row, column or block: the shapes of scales and zero points, and their axis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._forms import UNITS, expected_shape, older, quantized, reason, same_form, shaped
from qrun.checking.rules._rule import Finding, operators, rule
from qrun.checking.rules._scope import Scope, known, nodes, number
from qrun.checking.rules._weights import channel_axis, dequantized
from qrun.ir import Model, Node
from qrun.ir.schema import MS
from qrun.ir.types import shape_text, type_name
from qrun.ops import Granularity as Form
from qrun.ops import Quantizer, Slot
from qrun.ops._quantized import PER_AXIS_SINCE


@rule(
    "QR301",
    "error",
    spec="QLinearConv",
    fix="export one scale per channel of the quantized axis, or a single scale",
    applies=operators(),
)
def scale_shape(model: Model) -> Iterator[Finding]:
    """A scale has a shape that its operator does not allow.

    Per-tensor scales are scalars (or [1]), per-axis scales hold one value for each slice of the quantized axis, and
    blocked scales (opset 21) have the shape of the tensor with one axis divided by block_size. Weights of QLinearConv
    have one scale per output channel, operands of QLinearMatMul one per row of a or per column of b.

    Why is this bad?
        No value can be computed: the scales do not pair with the channels. onnx.checker accepts such a model, and
        runtimes fail while running, or broadcast the scales to something that nobody meant.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[3] ws = {0.5, 0.5, 0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.25}, int8[2] wz = {0, 0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }
    """
    for scope, node, q in quantized(model):
        expected = expected_shape(scope, node, q, q.scale) if q.scale else ""
        if not q.scale or not expected:
            continue
        shape, owner = scope.shape(q.scale.tensor), known(scope.shape(q.tensor.tensor))
        k_long = q.form == "column" and owner is not None and len(owner) > 1 and shape == owner[-2:-1]
        yield Finding(
            f"{shaped(q.scale.name, shape)}, expected {expected.split(': ')[0]}",
            **scope.at(node, q.scale),
            expected=expected,
            got=shape_text(shape),
            why=reason(node, q.form, q.scale.name, k_long),
            fix=_scale_fix(node, q.form),
            cause=PER_AXIS_SINCE if q.form == "axis" and older(node) else "",
        )


def _scale_fix(node: Node, form: Form) -> str:
    """What to export, as the error of a run says it."""
    if form == "axis" and older(node):
        return PER_AXIS_SINCE
    if form == "axis":
        blocks = node.attributes.get("block_size")
        return "export one scale per block of the axis, or without block_size" if blocks else ""
    return f"export one scale per {UNITS[form]}, or a single scale" if form in UNITS else "export a single scale"


@rule(
    "QR302",
    "error",
    spec="DequantizeLinear",
    fix="export the zero point in the shape of its scale",
    applies=operators(),
)
def zero_point_shape(model: Model) -> Iterator[Finding]:
    """A zero point has a shape that its operator does not allow.

    In QuantizeLinear and DequantizeLinear the zero point has the shape of its scale; elsewhere it is a scalar, or holds
    one value for each output channel, row or column, like the scale beside it.

    Why is this bad?
        onnx.checker and onnx.reference accept a scalar zero point beside per-channel scales and broadcast it;
        onnxruntime refuses it while running. The model works in one place and fails in another.

    Bad
        main (int8[4,2] x) => (float[4,2] y)
        <float[4] scale = {0.5, 0.25, 0.5, 0.25}, int8 zero = {0}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }

    Good
        main (int8[4,2] x) => (float[4,2] y)
        <float[4] scale = {0.5, 0.25, 0.5, 0.25}, int8[4] zero = {0, 0, 0, 0}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }
    """
    for scope, node, q in quantized(model):
        if q.zero_point:
            yield from _judge_zero_point(scope, node, q, q.zero_point)


def _judge_zero_point(scope: Scope, node: Node, q: Quantizer, zero: Slot) -> Iterator[Finding]:
    got = known(scope.shape(zero.tensor))
    scale = known(scope.shape(q.scale.tensor)) if q.scale else None
    if got is None or (scale is not None and same_form(got, scale)):
        return
    if q.form == "axis" and scale is not None and q.scale:
        if expected_shape(scope, node, q, q.scale):
            return
        yield Finding(
            f"{shaped(zero.name, got)}, expected {shape_text(scale)} like {q.scale.name}",
            **scope.at(node, zero),
            expected=f"{shape_text(scale)}, the shape of {q.scale.name} {q.scale.tensor}",
            got=shape_text(got),
            why=f"{node.op}-{node.version}: {zero.name} must match {q.scale.name} in shape.",
            fix=_zero_point_fix(scope, zero, scale),
        )
        return
    expected = expected_shape(scope, node, q, zero)
    if expected:
        yield Finding(
            f"{shaped(zero.name, got)}, expected {expected.split(': ')[0]}",
            **scope.at(node, zero),
            expected=expected,
            got=shape_text(got),
            why=reason(node, q.form, zero.name),
        )


def _zero_point_fix(scope: Scope, zero: Slot, scale: tuple[int, ...]) -> str:
    dtype = scope.dtype(zero.tensor)
    if not scale:
        return "store one zero point, as there is one scale"
    size = str(scale[0]) if len(scale) == 1 else f"({','.join(map(str, scale))})"
    return f"np.full({size}, zp, dtype={type_name(dtype)}); or drop the zero point if it is 0"


@rule(
    "QR307",
    "note",
    spec="QLinearConv",
    fix="store the zero point in the shape of its scale",
    applies=operators("channel", "row", "column", "gemm"),
)
def mixed_granularity(model: Model) -> Iterator[Finding]:
    """A scale is per channel and its zero point per tensor, or the other way round.

    Why is this bad?
        The text of QLinearConv and QLinearMatMul wants scale and zero point in one shape. qrun, onnx.reference and
        onnxruntime take the mixture for these operators, other runtimes may not.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.25}, int8 wz = {0}>
        {
            y = QLinearConv(x, s, z, w, ws, wz, s, z)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.25}, int8[2] wz = {0, 0}>
        {
            y = QLinearConv(x, s, z, w, ws, wz, s, z)
        }
    """
    for scope, node, q in quantized(model):
        if q.form in ("tensor", "axis") or not q.scale or not q.zero_point:
            continue
        scale, zero = known(scope.shape(q.scale.tensor)), known(scope.shape(q.zero_point.tensor))
        if scale is None or zero is None or same_form(scale, zero):
            continue
        if expected_shape(scope, node, q, q.scale) or expected_shape(scope, node, q, q.zero_point):
            continue
        words = [shape_text(shape) if shape else "a scalar" for shape in (scale, zero)]
        yield Finding(
            f"{q.scale.name} is {words[0]}, {q.zero_point.name} is {words[1]}",
            **scope.at(node, q.zero_point),
            expected=f"{shape_text(scale)}, the shape of {q.scale.name}",
            got=shape_text(zero),
            why=f"{node.op}-{node.version}: scale and zero point of {q.tensor.name} have one shape.",
            cause=f"QR307 {node.op} {q.scale.name} {same_form(zero, ())}",
        )


@rule(
    "QR308",
    "warning",
    spec="https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DequantizeLinear",
    fix="write the axis attribute",
    applies=("com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear"),
)
def axis_assumed(model: Model) -> Iterator[Finding]:
    """A com.microsoft QuantizeLinear or DequantizeLinear has one scale per channel, but no axis.

    Why is this bad?
        The operator's page says that without axis the scale is a scalar. onnxruntime takes axis 1, and so does qrun;
        another reader may refuse the model.

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
    for scope, node, q in quantized(model):
        assumed = node.domain == MS and "axis" not in node.attributes and q.form == "axis"
        got = known(scope.shape(q.scale.tensor)) if assumed and q.scale else None
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
            fix="write the axis along which the blocks run",
        )


@rule(
    "QR317",
    "warning",
    spec="DequantizeLinear",
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
        w = dequantized(scope, node.inputs[1])
        if w is None or w.scale is None or w.scale.ndim != 1 or np.all(w.scale == w.scale[:1]):
            continue
        shape = w.scope.shape(w.tensor)
        axis = w.node.attributes.get("axis", 1)
        if shape is None or len(shape) < 2 or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
            continue
        want = channel_axis(node, len(shape))
        if axis % len(shape) != want and shape[axis] == w.scale.size:
            written = "" if "axis" in w.node.attributes else ", the default: axis is not written"
            yield Finding(
                f"the weights of {node.op_type} {node.label} have one scale per slice of axis {axis}",
                **w.scope.at(w.node, f"{w.tensor} {shape_text(shape)}, feeds {node.op_type} {node.label}"),
                expected=f"axis={want}, that of the output channels",
                got=f"axis {axis}{written}",
                why=f"{node.op}-{node.version} adds up along that axis, so its scales cannot be taken out of the sum.",
                fix=f"write axis={want}, or quantize along it",
            )
