"""QR117 dead-node."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed, names_read, scopes
from qrun.ir import Model


@rule(
    "QR117",
    "dead-node",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="remove the nodes, or name their outputs in graph.output",
)
def dead_node(model: Model) -> Iterator[Finding]:
    """Nodes make tensors that no node reads and that are no output. One finding for each graph.

    Why is this bad?
        They cost time and change nothing. After quantization it often means that a QuantizeLinear was left hanging when
        its reader was replaced, or that an output was lost.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
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
        read = names_read(scope.model)
        dead = [n for n in scope.model.nodes if any(n.outputs) and not any(name in read for name in n.outputs)]
        if dead:
            count = f"{len(dead)} node{'s' if len(dead) > 1 else ''}"
            yield Finding(
                f"{count} whose outputs nothing reads: {listed([n.label for n in dead])}",
                **scope.at(dead[0]),
                tensor=listed([name for n in dead for name in n.outputs if name]),
                expected="every node has an output that a node reads or that is an output of the graph",
                got=f"{count} of {len(scope.model.nodes)}",
            )
