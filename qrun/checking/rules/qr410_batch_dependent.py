"""QR410 batch-dependent."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._parameters import MS
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, Shape, scopes
from qrun.ir import Model, Node

_OPERATORS = (("", "DynamicQuantizeLinear"), (MS, "DynamicQuantizeMatMul"))


@rule(
    "QR410",
    "batch-dependent",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html",
    fix="run one row at a time where rows must not influence each other, or quantize statically",
    applies=("DynamicQuantizeLinear", "com.microsoft::DynamicQuantizeMatMul"),
)
def batch_dependent(model: Model) -> Iterator[Finding]:
    """Dynamic quantization of a tensor whose sizes vary: a row's result depends on the rows and padding beside it.

    One finding per graph, at the first node. Models whose inputs all have fixed sizes and a batch of 1 pass.

    Why is this bad?
        DynamicQuantizeLinear takes one scale from the largest and smallest value of the whole tensor. The same sentence
        alone, in a batch, or padded to another length gets another scale, and so another result: scores that change with
        the batch size are no bug of the server.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[N,4] x) => (uint8[N,4] y, float s, uint8 z)
        {
            y, s, z = DynamicQuantizeLinear(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[1,4] x) => (uint8[1,4] y, float s, uint8 z)
        {
            y, s, z = DynamicQuantizeLinear(x)
        }
    """
    fixed = all(_is_fixed(value.shape) for value in model.inputs)
    for scope in scopes(model):
        found = [node for node in scope.model.nodes if _depends(scope, node, fixed)]
        if found:
            node, name = found[0], found[0].inputs[0]
            count = f"; {len(found)} such nodes in this graph" if len(found) > 1 else ""
            yield Finding(
                f"{name} is quantized with one scale for all rows, taken from its values{count}",
                **scope.at(node),
                tensor=f"{name} (input 0)",
                expected="one row, of fixed size",
                got=f"sizes that vary{count}",
                why=f"{node.op}-{node.version}: scale and zero point come from the minimum and maximum of the tensor.",
            )


def _depends(scope: Scope, node: Node, fixed: bool) -> bool:
    if (node.domain, node.op_type) not in _OPERATORS or not node.inputs or scope.value(node.inputs[0]) is not None:
        return False
    shape = scope.shape(node.inputs[0])
    return not fixed if shape is None else not _is_fixed(shape)


def _is_fixed(shape: Shape | None) -> bool:
    """One row, or fewer than two axes, and no size that varies."""
    return shape is not None and all(isinstance(d, int) for d in shape) and (len(shape) < 2 or shape[0] in (0, 1))
