"""QR205 input-count."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._bind import refusals
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model


@rule(
    "QR205",
    "input-count",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/index.html",
    fix="qrun explain OPERATOR prints the inputs",
)
def input_count(model: Model) -> Iterator[Finding]:
    """A node has too many inputs, or leaves out one that is not optional.

    In QLinearConv and QLinearMatMul all zero points are required, even those that are 0.

    Why is this bad?
        Runtimes refuse the model; onnx.reference takes a missing zero point as 0.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float s = {0.5}, uint8[1,1,1,1] w = {1}, uint8 wz = {0}>
        {
            y = QLinearConv(x, s, , w, s, wz, s, wz)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float s = {0.5}, uint8[1,1,1,1] w = {1}, uint8 z = {0}>
        {
            y = QLinearConv(x, s, z, w, s, z, s, z)
        }
    """
    yield from refusals(model, "QR205")
