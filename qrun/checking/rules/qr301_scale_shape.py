"""QR301 scale-shape."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._forms import UNITS, expected_shape, older, reason, shaped
from qrun.checking.rules._parameters import TABLE, Form, operators
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import known, nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Model, Node
from qrun.ir.types import shape_text
from qrun.ops._granularity import PER_AXIS_SINCE


@rule(
    "QR301",
    "scale-shape",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
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
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[3] ws = {0.5, 0.5, 0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.25}, int8[2] wz = {0, 0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }
    """
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            expected = expected_shape(scope, node, q, q.scale) if q.scale else ""
            if not q.scale or not expected:
                continue
            got = shape_text(scope.shape(q.scale.tensor))
            owner = known(scope.shape(q.tensor.tensor))
            k_long = q.form == "column" and owner is not None and len(owner) > 1 and got == f"[{owner[-2]}]"
            yield Finding(
                f"{shaped(q.scale.name, scope.shape(q.scale.tensor))}, expected {expected.split(': ')[0]}",
                **scope.at(node),
                tensor=f"{q.scale.tensor} (input {q.scale.place}, {q.scale.name})",
                expected=expected,
                got=got,
                why=reason(node, q.form, q.scale.name, k_long),
                fix=_fix(node, q.form),
                cause=PER_AXIS_SINCE if q.form == "axis" and older(node) else "",
            )


def _fix(node: Node, form: Form) -> str:
    """What to export, as the error of a run says it."""
    if form == "axis" and older(node):
        return PER_AXIS_SINCE
    if form == "axis":
        blocks = node.attributes.get("block_size")
        return "export one scale per block of the axis, or without block_size" if blocks else ""
    return f"export one scale per {UNITS[form]}, or a single scale" if form in UNITS else "export a single scale"
