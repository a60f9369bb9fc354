"""QR109 unused-initializer."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed, names_read, scopes
from qrun.ir import Model


@rule(
    "QR109",
    "unused-initializer",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="remove the initializer from the file",
)
def unused_initializer(model: Model) -> Iterator[Finding]:
    """A graph stores tensors that no node reads and that are no output.

    Why is this bad?
        It only costs space. After quantization it often means that the float weights were left beside the quantized
        ones.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Relu(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Add(x, w)
        }
    """
    for scope in scopes(model):
        graph = scope.model
        unused = sorted(set(graph.constants) - names_read(graph)) if graph.constants else []
        if unused:
            size = sum(graph.constants[name].nbytes for name in unused)
            plural = "s" if len(unused) > 1 else ""
            yield Finding(
                f"{len(unused)} stored tensor{plural} of {size} bytes read by no node: {listed(unused)}",
                node=" > ".join(scope.path),
                index=scope.index,
                tensor=listed(unused),
                expected="every initializer is read by a node or is an output",
                got=f"{len(unused)} unused, {size} bytes",
            )
