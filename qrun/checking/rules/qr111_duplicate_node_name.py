"""QR111 duplicate-node-name."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import scopes
from qrun.ir import Model, Node


@rule(
    "QR111",
    "duplicate-node-name",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html#names-within-a-graph",
    fix="give each node its own name, or none",
)
def duplicate_node_name(model: Model) -> Iterator[Finding]:
    """Two nodes of a graph have the same name. One finding for each name.

    Why is this bad?
        Names of nodes are unique within a graph. onnxruntime 1.31.1 refuses the model ("two nodes with same node
        name"), onnx.checker does not look. Lists such as nodes_to_exclude of a quantizer hit both nodes.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            [a] t = Relu(x)
            [a] y = Sigmoid(t)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            [a] t = Relu(x)
            [b] y = Sigmoid(t)
        }
    """
    for scope in scopes(model):
        named: dict[str, list[Node]] = {}
        for node in scope.model.nodes:
            if node.name:
                named.setdefault(node.name, []).append(node)
        for name, same in named.items():
            if len(same) > 1:
                first, second = same[:2]
                yield Finding(
                    f"{len(same)} nodes have the name {name!r}",
                    **scope.at(second),
                    expected="one node of each name in a graph",
                    got=f"{first.op} #{first.index} and {second.op} #{second.index}"
                    + (f", and {len(same) - 2} more" if len(same) > 2 else ""),
                    why="ONNX IR: names are unique within a namespace, and the nodes of a graph are one.",
                )
