"""Computes the real values that a quantizing node rounds, in steps of its output, to tell rounding ties from errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from qrun.ir import Array, Node
from qrun.ops import Context, Quantizer, Slot, facts, find, operands, parameter_axis, quantizers, real_operator

NEAR = 1e-5
"""Steps of the output (LSB) within which a value counts as a tie."""
_CODES: set[np.dtype[Any]] = set(map(np.dtype, (np.uint8, np.int8, np.uint16, np.int16, np.int32)))
_CODES |= set(map(np.dtype, (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)))

Values = Sequence[Array | None]
Sums = tuple[Array, Array, Array]
"""Sums, their worth in steps of the output, and the zero point."""


def before_rounding(node: Node, values: Values) -> Array | None:
    """The node's output as float64 before it is rounded and saturated, zero point added.

    values: the node's inputs. None if this is not known for the operator or these forms.
    """
    known = facts(node.domain, node.op_type)
    if known is None or known.real is None or not known.rounds:
        return None
    function = _KNOWN.get(known.real.op_type, _of_float)
    with np.errstate(all="ignore"):
        try:
            return function(node, values)
        except (ValueError, IndexError):
            return None


def ties(exact: Array, got: Array, want: Array) -> int:
    """Count the elements whose `got` and `want` are neighbouring integers with `exact` within NEAR of their middle."""
    middle = (got.astype(np.float64) + want.astype(np.float64)) / 2
    step = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return int(np.count_nonzero((step == 1) & (np.abs(exact - middle) <= NEAR)))


def tie_distance(exact: Array) -> Array:
    """The distance of each value from the midpoint between two codes, in LSB."""
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(exact - np.floor(exact) - 0.5))


def _f64(array: Array | None) -> Array:
    """An array in float64; 0 for None."""
    return np.zeros(()) if array is None else np.asarray(array, np.float64)


def _one(array: Array | None) -> Array:
    """A parameter as float64, zero if absent; one of a single element becomes a scalar."""
    value = _f64(array)
    return value.reshape(()) if value.size == 1 else value


def _along(array: Array | None, axis: int, x: Array, block: int) -> Array:
    """A scale or zero point in a shape that broadcasts to x: per tensor, per axis, or in blocks along the axis."""
    value = _one(array)
    if value.ndim == 0:
        return value
    axis %= x.ndim
    if block:
        return np.take(value, np.arange(x.shape[axis]) // block, axis=axis)
    return value.reshape([-1 if at == axis else 1 for at in range(x.ndim)])


def _quantize(node: Node, values: Values) -> Array | None:
    """The real result of QuantizeLinear in steps, before rounding."""
    x, scale, zero = (*values, None)[:3]
    if x is None or (zero is not None and zero.dtype not in _CODES):
        return None
    axis, block = node.attributes.get("axis", 1), node.attributes.get("block_size", 0)
    if not isinstance(axis, int) or not isinstance(block, int):
        return None
    if not x.ndim:
        return _f64(x) / _one(scale) + _one(zero)
    return np.asarray(_f64(x) / _along(scale, axis, x, block) + _along(zero, axis, x, block))


def _conv_sums(node: Node, values: Values) -> Sums | None:
    """The sums of QLinearConv."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*values, None, None)[:9]
    integer = find("", "ConvInteger", 10)
    if integer is None or x is None or w is None:
        return None
    geometry = {k: v for k, v in node.attributes.items() if k != "channels_last"}
    turned = bool(node.attributes.get("channels_last", 0)) and x.ndim > 2
    x = np.moveaxis(x, -1, 1) if turned else x
    scalar_zero = None if x_zero is None else x_zero.reshape(())
    acc = _f64(integer(x, w, scalar_zero, w_zero, **geometry, ctx=Context(observing=False)))
    lanes = (-1, *(1,) * (x.ndim - 2))
    if bias is not None:
        acc = acc + _f64(bias).reshape(lanes)
    factor = _one(w_scale)
    factor = factor.reshape(lanes) if factor.ndim else factor
    factor = _one(x_scale) * factor / _one(y_scale)
    if turned:
        acc = np.moveaxis(acc, 1, -1)
        factor = factor.reshape(-1) if factor.ndim else factor
    return acc, factor, _one(y_zero)


def _matmul_sums(node: Node, values: Values) -> Sums | None:
    """The sums of QLinearMatMul."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = values
    if a is None or b is None or min(a.ndim, b.ndim) < 2 or not {a.dtype, b.dtype} <= _CODES:
        return None

    def row(value: Array | None) -> Array:
        made = _one(value)
        return made[:, None] if made.ndim == 1 else made

    acc = (_f64(a) - row(a_zero)) @ (_f64(b) - _one(b_zero))
    return acc, row(a_scale) * _one(b_scale) / _one(y_scale), _one(y_zero)


def _gemm_sums(node: Node, values: Values) -> Sums | None:
    """The sums of QGemm."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*values, None, None, None)[:9]
    if y_zero is None or a is None or b is None:
        return None
    left, right = _f64(a) - _one(a_zero), _f64(b)
    right = right.T if node.attributes.get("transB", 0) else right
    acc = (left.T if node.attributes.get("transA", 0) else left) @ (right - _one(b_zero)) + _f64(c)
    alpha = node.attributes.get("alpha", 1.0)
    if not isinstance(alpha, float):
        return None
    return acc, alpha * _one(a_scale) * _one(b_scale) / _one(y_scale), _one(y_zero)


def unwrapped_sums(node: Node, values: Values) -> Sums | None:
    """The sums of a QLinearConv, QLinearMatMul or QGemm as float64, not wrapped to int32, bias included; what one of
    them is worth in steps of the output; and the output's zero point. None for other operators and forms."""
    function = _SUMS.get(node.op_type)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        try:
            return function(node, values)
        except (ValueError, IndexError):
            return None


def _of_sums(node: Node, values: Values) -> Array | None:
    """The real result of sums; None if they leave int32."""
    known = unwrapped_sums(node, values)
    if known is None or (known[0].size and np.abs(known[0]).max() >= 2**31):
        return None
    acc, factor, zero = known
    return np.asarray(acc * factor + zero)


def _of_float(node: Node, values: Values) -> Array | None:
    """DequantizeLinear, the float operator in float64, QuantizeLinear without rounding."""
    function, real = real_operator(node), real_operands(node, values)
    if function is None or real is None:
        return None
    last = bool(node.attributes.get("channels_last", 0)) and real[0].ndim > 2
    real = [np.moveaxis(real[0], -1, 1), *real[1:]] if last else real  # weights have their channels first
    attributes = {k: v for k, v in node.attributes.items() if k in function.attributes}
    made = function(*real, **attributes, ctx=Context(observing=False))
    made = made[0] if isinstance(made, tuple) else made
    out = next(q for q in quantizers(node) if q.is_output)
    made = np.moveaxis(made, 1, -1) if last else made
    return np.asarray(made / _value(out.scale, values) + _value(out.zero_point, values))


def real_operands(node: Node, values: Values) -> list[Array] | None:
    """The dequantized operands of a node, without its bias; None if one is missing."""
    given = dict(zip(node.inputs, values, strict=False))
    found = [(x, q) for name, q in operands(node) if (x := given.get(name)) is not None]
    if len(found) != len(operands(node)):
        return None
    return [x if q is None else _dequantize(node, x, q, values) for x, q in found]


def _dequantize(node: Node, x: Array, q: Quantizer, values: Values) -> Array:
    """The real value of an input."""
    zero, scale = (_along(_value(slot, values), parameter_axis(node, q.form), x, 0) for slot in (q.zero_point, q.scale))
    return np.asarray((_f64(x) - zero) * scale)


def _value(slot: Slot | None, values: Values) -> Array:
    """The value of a scale or zero point."""
    return _one(values[slot.place] if slot and slot.place < len(values) else None)


def _softmax(node: Node, values: Values) -> Array | None:
    """The real result of QLinearSoftmax in steps, before rounding."""
    x, x_scale, _, y_scale, y_zero = (*values, None)[:5]
    axis = node.attributes.get("axis", -1)
    if x is None or not x.size or not isinstance(axis, int):
        return None
    real = _f64(x) * _one(x_scale)
    whole = tuple(range(axis % x.ndim, x.ndim)) if node.attributes.get("opset", 13) in range(13) else (axis,)
    powers = np.exp(real - real.max(axis=whole, keepdims=True))
    return np.asarray(powers / powers.sum(axis=whole, keepdims=True) / _one(y_scale) + _one(y_zero))


_KNOWN: Mapping[str, Callable[[Node, Values], Array | None]] = {
    "Identity": _quantize,
    **dict.fromkeys(("Conv", "MatMul", "Gemm"), _of_sums),
    "Softmax": _softmax,
}
"""Functions by float operator, for quantizing along an axis, sums of exact integers, and Softmax."""
_SUMS: Mapping[str, Callable[[Node, Values], Sums | None]] = {
    "QLinearConv": _conv_sums,
    "QLinearMatMul": _matmul_sums,
    "QGemm": _gemm_sums,
}
