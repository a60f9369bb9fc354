"""QR310 block-size."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, known, nodes
from qrun.ir import Model, Node
from qrun.ir.types import shape_text

_OPERATORS = ("QuantizeLinear", "DequantizeLinear")


@rule(
    "QR310",
    "block-size",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="write block_size and axis so that the scale has one value per block, or drop block_size",
    applies=_OPERATORS,
)
def block_size(model: Model) -> Iterator[Finding]:
    """block_size is negative, or blocks run along an axis that the tensor does not have.

    Blocked quantization (opset 21) divides one axis, from -r to r-1 for a tensor of rank r, into blocks of block_size.
    QR301 reports scales that do not have one value per block.

    Why is this bad?
        There is no such axis or block, so no scale belongs to any element. onnx.checker accepts the model.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (int8[4,2] x) => (float[4,2] y)
        <float[2,2] scale = {0.5, 0.25, 0.5, 0.25}>
        {
            y = DequantizeLinear<axis = 2, block_size = 2>(x, scale)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (int8[4,2] x) => (float[4,2] y)
        <float[2,2] scale = {0.5, 0.25, 0.5, 0.25}>
        {
            y = DequantizeLinear<axis = 0, block_size = 2>(x, scale)
        }
    """
    for scope, node in nodes(model):
        block = node.attributes.get("block_size", 0)
        if node.op_type in _OPERATORS and isinstance(block, int) and block and node.inputs:
            yield from _judge(scope, node, block)


def _judge(scope: Scope, node: Node, block: int) -> Iterator[Finding]:
    x, axis = scope.shape(node.inputs[0]), node.attributes.get("axis", 1)
    why = f"{node.op}-{node.version}: block_size is positive, and axis lies in [-r, r-1]."
    if block < 0:
        yield Finding(
            f"block_size is {block}",
            **scope.at(node),
            expected="a positive number, or 0 for none",
            got=str(block),
            why=why,
        )
    elif x is not None and isinstance(axis, int) and not -len(x) <= axis < len(x) and not _one(scope, node):
        range_text = f"{-len(x)} to {len(x) - 1}" if x else "none: x is a scalar"
        yield Finding(
            f"axis {axis} is out of range for {node.inputs[0]} {shape_text(x)}",
            **scope.at(node),
            tensor=f"{node.inputs[0]} (input 0, x)",
            expected=range_text,
            got=str(axis),
            why=why,
            fix="write the axis along which the blocks run",
        )


def _one(scope: Scope, node: Node) -> bool:
    """Whether there is only one scale: then QR301 or nobody complains."""
    scale = known(scope.shape(node.inputs[1])) if len(node.inputs) > 1 else None
    return scale == ()
