"""QR307 mixed-granularity."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._forms import expected_shape, same_form
from qrun.checking.rules._parameters import TABLE, operators
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import known, nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Model
from qrun.ir.types import shape_text


@rule(
    "QR307",
    "mixed-granularity",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="store the zero point in the shape of its scale",
    applies=operators("channel", "row", "column", "gemm"),
)
def mixed_granularity(model: Model) -> Iterator[Finding]:
    """A scale is per channel and its zero point per tensor, or the other way round.

    Why is this bad?
        The text of QLinearConv and QLinearMatMul wants scale and zero point in one shape. qrun, onnx.reference and
        onnxruntime take the mixture for these operators, other runtimes may not.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.25}, int8 wz = {0}>
        {
            y = QLinearConv(x, s, z, w, ws, wz, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.25}, int8[2] wz = {0, 0}>
        {
            y = QLinearConv(x, s, z, w, ws, wz, s, z)
        }
    """
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            if q.form in ("tensor", "axis") or not q.scale or not q.zero_point:
                continue
            scale, zero = known(scope.shape(q.scale.tensor)), known(scope.shape(q.zero_point.tensor))
            if scale is None or zero is None or same_form(scale, zero):
                continue
            if expected_shape(scope, node, q, q.scale) or expected_shape(scope, node, q, q.zero_point):
                continue
            yield Finding(
                f"{q.scale.name} is {_words(scale)}, {q.zero_point.name} is {_words(zero)}",
                **scope.at(node),
                tensor=f"{q.zero_point.tensor} (input {q.zero_point.place}, {q.zero_point.name})",
                expected=f"{shape_text(scale)}, the shape of {q.scale.name}",
                got=shape_text(zero),
                why=f"{node.op}-{node.version}: scale and zero point of {q.tensor.name} have one shape.",
                cause=f"QR307 {node.op} {q.scale.name} {same_form(zero, ())}",
            )


def _words(shape: tuple[int, ...]) -> str:
    return shape_text(shape) if shape else "a scalar"
