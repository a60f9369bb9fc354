"""Conv, MatMul and Gemm of dequantized tensors as QLinearConv, QLinearMatMul and QGemm.

A MatMul of two activations whose K the file does not tell becomes the QLinearMatMul of qrun's own domain, which decides
when it runs whether sums fit int32.
"""

from __future__ import annotations

import math
from dataclasses import field
from fractions import Fraction

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ir.schema import OWN
from qrun.passes._draft import Draft, Refused
from qrun.passes._qdq_output import IntegerOperator, Output, read_output
from qrun.passes._sides import QuantizedTensor, dequantize_side, dequantized, is_dequantize, param, per_tensor

_INT32 = np.dtype(np.int32)
_MOST = 2**31 - 1
_CENTRED = 255
"""The most that a code can differ from a zero point."""


@frozen
class _Bias:
    """An int32 bias, whose scale is the product of the operands' scales;
    `name` is "" if there is none, then it is 0."""

    name: str = ""
    value: Array = field(default_factory=lambda: np.zeros(1, np.int32))
    stands_for: tuple[int, ...] = ()


def conv(draft: Draft, node: Node) -> IntegerOperator:
    """Conv: W of one scale, or one per output channel."""
    x, w = per_tensor(draft, node, 0), dequantized(draft, node, 1)
    out = read_output(draft, node)
    weights = _weights(draft, w, "W", 0)
    if weights.ndim < 3:
        raise Refused("W has no spatial axes")
    if weights.ndim > 4:
        raise Refused(f"integer convolutions over {weights.ndim - 2} axes have no native kernel")
    bias = _bias(draft, node, x, w, (len(weights),))
    rows = weights.reshape(len(weights), math.prod(weights.shape[1:]))
    added = _fitting(draft, x, w, rows, bias, out)
    y = out.side
    inputs = (x.tensor, x.scale, x.zero, w.tensor, w.scale, w.zero, y.scale, y.zero, added)
    return IntegerOperator(
        "QLinearConv",
        inputs if added else inputs[:-1],
        out,
        (x.node.index, w.node.index, *bias.stands_for),
        node.attributes,
        "",
        10,
    )


def gemm(draft: Draft, node: Node) -> IntegerOperator:
    """Gemm with alpha and beta 1: B of one scale, or one per column of the product; C one row."""
    a, b = per_tensor(draft, node, 0), dequantized(draft, node, 1)
    out = read_output(draft, node)
    if node.attributes.get("alpha", 1.0) != 1 or node.attributes.get("beta", 1.0) != 1:
        raise Refused("alpha or beta is not 1")
    transposed = bool(node.attributes.get("transB", 0))
    weights = _weights(draft, b, "B", 0 if transposed else 1)
    if weights.ndim != 2:
        raise Refused("B is not a matrix")
    columns = weights if transposed else weights.T
    bias = _bias(draft, node, a, b, (len(columns),))
    added = _fitting(draft, a, b, columns, bias, out)
    y = out.side
    inputs = (a.tensor, a.scale, a.zero, b.tensor, b.scale, b.zero, added, y.scale, y.zero)
    kept = {name: value for name, value in node.attributes.items() if name in ("transA", "transB")}
    return IntegerOperator("QGemm", inputs, out, (a.node.index, b.node.index, *bias.stands_for), kept)


def matmul(draft: Draft, node: Node) -> IntegerOperator:
    """MatMul: B of one scale, or a constant matrix of one scale per column."""
    a, b = per_tensor(draft, node, 0), dequantized(draft, node, 1)
    out = read_output(draft, node)
    weights = draft.value(b.tensor)
    if b.axis is not None:
        weights = _weights(draft, b, "B", 1)
        if weights.ndim != 2:
            raise Refused("B has one scale per column, but is not a matrix")
    if weights is not None and weights.ndim == 2:
        _fitting(draft, a, b, weights.T, _Bias(), out)
        known = True
    else:
        known = _check_depth(draft, node, a, b)
    y = out.side
    inputs = (a.tensor, a.scale, a.zero, b.tensor, b.scale, b.zero, y.scale, y.zero)
    domain, version = ("", 10) if known else (OWN, 1)
    return IntegerOperator("QLinearMatMul", inputs, out, (a.node.index, b.node.index), {}, domain, version)


def _weights(draft: Draft, side: QuantizedTensor, what: str, channel_axis: int) -> Array:
    """The constant integers; Refused unless their scale is one, or one for each place along channel_axis."""
    weights = draft.value(side.tensor)
    if weights is None:
        raise Refused(f"{what} is not constant")
    if side.axis is not None:
        axis = side.axis % weights.ndim if -weights.ndim <= side.axis < weights.ndim else -1
        if axis != channel_axis or side.scale_value.shape != weights.shape[axis : axis + 1]:
            raise Refused(f"{what} has one scale per place along axis {side.axis}, not {channel_axis}")
    return weights


def _bias(draft: Draft, node: Node, x: QuantizedTensor, w: QuantizedTensor, shape: tuple[int]) -> _Bias:
    """The third input in units of the product of the scales; Refused unless it is an integer number of these."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if not name:
        return _Bias()
    what, source = param(node, 2), draft.producer(name)
    stands_for: tuple[int, ...] = ()
    with np.errstate(all="ignore"):
        unit = np.asarray(x.scale_value.reshape(()) * w.scale_value).reshape(-1)
    if source is not None and is_dequantize(source):
        side = dequantize_side(draft, source, what, (_INT32,))
        value = draft.value(side.tensor)
        name, stands_for = side.tensor, (source.index,)
        if value is not None and (side.zero_value.any() or side.axis not in (None, -1, value.ndim - 1)):
            raise Refused(f"{what} has a zero point, or one scale per row")
        if not _all_equal(unit, side.scale_value.reshape(-1)):
            raise Refused(f"the scale of {what} is not the product of the operands' scales")
    else:
        value = _in_units(draft.value(name), unit, what)
        name = draft.constant(value, f"{name}_quantized")
    if value is None:
        raise Refused(f"{what} is not constant")
    if value.shape != shape and not (node.op_type == "Gemm" and value.shape == (1, *shape)):
        raise Refused(f"{what} is not one row")
    return _Bias(name, value, stands_for)


def _in_units(bias: Array | None, unit: Array, what: str) -> Array:
    """The integers whose float32 products with `unit` are this constant; Refused if there are none."""
    if bias is None or bias.dtype != np.float32 or bias.ndim not in (1, 2) or unit.size not in (1, bias.size):
        raise Refused(f"{what} is neither constant nor dequantized")
    with np.errstate(all="ignore"):
        count = np.rint(bias.astype(np.float64) / unit)
        same = np.array_equal(count.astype(np.float32) * unit, bias) and bool(np.all(np.abs(count) <= _MOST))
    if not same:
        raise Refused(f"{what} is not an integer number of the product of the operands' scales")
    return count.astype(np.int32)


def _all_equal(a: Array, b: Array) -> bool:
    return (a.size == b.size or 1 in (a.size, b.size)) and bool(np.all(a == b))


def _fitting(draft: Draft, x: QuantizedTensor, w: QuantizedTensor, rows: Array, bias: _Bias, out: Output) -> str:
    """The name of a bias with which all sums fit int32; rows: of weights, one for each output channel.

    That is the bias itself, or one that differs in channels whose sums might not fit, but all give the same
    code with either bias. Quantizers write biases near 2**31 to channels whose weights, and so scales, are next to
    nothing. Refused if there is none.
    """
    value = bias.value.astype(np.int64).reshape(-1)
    if rows.shape[1] * _CENTRED**2 + int(np.abs(value).max(initial=0)) <= _MOST:
        return bias.name
    centred = rows.astype(np.int32) - w.zero_value.astype(np.int32).reshape(-1, 1)
    above, below = (np.maximum(sign * centred, 0).sum(1, dtype=np.int64) for sign in (1, -1))
    least, most = (limit - int(x.zero_value.reshape(())) for limit in _range(x.dtype))
    low, high = above * least - below * most, above * most - below * least
    moved = np.maximum(np.minimum(value, _MOST - high), -_MOST - 1 - low)
    if np.array_equal(moved, np.broadcast_to(value, moved.shape)):
        return bias.name
    if not bias.name or draft.arith != "exact" or (moved + high > _MOST).any():
        raise Refused("its sums may not fit int32")
    scales = np.broadcast_to(w.scale_value.reshape(-1), moved.shape)
    for channel in np.flatnonzero(moved != value).tolist():
        unit = _unit(x.scale_value, scales[channel], out.side.scale_value)
        ends = (int(at[channel]) + int(end[channel]) for at in (value, moved) for end in (low, high))
        if len({_code(acc * unit, out.side) for acc in ends}) > 1:
            raise Refused("its sums may not fit int32")
    return draft.constant(moved.astype(np.int32).reshape(bias.value.shape), f"{bias.name}_fitting")


def _unit(x: Array, w: Array, y: Array) -> Fraction:
    """x * w / y as a real number."""
    return Fraction(float(x.item())) * Fraction(float(w.item())) / Fraction(float(y.item()))


def _code(quotient: Fraction, side: QuantizedTensor) -> int:
    """What QuantizeLinear makes of a real quotient."""
    least, most = _range(side.dtype)
    return min(max(round(quotient) + int(side.zero_value.item()), least), most)


def _check_depth(draft: Draft, node: Node, a: QuantizedTensor, b: QuantizedTensor) -> bool:
    """Whether K is known; Refused if it is so large that a sum might not fit int32."""
    left, right = (draft.shapes.get(n) or draft.shapes.get(s.tensor) for n, s in zip(node.inputs, (a, b), strict=True))
    depths = [left[-1] if left else None, right[max(-2, -len(right))] if right else None]
    known = [n for n in depths if n is not None]
    if known and min(known) * _CENTRED**2 > _MOST:
        raise Refused("its sums may not fit int32")
    return bool(known)


def _range(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
