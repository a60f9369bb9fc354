"""QR110 ir-version."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model

NEWEST = 14
"""The last version that onnx.proto of onnx 1.23 has."""
OPERATOR_SETS = 3
"""The version that brought opset_import."""


@rule(
    "QR110",
    "ir-version",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="set model.ir_version to what the opset came with: onnx.helper.find_min_ir_version_for(model.opset_import)",
)
def ir_version(model: Model) -> Iterator[Finding]:
    """The file states no IR version, one from before operator sets, or one that was never published.

    Why is this bad?
        The IR version says how to read the file. onnx.checker refuses such a model; onnxruntime refuses a version that
        is too new, and reads a file without one.

    Bad
        <ir_version: 99, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }
    """
    got = model.ir_version
    if OPERATOR_SETS <= got <= NEWEST:
        return
    yield Finding(
        f"ir_version is {got}" if got else "the file states no ir_version",
        expected=f"{OPERATOR_SETS} to {NEWEST}",
        got=str(got) if got else "nothing, or 0",
        why="ONNX IR: ir_version must be present; opset_import came with version 3."
        if got < OPERATOR_SETS
        else f"onnx.proto knows versions up to {NEWEST}.",
    )
