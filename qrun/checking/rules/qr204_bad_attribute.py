"""QR204 bad-attribute."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._bind import refusals
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model


@rule(
    "QR204",
    "bad-attribute",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/index.html",
    fix="qrun explain OPERATOR prints the attributes",
)
def bad_attribute(model: Model) -> Iterator[Finding]:
    """A node has an attribute that its operator does not define at this opset, of the wrong type, or lacks one.

    Why is this bad?
        Runtimes refuse the model, or ignore the attribute and compute something else than was meant. The usual cause is
        an opset_import that is older or newer than the nodes were written for.

    Bad
        <ir_version: 8, opset_import: ["" : 10]>
        main (uint8[2,2] x) => (float[2,2] y)
        <float scale = {0.5}, uint8 zero = {128}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[2,2] x) => (float[2,2] y)
        <float scale = {0.5}, uint8 zero = {128}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }
    """
    yield from refusals(model, "QR204")
