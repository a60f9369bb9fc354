"""Rules on the shapes of scales and zero points: one per tensor, channel, row, column or block."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._forms import UNITS, all_quantizers, describe_shape, expected_shape, older, reason, same_form
from qrun.checking.rules._rule import Finding, operators, rule
from qrun.checking.rules._scope import Scope, Shape, number, static_shape
from qrun.ir import Model, Node
from qrun.ir.types import shape_text
from qrun.ops import Granularity as Form
from qrun.ops import Quantizer, Slot
from qrun.ops._quantized import PER_AXIS_SINCE


@rule(
    "QR301",
    "error",
    spec="QLinearConv",
    fix="export one scale per channel of the quantized axis, or a single scale",
    applies=operators(),
    stops=True,
)
def scale_shape(model: Model) -> Iterator[Finding]:
    """A scale has a shape that its operator does not allow.

    Per-tensor scales are scalars (or [1]), per-axis scales hold one value for each slice of the quantized axis, and
    blocked scales (opset 21) have the shape of the tensor with one axis divided by block_size. Weights of QLinearConv
    have one scale per output channel, operands of QLinearMatMul one per row of a or per column of b.

    Why is this bad?
        No value can be computed, because the scales do not match the channels. onnx.checker accepts such a model, and
        runtimes fail while running, or broadcast the scales in a way nobody intended.

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
    for scope, node, q in all_quantizers(model):
        expected = expected_shape(scope, node, q, q.scale) if q.scale else ""
        if not q.scale or not expected:
            continue
        shape, owner = scope.shape(q.scale.tensor), static_shape(scope.shape(q.tensor.tensor))
        k_long = q.form == "column" and owner is not None and len(owner) > 1 and shape == owner[-2:-1]
        yield Finding(
            f"{describe_shape(q.scale.name, shape)}, expected {expected.split(': ')[0]}",
            **scope.at(node, q.scale),
            expected=expected,
            got=shape_text(shape),
            why=reason(node, q.form, q.scale.name, k_long),
            fix=_scale_fix(node, q.form, shape, owner),
            cause=PER_AXIS_SINCE if q.form == "axis" and older(node) else "",
        )


def _scale_fix(node: Node, form: Form, scale: Shape | None, owner: Shape | None) -> str:
    """The fix: what to export, in the words of a run's error."""
    from qrun.ops._advice import axis_fix

    if form == "axis" and older(node):
        return PER_AXIS_SINCE
    if form == "axis":
        if node.attributes.get("block_size"):
            return "export one scale per block of the axis, or without block_size"
        count = scale[0] if scale is not None and len(scale) == 1 else None
        return axis_fix(owner, count, number(node, "axis", 1)) if isinstance(count, int) and owner is not None else ""
    return f"export one scale per {UNITS[form]}, or a single scale" if form in UNITS else "export a single scale"


@rule(
    "QR302",
    "error",
    spec="DequantizeLinear",
    fix="export the zero point in the shape of its scale",
    applies=operators(),
    stops=True,
)
def zero_point_shape(model: Model) -> Iterator[Finding]:
    """A zero point has a shape that its operator does not allow.

    In QuantizeLinear and DequantizeLinear the zero point has the shape of its scale; elsewhere it is a scalar, or holds
    one value for each output channel, row or column, like its scale.

    Why is this bad?
        onnx.checker and onnx.reference accept a scalar zero point with per-channel scales and broadcast it; onnxruntime
        refuses it while running. The model works in one place and fails in another.

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
    for scope, node, q in all_quantizers(model):
        if q.zero_point:
            yield from _judge_zero_point(scope, node, q, q.zero_point)


def _judge_zero_point(scope: Scope, node: Node, q: Quantizer, zero: Slot) -> Iterator[Finding]:
    from qrun.ops._advice import zero_point_fix

    got = static_shape(scope.shape(zero.tensor))
    scale = static_shape(scope.shape(q.scale.tensor)) if q.scale else None
    if got is None or (scale is not None and same_form(got, scale)):
        return
    if q.form == "axis" and scale is not None and q.scale:
        if expected_shape(scope, node, q, q.scale):
            return
        yield Finding(
            f"{describe_shape(zero.name, got)}, expected {shape_text(scale)} like {q.scale.name}",
            **scope.at(node, zero),
            expected=f"{shape_text(scale)}, the shape of {q.scale.name} {q.scale.tensor}",
            got=shape_text(got),
            why=f"{node.op}-{node.version}: {zero.name} must match {q.scale.name} in shape.",
            fix=zero_point_fix(scope.value(zero.tensor), scope.dtype(zero.tensor), scale),
        )
        return
    expected = expected_shape(scope, node, q, zero)
    if expected:
        yield Finding(
            f"{describe_shape(zero.name, got)}, expected {expected.split(': ')[0]}",
            **scope.at(node, zero),
            expected=expected,
            got=shape_text(got),
            why=reason(node, q.form, zero.name),
        )


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
        The specification of QLinearConv and QLinearMatMul requires scale and zero point to have the same shape. qrun,
        onnx.reference and onnxruntime accept the mix for these operators; other runtimes may not.

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
    for scope, node, q in all_quantizers(model):
        if q.form in ("tensor", "axis") or not q.scale or not q.zero_point:
            continue
        scale, zero = static_shape(scope.shape(q.scale.tensor)), static_shape(scope.shape(q.zero_point.tensor))
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
