"""What a node's attributes and inputs break, as findings; shared by QR204 and QR205."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._forms import older
from qrun.checking.rules._ort import is_unknown, known_schema
from qrun.checking.rules._rule import Finding
from qrun.checking.rules._scope import Scope, kept, nodes
from qrun.errors import OperatorError
from qrun.ir import Model, Node
from qrun.ops import find
from qrun.ops._granularity import PER_AXIS_SINCE


def refusals(model: Model, code: str) -> Iterator[Finding]:
    """A finding for every node that its operator's declaration (or onnx.defs) refuses with `code`."""
    for scope, node, error in kept(model, _refused):
        if error.code == code:
            facts = dict(error.facts)
            yield Finding(
                error.message,
                **scope.at(node),
                expected=facts.get("expected", ""),
                got=facts.get("got", ""),
                why=error.why or f"{node.op}-{node.version} defines its inputs and attributes.",
                fix=error.fixes[0] if error.fixes else "",
                cause=_cause(node, error),
            )


def _cause(node: Node, error: OperatorError) -> str:
    """Attributes that one version of an operator does not have come from one exporter; QR301 tells what axis was for."""
    if error.code != "QR204":
        return ""
    per_axis = (
        error.message.endswith(" 'axis'") and node.op_type in ("QuantizeLinear", "DequantizeLinear") and older(node)
    )
    return PER_AXIS_SINCE if per_axis else f"{node.op}-{node.version} {error.message}"


def _refused(model: Model) -> list[tuple[Scope, Node, OperatorError]]:
    return [(scope, node, error) for scope, node in nodes(model) if (error := _refusal(node)) is not None]


def _refusal(node: Node) -> OperatorError | None:
    definition = find(node.domain, node.op_type, node.version)
    if is_unknown(node):
        return None
    if definition is None:
        return _by_schema(node)
    try:
        definition.bind(node)
    except OperatorError as error:
        return error
    return None


def _by_schema(node: Node) -> OperatorError | None:
    """The same for operators that qrun does not run: names of attributes, and how many inputs."""
    known = known_schema(node)
    if known is None:
        return None
    stranger = next((name for name in node.attributes if name not in known.attributes), None)
    if stranger is not None:
        return OperatorError(
            f"{node.op_type} has no attribute {stranger!r}",
            expected=f"one of: {', '.join(sorted(known.attributes)) or 'none'}",
            got=stranger,
            code="QR204",
        )
    given = len(node.inputs)
    while given and not node.inputs[given - 1]:
        given -= 1
    if not known.min_inputs <= given <= known.max_inputs:
        most = known.max_inputs if known.max_inputs < 2**31 - 1 else "any number of"
        least = known.min_inputs
        return OperatorError(
            f"{node.op_type} has {given} inputs",
            expected=str(least) if least == most else f"{least} to {most} inputs",
            got=str(given),
            code="QR205",
        )
    return None
