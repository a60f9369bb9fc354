"""Quantized tensors in a graph: tensor, scale and zero point of QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare import Later
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ir.schema import DOMAINS
from qrun.ir.types import DTYPES, NUMBERS, type_name
from qrun.ops import find
from qrun.passes._draft import Draft, Refused

if TYPE_CHECKING:
    from qrun.passes import _evaluate
else:
    _evaluate = Later("qrun.passes._evaluate")

EIGHT = (np.dtype(np.uint8), np.dtype(np.int8))
_F32 = np.dtype(np.float32)


@frozen
class QuantizedTensor:
    """A tensor of integers and the parameters that give it real values.

    tensor, scale, zero:    names; the last two are constants.
    scale_value, zero_value: float32, and dtype; of rank 0 or one per place along `axis`, which is None if per tensor.
    node:                   the DequantizeLinear or QuantizeLinear.
    """

    tensor: str
    dtype: np.dtype
    scale: str
    zero: str
    scale_value: Array
    zero_value: Array
    axis: int | None
    node: Node


def param(node: Node, index: int) -> str:
    """The specification's name of an input."""
    definition = find(node.domain, node.op_type, node.version)
    return definition.param(index) if definition else str(index)


def dequantized_input(draft: Draft, node: Node, index: int, dtypes: Sequence[np.dtype] = EIGHT) -> QuantizedTensor:
    """The quantized tensor behind input number `index`. Raises Refused unless an integer operator can take it."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    what = param(node, index)
    source = draft.producer(name)
    if source is None:
        raise Refused(f"{what} is not dequantized")
    if not is_dequantize(source):
        raise Refused(f"{what} comes from {source.op_type}, not from DequantizeLinear")
    return dequantize_side(draft, source, what, dtypes)


def has_quantized(model: Model) -> bool:
    """Whether there may be a node for which `is_dequantize` or `is_quantize` holds."""
    return not model.op_types.isdisjoint(("DequantizeLinear", "QuantizeLinear"))


def is_dequantize(node: Node) -> bool:
    """Whether a node is a complete DequantizeLinear."""
    return node.op_type == "DequantizeLinear" and _is_whole(node)


def is_quantize(node: Node) -> bool:
    """Whether a node is a complete QuantizeLinear."""
    return node.op_type == "QuantizeLinear" and _is_whole(node)


def _is_whole(node: Node) -> bool:
    return node.domain in DOMAINS and len(node.inputs) > 1 and any(node.outputs[:1])


def dequantize_side(draft: Draft, source: Node, what: str, dtypes: Sequence[np.dtype]) -> QuantizedTensor:
    """The input of a DequantizeLinear node that makes float32. Raises Refused otherwise."""
    if source.attributes.get("output_dtype", 0) not in (0, NUMBERS[_F32]):
        raise Refused(f"{what} is not dequantized to float32")
    return _side(draft, source, source.inputs[0], what, dtypes, None)


def per_tensor(draft: Draft, node: Node, index: int) -> QuantizedTensor:
    """The 8-bit tensor with one scale behind input number `index`. Raises Refused otherwise."""
    side = dequantized_input(draft, node, index)
    if side.axis is not None:
        raise Refused(f"{param(node, index)} has one scale per place along axis {side.axis}")
    return side


def quantized_output(draft: Draft, node: Node, what: str) -> QuantizedTensor:
    """The output of a QuantizeLinear node, of 8 bits with one scale. Raises Refused otherwise."""
    if node.attributes.get("precision", 0) not in (0, NUMBERS[_F32]):
        raise Refused(f"{what} is not quantized in float32 precision")
    number = node.attributes.get("output_dtype", 0)
    dtype = DTYPES.get(number) if isinstance(number, int) and number else np.dtype(np.uint8)
    side = _side(draft, node, node.outputs[0], what, EIGHT, dtype)
    if side.axis is not None:
        raise Refused(f"{what} has one scale per place along axis {side.axis}")
    return side


def dtype_of(draft: Draft, name: str, zero: Array | None) -> np.dtype | None:
    """The element type of a tensor: a constant's own type, its zero point's, or a stated one; None if unknown."""
    value = draft.value(name)
    if value is not None:
        return value.dtype
    known = draft.type(name)
    stated = known.dtype if known else None
    if zero is None:
        return stated
    return zero.dtype if stated is None or stated == zero.dtype else None


def _side(
    draft: Draft, node: Node, tensor: str, what: str, dtypes: Sequence[np.dtype], omitted: np.dtype | None
) -> QuantizedTensor:
    """The scale and zero point of a QuantizeLinear or DequantizeLinear. Raises Refused if a pass cannot use them."""
    scale_name, zero_name = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
    scale, zero = draft.value(scale_name), draft.value(zero_name) if zero_name else None
    if scale is None or (zero_name and zero is None):
        raise Refused(f"the {'zero point' if scale is not None else 'scale'} of {what} is not constant")
    if scale.dtype != _F32:
        raise Refused(f"the scale of {what} is {type_name(scale.dtype)}")
    if not bool(np.all(np.isfinite(scale) & (scale > 0))):
        raise Refused(f"the scale of {what} is not a positive finite number")
    single = scale.size == 1 and (zero is None or (zero.size == 1 and zero.ndim <= 1))
    aligned = zero is None or zero.shape == scale.shape or single
    if node.attributes.get("block_size", 0) or scale.ndim > 1 or not aligned:
        raise Refused(f"{what} is not quantized per tensor or per axis")
    dtype = dtype_of(draft, tensor, zero)
    if omitted is not None:
        dtype = omitted if zero is None else zero.dtype
    if dtype is None:
        raise Refused(f"the type of {what} is not known")
    if dtype not in dtypes:
        raise Refused(f"{what} is {type_name(dtype)}")
    axis = node.attributes.get("axis", 1)
    if not zero_name:
        zero_name = draft.zeros(dtype, scale.shape)
        zero = draft.value(zero_name)
    assert zero is not None
    return QuantizedTensor(
        tensor,
        dtype,
        scale_name,
        zero_name,
        scale,
        zero,
        axis if scale.size != 1 and isinstance(axis, int) else None,
        node,
    )


def levels(draft: Draft, side: QuantizedTensor) -> Array | None:
    """The float32 value of every code of a tensor with one scale, in the order of their bits."""
    codes = np.arange(256, dtype=np.uint8).view(side.dtype)
    made = _evaluate.evaluate(side.node, (codes, side.scale_value, side.zero_value), draft.arith, 1 << 20)
    return made[0] if made else None
