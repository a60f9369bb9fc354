"""QR302 zero-point-shape."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._forms import expected_shape, reason, same_form, shaped
from qrun.checking.rules._parameters import TABLE, Quantizer, Slot, operators
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, known, nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Model, Node
from qrun.ir.types import shape_text, type_name


@rule(
    "QR302",
    "zero-point-shape",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html",
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
        <ir_version: 8, opset_import: ["" : 13]>
        main (int8[4,2] x) => (float[4,2] y)
        <float[4] scale = {0.5, 0.25, 0.5, 0.25}, int8 zero = {0}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (int8[4,2] x) => (float[4,2] y)
        <float[4] scale = {0.5, 0.25, 0.5, 0.25}, int8[4] zero = {0, 0, 0, 0}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }
    """
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            if q.zero_point:
                yield from _judge(scope, node, q, q.zero_point)


def _judge(scope: Scope, node: Node, q: Quantizer, zero: Slot) -> Iterator[Finding]:
    got = known(scope.shape(zero.tensor))
    scale = known(scope.shape(q.scale.tensor)) if q.scale else None
    if got is None or (scale is not None and same_form(got, scale)):
        return
    where = {**scope.at(node), "tensor": f"{zero.tensor} (input {zero.place}, {zero.name})"}
    if q.form == "axis" and scale is not None and q.scale:
        if expected_shape(scope, node, q, q.scale):
            return
        yield Finding(
            f"{shaped(zero.name, got)}, expected {shape_text(scale)} like {q.scale.name}",
            **where,
            expected=f"{shape_text(scale)}, the shape of {q.scale.name} {q.scale.tensor}",
            got=shape_text(got),
            why=f"{node.op}-{node.version}: {zero.name} must match {q.scale.name} in shape.",
            fix=_fix(scope, zero, scale),
        )
        return
    expected = expected_shape(scope, node, q, zero)
    if expected:
        yield Finding(
            f"{shaped(zero.name, got)}, expected {expected.split(': ')[0]}",
            **where,
            expected=expected,
            got=shape_text(got),
            why=reason(node, q.form, zero.name),
        )


def _fix(scope: Scope, zero: Slot, scale: tuple[int, ...]) -> str:
    dtype = scope.dtype(zero.tensor)
    if not scale:
        return "store one zero point, as there is one scale"
    size = str(scale[0]) if len(scale) == 1 else f"({','.join(map(str, scale))})"
    return f"np.full({size}, zp, dtype={type_name(dtype)}); or drop the zero point if it is 0"
