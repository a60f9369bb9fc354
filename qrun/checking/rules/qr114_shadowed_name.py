"""QR114 shadowed-name."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, scopes
from qrun.ir import Model, Node


@rule(
    "QR114",
    "shadowed-name",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html#names-within-a-graph",
    fix="rename the tensor inside the subgraph",
    applies=("If", "Loop", "Scan"),
)
def shadowed_name(model: Model) -> Iterator[Finding]:
    """A node inside a subgraph makes a tensor whose name the graph around it has already.

    Why is this bad?
        A reader of the name cannot tell which of the two is meant. onnx.checker and onnxruntime refuse the model,
        because it is not in single static assignment form.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (bool c, float[2] x) => (float[2] y)
        {
            t = Sigmoid(x)
            u = Relu(t)
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Relu(u) },
                else_branch = b () => (float[2] v) { v = Sigmoid(u) }
            >
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (bool c, float[2] x) => (float[2] y)
        {
            t = Sigmoid(x)
            u = Relu(t)
            y = If (c) <
                then_branch = a () => (float[2] w) { w = Relu(u) },
                else_branch = b () => (float[2] v) { v = Sigmoid(u) }
            >
        }
    """
    for scope in scopes(model):
        if scope.outer is None:
            continue
        for node in scope.model.nodes:
            for place, name in enumerate(node.outputs):
                where = _seen(scope, name) if name else ""
                if where:
                    yield Finding(
                        f"{name} is made inside the subgraph, but is already {where}",
                        **scope.at(node),
                        tensor=f"{name} (output {place})",
                        expected="a name that no graph around this one has",
                        got=name,
                        why="ONNX IR: outputs of nodes in a subgraph differ from the names visible from outside.",
                    )


def _seen(scope: Scope, name: str) -> str:
    """What `name` is in a graph around this one, where it is visible from here."""
    while scope.outer is not None:
        outer, holder = scope.outer, scope.holder
        if name in outer.model.constants:
            return "an initializer outside"
        if name in outer.model.fed:
            return "a graph input outside"
        maker: Node | None = outer.model.producers.get(name)
        if maker is not None and holder is not None and maker.index < holder.index:
            return f"made by {maker.label} outside"
        scope = outer
    return ""
