"""QR212 output-count."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._ort import known_schema
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import nodes
from qrun.ir import Model, Node
from qrun.ops import find


@rule(
    "QR212",
    "output-count",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html#nodes",
    fix="name the outputs that the operator has, or remove the node",
)
def output_count(model: Model) -> Iterator[Finding]:
    """A node names no output, leaves out one that is not optional, or names more than its operator has.

    Why is this bad?
        A node without outputs computes nothing that could be used. onnxruntime refuses the model; onnx.checker does so
        for ai.onnx, and accepts anything in com.microsoft.

    Bad
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (uint8[2] x) => (uint8[2] y, uint8[2] u)
        <float s = {0.5}, uint8 z = {0}>
        {
            y, u = com.microsoft.QLinearSigmoid(x, s, z, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (uint8[2] x) => (uint8[2] y)
        <float s = {0.5}, uint8 z = {0}>
        {
            y = com.microsoft.QLinearSigmoid(x, s, z, s, z)
        }
    """
    for scope, node in nodes(model):
        found = _wrong(node)
        if found:
            message, expected = found
            yield Finding(
                message,
                **scope.at(node),
                expected=expected,
                got=", ".join(name or "(omitted)" for name in node.outputs) or "no outputs",
                why=f"{node.op}-{node.version} defines its outputs.",
            )


def _wrong(node: Node) -> tuple[str, str] | None:
    """What is wrong with the outputs, and what they should be."""
    known = known_schema(node)
    if known is None:
        return None if any(node.outputs) else (f"{node.op} has no outputs", "one output or more")
    counted = find(node.domain, node.op_type, node.version) is not None and not node.domain
    if len(node.outputs) > known.max_outputs and not counted:
        names = ", ".join(formal.name for formal in known.outputs)
        return f"{node.op} has {len(node.outputs)} outputs", f"at most {known.max_outputs}: {names}"
    for place, formal in enumerate(known.outputs):
        given = place < len(node.outputs) and bool(node.outputs[place])
        if formal.option == "Single" and not given:
            return f"output {formal.name!r} is missing", f"output {place}, {formal.name}; it is not optional"
    return None
