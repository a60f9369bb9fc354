"""QR201 unsupported-op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qrun.ir import Model
from qrun.ir.schema import DOMAINS, schema
from qrun.ops import find
from qrun.rules._rule import Finding, rule
from qrun.rules._scope import nodes


@rule(
    "QR201",
    "unsupported-op",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/index.html",
    fix="--backend ort runs the model with ONNX Runtime; qrun ops lists what runs here",
)
def unsupported_op(model: Model) -> Iterator[Finding]:
    """The model uses an operator that qrun cannot run. One finding for each operator.

    Why is this bad?
        The model may be fine: every node is still checked against its specification, but qrun run stops with this
        code and exit code 4. An operator of an unknown domain cannot be checked either.

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
    missing: dict[tuple[str, str], list[dict[str, Any]]] = {}
    versions: dict[tuple[str, str], int] = {}
    for scope, node in nodes(model):
        if find(node.domain, node.op_type, node.version) is None:
            key = (node.domain, node.op_type)
            missing.setdefault(key, []).append(scope.at(node))
            versions[key] = node.version
    for (domain, op_type), places in missing.items():
        count = f"{len(places)} node{'s' if len(places) > 1 else ''}"
        if domain not in DOMAINS:
            why = f"domain {domain!r} is not one that qrun knows."
        elif not domain and schema(domain, op_type, versions[domain, op_type]) is None:
            why = f"ai.onnx has no operator {op_type} at this opset."
        else:
            why = "it is a known operator; qrun does not implement it yet."
        name = f"{domain}::{op_type}" if domain else op_type
        yield Finding(
            f"qrun cannot run {name} ({count})",
            **places[0],
            expected="an operator that qrun ops lists",
            got=f"{name}-{versions[domain, op_type]}, {count}, first {places[0]['node']}",
            why=why,
        )
