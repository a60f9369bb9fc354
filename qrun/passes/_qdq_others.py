"""Add, Mul, Concat, Softmax and the average pools of dequantized tensors as operators of com.microsoft."""

from __future__ import annotations

from qrun.ir import Node
from qrun.ops.lowering.pointwise import JOINED
from qrun.passes._draft import Draft, Refused
from qrun.passes._qdq_output import IntegerOperator, one_type, read_output
from qrun.passes._shapes import windows_reach_input
from qrun.passes._sides import per_tensor

_OVER_ONE_AXIS = 13
"""The version from which Softmax is over one axis, the last if none is named."""


def binary(draft: Draft, node: Node) -> IntegerOperator:
    """Add and Mul of tensors of one type."""
    a, b = per_tensor(draft, node, 0), per_tensor(draft, node, 1)
    out = read_output(draft, node)
    one_type(A=a, B=b, **{"the result": out.side})
    inputs = (a.tensor, a.scale, a.zero, b.tensor, b.scale, b.zero, out.side.scale, out.side.zero)
    return IntegerOperator(f"QLinear{node.op_type}", inputs, out, (a.node.index, b.node.index))


def concat(draft: Draft, node: Node) -> IntegerOperator:
    """Concat of tensors of any 8-bit types."""
    if len(node.inputs) > JOINED:
        raise Refused(f"joins of more than {JOINED} quantized tensors have no native kernel")
    parts = [per_tensor(draft, node, place) for place in range(max(1, len(node.inputs)))]
    out = read_output(draft, node)
    inputs = (out.side.scale, out.side.zero, *(name for p in parts for name in (p.tensor, p.scale, p.zero)))
    return IntegerOperator("QLinearConcat", inputs, out, tuple(p.node.index for p in parts), node.attributes)


def average_pool(draft: Draft, node: Node) -> IntegerOperator:
    """AveragePool without dilations."""
    x = per_tensor(draft, node, 0)
    out = read_output(draft, node)
    one_type(X=x, **{"the result": out.side})
    dilations = node.attributes.get("dilations", ())
    if isinstance(dilations, tuple) and any(d != 1 for d in dilations):
        raise Refused("it has dilations")
    if not windows_reach_input(node):
        raise Refused("a window may lie wholly in the padding")
    kept = {name: value for name, value in node.attributes.items() if name != "dilations"}
    inputs = (x.tensor, x.scale, x.zero, out.side.scale, out.side.zero)
    return IntegerOperator("QLinearAveragePool", inputs, out, (x.node.index,), kept)


def global_average_pool(draft: Draft, node: Node) -> IntegerOperator:
    """GlobalAveragePool of a tensor that surely has spatial axes."""
    x = per_tensor(draft, node, 0)
    out = read_output(draft, node)
    one_type(X=x, **{"the result": out.side})
    shape = draft.shapes.get(node.inputs[0]) or draft.shapes.get(x.tensor)
    if shape is None or len(shape) < 3:
        raise Refused("X is not known to have spatial axes")
    inputs = (x.tensor, x.scale, x.zero, out.side.scale, out.side.zero)
    return IntegerOperator("QLinearGlobalAveragePool", inputs, out, (x.node.index,))


def softmax(draft: Draft, node: Node) -> IntegerOperator:
    """Softmax of a tensor whose codes have the result's type."""
    x = per_tensor(draft, node, 0)
    out = read_output(draft, node)
    one_type(input=x, **{"the result": out.side})
    axis = node.attributes.get("axis", -1 if node.version >= _OVER_ONE_AXIS else 1)
    inputs = (x.tensor, x.scale, x.zero, out.side.scale, out.side.zero)
    return IntegerOperator("QLinearSoftmax", inputs, out, (x.node.index,), {"axis": axis, "opset": node.version})
