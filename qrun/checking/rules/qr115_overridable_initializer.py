"""QR115 overridable-initializer."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed
from qrun.ir import Model

OPTIONAL = 4
"""The IR version since which an initializer need not be a graph input."""


@rule(
    "QR115",
    "overridable-initializer",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="remove the initializers from graph.input: onnxruntime has tools/python/remove_initializer_from_input.py",
)
def overridable_initializer(model: Model) -> Iterator[Finding]:
    """A scale, zero point or weight that nodes read is also a graph input, so a caller may replace it.

    Up to IR version 3 initializers had to be graph inputs; such files are not reported.

    Why is this bad?
        What may be replaced is no constant: onnxruntime neither folds nor packs it ("appears in graph inputs and will
        not be treated as constant value/weight") and does not fuse quantized groups whose scales it does not know.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x, float scale = {0.5}) => (uint8[2] y)
        <uint8 zero = {128}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.5}, uint8 zero = {128}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    if model.ir_version < OPTIONAL:
        return
    names = [v.name for v in model.defaults if v.name in model.consumers]
    if names:
        yield Finding(
            f"{len(names)} initializer{'s are graph inputs' if len(names) > 1 else ' is a graph input'} too: {listed(names)}",
            tensor=listed(names),
            expected="initializers that are no graph inputs",
            got=f"{len(names)} of {len(model.constants)} can be replaced by the caller",
            why="ONNX IR: an initializer with the name of a graph input is its default value, not a constant.",
        )
