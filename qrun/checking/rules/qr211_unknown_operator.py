"""QR211 unknown-operator."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._ort import contrib, is_unknown, runtime
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes
from qrun.ir import Model, Node
from qrun.ir.schema import MS, OPSETS, schema
from qrun.ops import near_operators


@rule(
    "QR211",
    "unknown-operator",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/index.html",
    fix="correct the name or the domain, or import an opset that has the operator",
)
def unknown_operator(model: Model) -> Iterator[Finding]:
    """A node names an operator that its domain does not have at this opset. One finding for each operator.

    ai.onnx is judged by the opset, com.microsoft by onnxruntime 1.31.1. Other domains are custom, and not judged.

    Why is this bad?
        No runtime can run the node. onnx.checker accepts any operator of com.microsoft.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Reluu(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }
    """
    missing: dict[str, list[tuple[Scope, Node]]] = {}
    for scope, node in nodes(model):
        if is_unknown(node):
            missing.setdefault(node.op, []).append((scope, node))
    for op, places in missing.items():
        scope, node = places[0]
        count = f"{len(places)} node{'s' if len(places) > 1 else ''}"
        why, fix = _explain(node)
        yield Finding(
            f"there is no operator {op} ({count})",
            **scope.at(node),
            expected="an operator of the domain, at the opset that the model imports",
            got=f"{op}, {count}",
            why=why,
            fix=fix,
        )


def _explain(node: Node) -> tuple[str, str]:
    """Why the operator is not there, and what to do."""
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
            return f"ai.onnx had {op_type} up to opset {last}.", f"import opset {last}, or use what replaced it"
        why = f"ai.onnx has no operator {op_type} at opset {node.version} or any other."
    near = near_operators(op_type)
    if home:
        return why, f"{op_type} is an operator of {home}: set node.domain"
    return why, f"did you mean {near[0]}?" if near else ""
