"""QR201 unsupported-op."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._ort import is_unknown
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes
from qrun.ir import Model, Node
from qrun.ir.schema import DOMAINS
from qrun.ops import find
from qrun.running.plan import unsupported_fixes


@rule(
    "QR201",
    "unsupported-op",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/index.html",
    fix="--backend ort runs the model with ONNX Runtime; qrun ops lists what runs here",
    stops=True,
)
def unsupported_op(model: Model) -> Iterator[Finding]:
    """The model uses an operator that qrun cannot run. One finding for each operator.

    Why is this bad?
        The model may be fine: every node is still checked against its specification, but qrun run stops with this
        code and exit code 4. An operator of an unknown domain cannot be checked either. One that its own domain does
        not define is QR211.

    Bad
        <ir_version: 8, opset_import: ["" : 13, "com.acme" : 1]>
        main (float[2] x) => (float[2] y)
        {
            y = com.acme.Frobnicate(x)
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
        if find(node.domain, node.op_type, node.version) is None and not is_unknown(node):
            missing.setdefault(node.op, []).append((scope, node))
    for op, places in missing.items():
        scope, node = places[0]
        count = f"{len(places)} node{'s' if len(places) > 1 else ''}"
        where = scope.at(node)
        yield Finding(
            f"qrun cannot run {op} ({count})",
            **where,
            expected="an operator that qrun ops lists",
            got=f"{op}-{node.version}, {count}, first {where['node']}",
            why=_why(node),
            fix="; ".join(unsupported_fixes([node])),
        )


def _why(node: Node) -> str:
    if node.domain not in DOMAINS:
        return f"domain {node.domain!r} is not one that qrun knows."
    return "it is a known operator; qrun does not implement it yet."
