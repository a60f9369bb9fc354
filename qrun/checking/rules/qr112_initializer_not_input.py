"""QR112 initializer-not-input."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed
from qrun.ir import Model

RELAXED = 4
"""The IR version that allows initializers which are no graph inputs."""


@rule(
    "QR112",
    "initializer-not-input",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="set model.ir_version to 4 or more",
)
def initializer_not_input(model: Model) -> Iterator[Finding]:
    """The IR version is below 4, but an initializer is not listed among the graph inputs.

    Why is this bad?
        Up to IR version 3, an initializer is the default value of a graph input. onnx.checker refuses the model;
        onnxruntime reads it.

    Bad
        <ir_version: 3, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Add(x, w)
        }

    Good
        <ir_version: 4, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Add(x, w)
        }
    """
    if not 0 < model.ir_version < RELAXED:
        return
    inputs = {v.name for v in model.defaults}
    missing = [name for name in model.constants if name not in inputs]
    if missing:
        yield Finding(
            f"{len(missing)} initializer{'s are' if len(missing) > 1 else ' is'} no graph input: {listed(missing)}",
            tensor=listed(missing),
            expected=f"every initializer among the graph inputs, or IR version {RELAXED} or later",
            got=f"IR version {model.ir_version}",
            why="IR version 4 relaxed the rule that initializers are a subset of the graph inputs.",
        )
