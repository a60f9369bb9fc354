"""Elementwise functions of 8-bit tensors with per-tensor parameters, through tables of their 256 or 65,536 values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare import Later
from qrun.declare.frozen import fields_of
from qrun.ir.types import shape_text
from qrun.ops._context import note_scale, same_type, scalar
from qrun.ops._op import Array, Context, Shape, misfit
from qrun.ops._quantize import limits, store
from qrun.ops._rounding import DoubleDouble, decide
from qrun.ops._signature import InputRecord
from qrun.shapes import broadcast_shapes

if TYPE_CHECKING:
    from qrun import arithmetics
else:
    arithmetics = Later("qrun.arithmetics")

CHUNK = 1 << 16
_FLAGS: Any = ("external_loop", "buffered", "zerosize_ok")
Rounded = Array
"""Quotients rounded to integers, float64, before zero point and saturation."""


def scale_param(scale: Array, name: str, op_type: str, ctx: Context) -> Array:
    """A per-tensor scale as float64 of rank 0; unusual values are observed."""
    checked = scalar(scale, name, op_type)
    note_scale(ctx, checked, name)
    return checked.astype(np.float64)


def zero_param(zero_point: Array | None, dtype: np.dtype[Any], name: str, tensor: str, op_type: str) -> Array:
    """A per-tensor zero point of rank 0 and type `dtype`; 0 if omitted."""
    if zero_point is None:
        return np.zeros((), dtype)
    same_type(zero_point, dtype, name, tensor)
    return scalar(zero_point, name, op_type)


def parameters(op_type: str, given: InputRecord, ctx: Context) -> tuple[list[Array], list[Array]]:
    """The per-tensor scales and zero points of a record of inputs, in its order. All scales are checked before the zero
    points. The output's zero point, whose tensor is not in the record, must have the type of the first zero point."""
    inputs = {name: getattr(given, name) for name in fields_of(type(given))}
    scales = [scale_param(array, name, op_type, ctx) for name, array in inputs.items() if name.endswith("_scale")]
    owners = {name.lower(): name for name in inputs}
    zeros: list[Array] = []
    for name in (name for name in inputs if name.endswith("_zero_point")):
        owner = owners.get(name.removesuffix("_zero_point").lower(), "")
        dtype = inputs[owner].dtype if owner else zeros[0].dtype
        zeros.append(zero_param(inputs[name], dtype, name, owner or name[0].upper(), op_type))
    return scales, zeros


def all_codes(dtype: np.dtype[Any]) -> Array:
    """The 256 values of an 8-bit type, in the order of their bit patterns."""
    return np.arange(256, dtype=np.uint8).view(dtype)


def common_shape(op_type: str, **operands: Array) -> Shape:
    """The shape all operands broadcast to."""
    try:
        return broadcast_shapes(*(a.shape for a in operands.values()))
    except ValueError:
        raise misfit(
            f"{' and '.join(operands)} do not broadcast",
            list(operands)[-1],
            "shapes that broadcast, as numpy's do",
            ", ".join(f"{name} {shape_text(a.shape)}" for name, a in operands.items()),
            why=f"{op_type} broadcasts its operands.",
        ) from None


def single(scale: Array) -> Array:
    """A scale as float32, for onnxruntime's arithmetic."""
    return scale.astype(np.float32)


def encoding(scale: Array, zero: Array) -> arithmetics.Encoding:
    """Scale and zero point of a tensor for the arithmetic of an integer engine."""
    return arithmetics.Encoding(np.float32(scale), int(zero))


def requantize(codes: Array, zero: Array, scale: Array, y_zero: Array, y_scale: Array, ctx: Context) -> Rounded:
    """RNE((codes - zero) * scale / y_scale); in ``ort`` with a float32 product and quotient. An integer engine copies
    codes whose scale and zero point stay."""
    engine = ctx.integer_engine
    if engine and engine.requantize and (scale != y_scale or zero != y_zero or zero.dtype != y_zero.dtype):
        return engine.requantize(codes, encoding(scale, zero), encoding(y_scale, y_zero)).astype(np.float64)
    centre = codes.astype(np.float64) - float(zero)
    with np.errstate(all="ignore"):
        if ctx.arith == "ort":
            if scale == y_scale and zero == y_zero and zero.dtype == y_zero.dtype:
                return centre
            return np.rint(centre.astype(np.float32) * single(scale) / single(y_scale)).astype(np.float64)
        value = centre * scale
        return decide(value / y_scale, lambda at: (DoubleDouble(value[at], np.zeros(value[at].shape)), y_scale))


def unary(x: Array, rounded: Rounded, zero_point: Array, ctx: Context, name: str) -> Array:
    """saturate(rounded[x] + zero_point), `rounded` in the order of all_codes."""
    return lookup((x.view(np.uint8),), x.shape, rounded, zero_point, ctx, name)


def binary(
    a: Array,
    b: Array,
    shape: Shape,
    function: Callable[[Array, Array], Rounded],
    zero_point: Array,
    ctx: Context,
    name: str,
) -> Array:
    """saturate(function(a, b) + zero_point), broadcast to `shape`: directly if small, else through a table."""
    ctx.claim(shape, 1)
    if np.prod(shape, dtype=np.int64) <= 1 << 16:
        y = np.empty(shape, zero_point.dtype)
        if y.size:
            values = function(np.atleast_1d(a), np.atleast_1d(b))
            store(np.array(values).reshape(shape), zero_point, y, ctx, name)
        return y
    table = function(all_codes(a.dtype)[:, None], all_codes(b.dtype)[None, :])
    return lookup((a.view(np.uint8), b.view(np.uint8)), shape, table.reshape(-1), zero_point, ctx, name)


def lookup(
    operands: tuple[Array, ...], shape: Shape, rounded: Rounded, zero_point: Array, ctx: Context, name: str
) -> Array:
    """saturate(rounded[index] + zero_point): the index is the operand, or of two operands a * 256 + b.

    Observes saturation and NaN as often as they occur in the result, not in the table.
    """
    y = np.empty(shape, zero_point.dtype)
    table = np.empty(rounded.shape, zero_point.dtype)
    kinds = _kinds(rounded, zero_point)
    store(np.array(rounded), zero_point, table, Context(observing=False), name)
    watch = ctx.observing and bool(kinds.any())
    saturated, missing, first, seen = 0, 0, -1, 0
    modes: Any = [["readonly"]] * len(operands) + [["writeonly"]]
    with np.nditer([*operands, y], _FLAGS, modes, order="C", buffersize=CHUNK) as iterator:
        for *parts, out in iterator:
            index = parts[0] if len(parts) == 1 else parts[0].astype(np.uint16) << 8 | parts[1]
            np.take(table, index, out=out, mode="clip")
            if watch:
                kind = np.take(kinds, index, mode="clip")
                saturated += int(np.count_nonzero(kind == 1))
                count = int(np.count_nonzero(kind == 2))
                if count and not missing:
                    first = seen + int(np.argmax(kind == 2))
                missing += count
                seen += len(index)
    ctx.observe("saturated", name, saturated, y.size)
    if missing:
        ctx.observe("nan-quantized", name, missing, y.size, [int(i) for i in np.unravel_index(first, shape)])
    return y


def _kinds(rounded: Rounded, zero_point: Array) -> Array:
    """For each element: 0 within the type's range, 1 saturated, 2 NaN."""
    low, high = (v - int(zero_point) for v in limits(zero_point.dtype))
    below = (rounded < low) if low < 0 else False
    kinds = (below | (rounded > high)).astype(np.uint8)
    kinds[np.isnan(rounded)] = 2
    return kinds
