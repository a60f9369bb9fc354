"""QR116 unused-input."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed, names_read
from qrun.ir import Model


@rule(
    "QR116",
    "unused-input",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="remove it from graph.input, if callers need not feed it",
)
def unused_input(model: Model) -> Iterator[Finding]:
    """A graph input is read by no node.

    Why is this bad?
        Callers must feed a value that changes nothing. Often a conversion has folded away the nodes that read it.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x, float[2] z) => (float[2] y)
        {
            y = Relu(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x, float[2] z) => (float[2] y)
        {
            y = Add(x, z)
        }
    """
    read = names_read(model)
    unused = [v.name for v in model.inputs if v.name not in read]
    if unused:
        yield Finding(
            f"graph input{'s' if len(unused) > 1 else ''} read by no node: {listed(unused)}",
            tensor=listed(unused),
            expected="every graph input is read by a node or is an output",
            got=f"{len(unused)} of {len(model.inputs)} unused",
        )
