"""QR108 unsorted-nodes."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import scopes
from qrun.ir import Model


@rule(
    "QR108",
    "unsorted-nodes",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="write the nodes in execution order; qrun inspect MODEL --nodes prints one",
)
def unsorted_nodes(model: Model) -> Iterator[Finding]:
    """The nodes of a graph are not in an order in which every tensor is made before it is read.

    Why is this bad?
        The ONNX IR requires topological order. onnx.checker refuses such a model and many tools read nodes in file
        order; qrun and onnxruntime sort them.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(t)
            t = Sigmoid(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            t = Sigmoid(x)
            y = Relu(t)
        }
    """
    for scope in scopes(model):
        if not scope.model.was_sorted:
            inside = f" inside node {' > '.join(scope.path)}" if scope.path else ""
            yield Finding(
                f"the nodes of graph {scope.model.name or 'main'}{inside} are not in topological order",
                node=" > ".join(scope.path),
                index=scope.index,
                expected="every tensor made by an earlier node than the one that reads it",
                got="another order; qrun sorted the nodes",
                why="ONNX IR: the nodes of a graph are topologically sorted.",
            )
