"""Rules that compare nodes with the declaration of their operator: its existence, attributes, inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qrun.checking.rules._forms import older
from qrun.checking.rules._ort import contrib, is_unknown, known_schema, runtime
from qrun.checking.rules._rule import Finding, rule, several
from qrun.checking.rules._scope import Scope, nodes
from qrun.declare import grouped
from qrun.errors import OperatorError
from qrun.ir import Model, Node, once_per_model
from qrun.ir.schema import MS, OPSETS, schema
from qrun.ops import find, near_operators
from qrun.ops._quantized import PER_AXIS_SINCE
from qrun.running.plan import unsupported_fixes


@rule(
    "QR201",
    "note",
    spec="operators",
    fix="--backend ort runs the model with ONNX Runtime; qrun ops lists what runs here",
    stops=True,
)
def unsupported_op(model: Model) -> Iterator[Finding]:
    """The model uses an operator that qrun cannot run. One finding for each operator.

    Why is this bad?
        The model may be correct: qrun still checks every node against its specification. But qrun run stops with this
        code and exit code 4. qrun cannot check operators of unknown domains. QR211 reports operators that their own
        domain does not define.

    Bad
        <ir_version: 8, opset_import: ["" : 13, "com.acme" : 1]>
        main (float[2] x) => (float[2] y)
        {
            y = com.acme.Frobnicate(x)
        }

    Good
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }
    """
    from qrun.ops._advice import why_without

    for scope, node, count in _first_of_each(
        model, lambda node: find(node.domain, node.op_type, node.version) is None and not is_unknown(node)
    ):
        yield Finding(
            f"qrun cannot run {node.op} ({count})",
            **scope.at(node),
            expected="an operator that qrun ops lists",
            got=f"{node.op}-{node.version}, {count}, first {scope.at(node)['node']}",
            why=why_without(node) or "it is a known operator; qrun does not implement it yet.",
            fix="; ".join(unsupported_fixes([node])),
        )


@rule("QR204", "error", spec="operators", fix="qrun explain OPERATOR prints the attributes", stops=True)
def bad_attribute(model: Model) -> Iterator[Finding]:
    """A node has an attribute that its operator does not define at this opset, or one of the wrong type,
    or lacks one that is required.

    Why is this bad?
        Runtimes refuse the model, or ignore the attribute and compute something nobody intended. The usual cause is an
        opset_import that is older or newer than the nodes were written for.

    Bad
        <ir_version: 8, opset_import: ["" : 10]>
        main (uint8[2,2] x) => (float[2,2] y)
        <float scale = {0.5}, uint8 zero = {128}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }

    Good
        main (uint8[2,2] x) => (float[2,2] y)
        <float scale = {0.5}, uint8 zero = {128}>
        {
            y = DequantizeLinear<axis = 0>(x, scale, zero)
        }
    """
    yield from refusals(model, "QR204")


@rule("QR205", "error", spec="operators", fix="qrun explain OPERATOR prints the inputs", stops=True)
def input_count(model: Model) -> Iterator[Finding]:
    """A node has too many inputs, or lacks a required one.

    In QLinearConv and QLinearMatMul all zero points are required, even those that are 0.

    Why is this bad?
        Runtimes refuse the model; onnx.reference takes a missing zero point as 0.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float s = {0.5}, uint8[1,1,1,1] w = {1}, uint8 wz = {0}>
        {
            y = QLinearConv(x, s, , w, s, wz, s, wz)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float s = {0.5}, uint8[1,1,1,1] w = {1}, uint8 z = {0}>
        {
            y = QLinearConv(x, s, z, w, s, z, s, z)
        }
    """
    yield from refusals(model, "QR205")


@rule(
    "QR211", "error", spec="operators", fix="correct the name or the domain, or import an opset that has the operator"
)
def unknown_operator(model: Model) -> Iterator[Finding]:
    """A node names an operator that its domain does not have at this opset. One finding for each operator.

    The rule judges ai.onnx by the opset, and com.microsoft by onnxruntime 1.32.0. It does not judge custom domains.

    Why is this bad?
        No runtime can run the node. onnx.checker accepts any operator of com.microsoft.

    Bad
        main (float[2] x) => (float[2] y)
        {
            y = Reluu(x)
        }

    Good
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }
    """
    for scope, node, count in _first_of_each(model, is_unknown):
        why, fix = _why_unknown(node)
        yield Finding(
            f"there is no operator {node.op} ({count})",
            **scope.at(node),
            expected="an operator of the domain, at the opset that the model imports",
            got=f"{node.op}, {count}",
            why=why,
            fix=fix,
        )


def _first_of_each(model: Model, meant: Callable[[Node], bool]) -> Iterator[tuple[Scope, Node, str]]:
    """Yield the first node of each operator among nodes for which `meant` holds, with text for their number."""
    for places in grouped((node.op, (scope, node)) for scope, node in nodes(model) if meant(node)).values():
        yield (*places[0], several(len(places), "node"))


def _why_unknown(node: Node) -> tuple[str, str]:
    """Texts: why the operator does not exist, and what to do."""
    op_type = node.op_type
    other = schema("", op_type, OPSETS[-1]) if node.domain else contrib(op_type)
    home = ("ai.onnx" if node.domain else MS) if other else ""
    if node.domain:
        why = f"{runtime()} defines no such operator in {MS}."
    else:
        first = next((v for v in range(node.version + 1, OPSETS[-1] + 1) if schema("", op_type, v)), 0)
        last = next((v for v in range(node.version - 1, OPSETS[0] - 1, -1) if schema("", op_type, v)), 0)
        if first:
            return f"ai.onnx has {op_type} since opset {first}.", f"import opset {first} or later"
        if last:
            return f"ai.onnx had {op_type} up to opset {last}.", f"import opset {last}, or use its replacement"
        why = f"ai.onnx has no operator {op_type} at opset {node.version} or any other."
    near = near_operators(op_type)
    if home:
        return why, f"{op_type} is an operator of {home}: set node.domain"
    return why, f"did you mean {near[0]}?" if near else ""


@rule("QR212", "error", spec="IR#nodes", fix="name the outputs that the operator has, or remove the node")
def output_count(model: Model) -> Iterator[Finding]:
    """A node has no output, lacks a required one, or has more than its operator defines.

    Why is this bad?
        Nothing can use a node without outputs. onnxruntime refuses the model; onnx.checker does so for ai.onnx, and
        accepts anything in com.microsoft.

    Bad
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (uint8[2] x) => (uint8[2] y, uint8[2] u)
        <float s = {0.5}, uint8 z = {0}>
        {
            y, u = com.microsoft.QLinearLeakyRelu(x, s, z, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (uint8[2] x) => (uint8[2] y)
        <float s = {0.5}, uint8 z = {0}>
        {
            y = com.microsoft.QLinearLeakyRelu(x, s, z, s, z)
        }
    """
    for scope, node in nodes(model):
        found = _wrong_outputs(node)
        if found:
            message, expected = found
            yield Finding(
                message,
                **scope.at(node),
                expected=expected,
                got=", ".join(name or "(omitted)" for name in node.outputs) or "no outputs",
                why=f"{node.op}-{node.version} defines its outputs.",
            )


def _wrong_outputs(node: Node) -> tuple[str, str] | None:
    """Texts: what is wrong with the outputs, and what they should be; None if they are right."""
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


def refusals(model: Model, code: str) -> Iterator[Finding]:
    """Yield a finding for every node that its operator's declaration (or onnx.defs) refuses with `code`."""
    for scope, node, error in _refused_nodes(model):
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
    """The cause that merges findings: attributes that a version of an operator lacks come from one exporter. An axis
    before per-axis scales has the cause of QR301."""
    if error.code != "QR204":
        return ""
    of_axis = node.op_type in ("QuantizeLinear", "DequantizeLinear") and error.message.endswith(" 'axis'")
    return PER_AXIS_SINCE if of_axis and older(node) else f"{node.op}-{node.version} {error.message}"


@once_per_model
def _refused_nodes(model: Model) -> list[tuple[Scope, Node, OperatorError]]:
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
    """The refusal of a node whose operator qrun does not run: unknown attributes, or a wrong number of inputs."""
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
    given = max((place for place, name in enumerate(node.inputs, 1) if name), default=0)
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
