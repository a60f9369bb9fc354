"""Quantizes real values: rounds, adds the zero point, saturates; and derives scale and zero point from the input as
DynamicQuantizeLinear-11 does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import ml_dtypes
import numpy as np

from qrun.errors import OperatorError
from qrun.ir import Array
from qrun.ir.types import FLOAT8, SMALL
from qrun.ops._context import Arith, Context, first_place, refuse
from qrun.ops._rounding import DoubleDouble, Floats, nearest, odd_single, scale_pair, two_product

BLOCK = 1 << 16
_iinfo: Callable[[Any], Any] = ml_dtypes.iinfo
_INTEGERS = {
    np.dtype(t): (int(_iinfo(t).min), int(_iinfo(t).max))
    for t in (
        np.uint8,
        np.int8,
        np.uint16,
        np.int16,
        np.int32,
        np.uint32,
        ml_dtypes.uint4,
        ml_dtypes.int4,
        ml_dtypes.uint2,
        ml_dtypes.int2,
    )
}


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Smallest and largest value of a quantized integer type."""
    return _INTEGERS[dtype]


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether a type is an integer type."""
    return dtype in _INTEGERS


def requantize(
    acc: Array,
    factors: tuple[Array, ...],
    y_scale: Array,
    zero_point: Array,
    ctx: Context,
    out: Array | None = None,
) -> Array:
    """saturate(RNE(acc * factor * ... / y_scale) + zero_point), of the type of `zero_point`.

    acc:     exact integers below 2**31 in magnitude, float32 or float64.
    factors: one to three scales that broadcast to acc; y_scale, zero_point: scalars.
    out:     the array to write, or None.

    In exact arithmetic the result is the correctly rounded real value, whatever the scales; in ``ort`` it is that of
    onnxruntime's float32 product (core/mlas/lib/quantize.cpp), in ``onnx-ref`` that of onnx.reference. An integer
    engine takes two factors; what has others is exact.
    """
    if out is None:
        out = np.empty(acc.shape, zero_point.dtype)
    if not acc.size:
        return out
    if acc.ndim == 0:
        requantize(acc.reshape(1), factors, y_scale, zero_point, ctx, out.reshape(1))
        return out
    if acc.ndim > 1 and acc.strides[-1] > acc.strides[-2]:
        turned = tuple(np.swapaxes(np.atleast_2d(f), -1, -2) for f in factors)
        requantize(np.swapaxes(acc, -1, -2), turned, y_scale, zero_point, ctx, np.swapaxes(out, -1, -2))
        return out
    if acc.ndim > 1 and acc.size // acc.shape[0] > BLOCK:
        for i in range(acc.shape[0]):
            own = tuple(f[min(i, len(f) - 1)] if f.ndim == acc.ndim else f for f in factors)
            requantize(acc[i], own, y_scale, zero_point, ctx, out[i])
        return out
    engine = ctx.integer_engine
    arith = "engine" if engine and len(factors) == 2 else "exact" if engine else ctx.arith
    multiplier = _multiplier(factors, y_scale, arith)
    step = max(1, BLOCK // max(1, acc.size // acc.shape[0]))
    for start in range(0, acc.shape[0], step):
        rows = slice(start, start + step)
        part = acc[rows]
        scale = _rows(multiplier, rows, acc.ndim)
        if engine and arith == "engine":
            x, w = (_rows(f, rows, acc.ndim) for f in factors)
            store(engine.sums(part, (x, w, y_scale), int(zero_point)).astype(np.float64), zero_point, out[rows], ctx)
        elif arith == "exact":
            own = tuple(_rows(f, rows, acc.ndim) for f in factors)
            store(_exact_block(part, scale, own, y_scale, zero_point), zero_point, out[rows], ctx)
        elif arith == "ort":
            with np.errstate(all="ignore"):
                store(np.rint(part.astype(np.float32) * scale), zero_point, out[rows], ctx)
        else:
            with np.errstate(all="ignore"):
                value = part.astype(np.float64) * scale + float(zero_point)
            store(np.rint(value) - float(zero_point), zero_point, out[rows], ctx)
    return out


def _rows(array: Array, rows: slice, ndim: int) -> Array:
    """Some rows of an array; all of it where it broadcasts along them."""
    return array[rows] if array.ndim == ndim and array.shape[0] != 1 else array


def _multiplier(factors: tuple[Array, ...], y_scale: Array, arith: Arith) -> Array:
    """The product of the factors over y_scale, in the arithmetic's type."""
    with np.errstate(all="ignore"):
        if arith == "exact":
            product = np.asarray(factors[0], np.float64)
            for f in factors[1:]:
                product = product * np.asarray(f, np.float64)
            return np.asarray(product / np.asarray(y_scale, np.float64))
        dtype = np.dtype(np.float32) if arith == "ort" else y_scale.dtype
        single = np.asarray(factors[0], dtype)
        for f in factors[1:]:
            single = np.asarray(single * np.asarray(f, dtype))
        return np.asarray(single / np.asarray(y_scale, dtype)).astype(np.float32)


def _exact_block(acc: Array, multiplier: Array, factors: tuple[Array, ...], y_scale: Array, zero_point: Array) -> Array:
    """Requantize a block exactly: float64, and double-double where this is not sure."""
    low, high = limits(zero_point.dtype)
    reach = float(high - low + 2)
    with np.errstate(all="ignore"):
        if acc.dtype == np.float32:
            single = multiplier.astype(np.float32)
            size, info = np.abs(single), np.finfo(np.float32)
            normal = (size >= info.tiny) & (size <= info.max)
            if np.all(normal):
                multiplier = single
            else:
                acc = acc.astype(np.float64)
        estimate = acc * multiplier
        rounded = np.rint(estimate)
        np.subtract(estimate, rounded, out=estimate)
        np.abs(estimate, out=estimate)
        near = estimate >= 0.5 - reach * 8 * float(np.finfo(estimate.dtype).eps)
        places = np.flatnonzero(near)
        if len(places):
            places = places[np.abs(rounded.reshape(-1)[places]) <= reach]
            where = np.unravel_index(places, acc.shape)
            rounded[where] = _settle(acc, factors, y_scale, where)
    return np.asarray(rounded)


def _settle(acc: Array, factors: tuple[Array, ...], y_scale: Array, where: tuple[Array, ...]) -> Floats:
    """The exact rounding of the elements at `where`, in double-double."""
    num = DoubleDouble(acc[where].astype(np.float64), np.zeros(len(where[0])))
    product = np.ones(len(where[0]))
    for f in factors[:2]:
        product = product * np.broadcast_to(np.asarray(f, np.float64), acc.shape)[where]
    num = two_product(num.hi, product)
    for f in factors[2:]:
        num = scale_pair(num, np.broadcast_to(np.asarray(f, np.float64), acc.shape)[where])
    return nearest(num, np.full(num.hi.shape, float(y_scale)))


def store(rounded: Array, zero_point: Array, out: Array, ctx: Context, name: str = "y") -> None:
    """Add the zero point, saturate and write; NaN becomes the smallest value. Observes NaN and saturation.

    Values below a zero point at the smallest code do not count as saturated: that is a Relu folded into the range.
    """
    low, high = limits(out.dtype)
    zero = int(zero_point)
    if ctx.observing:
        clipped = int(np.count_nonzero(rounded > high - zero))
        if zero > low:
            clipped += int(np.count_nonzero(rounded < low - zero))
        ctx.observe("saturated", name, clipped, rounded.size)
    np.clip(rounded, low - zero, high - zero, out=rounded)
    if rounded.size and np.isnan(rounded.max()):
        missing = np.isnan(rounded)
        ctx.observe("nan-quantized", name, int(missing.sum()), rounded.size)
        rounded[missing] = low - zero
    if zero:
        np.add(rounded, zero, out=rounded)
    out[...] = rounded.astype(np.int32).astype(out.dtype) if out.dtype.kind == "V" else rounded


@cache
def largest(dtype: np.dtype[Any]) -> float:
    """The largest finite value of a narrow type."""
    return SMALL.get(dtype) or float(cast(Any, ml_dtypes.finfo)(dtype).max)


def narrow(values: Array, dtype: np.dtype[Any], saturate: bool = True) -> Array:
    """Round float32 or float64 to the nearest value of `dtype`, ties to even.

    float8, saturate:  out of range and infinite become the largest value of that sign, NaN stays.
    float8, otherwise: a value that rounds past the largest one becomes NaN, in e5m2 infinity.
    float4, float6:    always saturate; NaN, which they lack, becomes the largest value.

    Exact: the value is first cut to bfloat16 by rounding to odd, which keeps every later rounding to at most six
    bits right (Boldo & Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd"), and then looked up. Source: ONNX operators, Cast-28 (tables); docs/technical/float4.md.
    """
    single = odd_single(values) if values.dtype == np.float64 else np.asarray(values, np.float32)
    bits = single.view(np.uint32)
    odd = (bits & np.uint32(0xFFFF)) != 0
    return np.asarray(_table(dtype, saturate or dtype in SMALL)[(bits >> np.uint32(16)) | odd])


@cache
def _table(dtype: np.dtype[Any], saturate: bool) -> Array:
    """The `dtype` value of every bfloat16 bit pattern."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        values = codes.astype(np.float32)
        if saturate:
            values = np.clip(values, -largest(dtype), largest(dtype))
        if dtype in SMALL:
            values[np.isnan(values)] = largest(dtype)
        return np.asarray(values.astype(dtype))


def round_codes(q: Array, zero: Array | None, out: Array, counts: Counts) -> None:
    """saturate(RNE(q) + zero) in place; NaN becomes the smallest value."""
    low, high = limits(out.dtype)
    with np.errstate(all="ignore"):
        np.rint(q, out=q)
        if zero is not None and zero.size == 1:
            offset: Any = int(zero.reshape(()))
        else:
            offset = 0 if zero is None else zero.astype(np.int64).astype(q.dtype)
        bottom, top = low - offset, high - offset
        counts.integers(q, bottom, top)
        np.clip(q, bottom, top, out=q)
        if np.isnan(q.max()):
            counts.nan(q)
            np.copyto(q, np.asarray(bottom, q.dtype), where=np.isnan(q))
        if zero is not None:
            np.add(q, offset, out=q)
        if out.dtype.kind == "V":
            out[...] = q.astype(np.int8).astype(out.dtype)
        else:
            np.copyto(out, q, casting="unsafe")


class Counts:
    """Counts saturated elements, NaN and infinities over the blocks of one tensor."""

    def __init__(self, observing: bool) -> None:
        self.observing = observing
        self.saturated = self.missing = 0
        self.infinite = False

    def integers(self, q: Array, bottom: Any, top: Any) -> None:
        """Count numbers outside bottom .. top, and note infinite ones."""
        if self.observing:
            self.infinite |= bool(np.isinf(q).any())
            self.saturated += int(np.count_nonzero(q > top))
            if np.any(bottom):
                self.saturated += int(np.count_nonzero(q < np.where(bottom, bottom, -np.inf)))

    def nan(self, q: Array) -> None:
        """Count NaN."""
        self.missing += int(np.count_nonzero(np.isnan(q)))

    def narrow(self, q: Array, target: np.dtype[Any]) -> None:
        """Count numbers outside the range of a narrow float type, and NaN."""
        if self.observing:
            self.saturated += int(np.count_nonzero(np.abs(q) > largest(target)))
            if target not in FLOAT8:
                self.missing += int(np.count_nonzero(np.isnan(q)))

    def report(self, ctx: Context, x: Array) -> None:
        """Observe the counts."""
        ctx.observe("saturated", "y", self.saturated, x.size)
        if self.missing and ctx.observing:
            ctx.observe("nan-quantized", "x", self.missing, x.size, _first_index(np.isnan(x)))
        if self.infinite:
            infinite = np.isinf(x)
            ctx.observe("infinite-quantized", "x", int(np.count_nonzero(infinite)), x.size, _first_index(infinite))


def _first_index(found: Array) -> tuple[int, ...]:
    """The index of the first element that is true; () if there is none."""
    return first_place(found) if found.any() else ()


_F32 = np.float32
_NO_ZERO_POINT = "DynamicQuantizeLinear-11 derives the zero point from min x; it would be NaN."
_LANES = (
    "onnxruntime's range of values with NaN depends on the NaN's place and on the CPU (in a vector lane it hides the "
    "elements before it), so that --arith ort has nothing to emulate."
)


def dynamic_parameters(x: Array, arith: Arith = "exact", name: str = "x") -> tuple[Array, Array]:
    """Scale (float32, rank 0) and zero point (uint8, rank 0) for quantizing x, float32 of any shape, to uint8.

        top = max(0, max x), bottom = min(0, min x)
        scale = (top - bottom) / 255                      zero_point = RNE(clip(0 - bottom / scale, 0, 255))

    Every step is one float32 operation, as in the function body of DynamicQuantizeLinear-11. Where it divides 0 by 0
    (x empty, all zeros, or so small that the scale is 0): scale 1 and zero point 0; ``onnx-ref`` says scale 1/255
    for all zeros. NaN and -inf in x are refused, since they leave no number as zero point; ``ort`` takes -inf as
    onnxruntime does, but refuses NaN: there the elements before a NaN that share its vector lane are forgotten, so that
    the range depends on its place and on the CPU. name: of x, as the operator calls it.
    """
    if not x.size:
        return np.array(1, _F32), np.array(0, np.uint8)
    with np.errstate(all="ignore"):
        bottom, top = _F32(np.min(x)), _F32(np.max(x))
    if np.isnan(bottom):
        raise _refusal(name, "NaN", _LANES if arith == "ort" else _NO_ZERO_POINT)
    if bottom == -np.inf and arith != "ort":
        raise _refusal(name, "-inf", _NO_ZERO_POINT)
    return range_parameters(bottom, top, arith)


def quantize_dynamically(x: Array, arith: Arith = "exact", name: str = "x") -> tuple[Array, Array, Array]:
    """The results of DynamicQuantizeLinear for x, float32: codes (uint8), scale and zero point, as above."""
    scale, zero = dynamic_parameters(x, arith, name)
    codes = np.empty(x.shape, np.uint8)
    source, target = np.ascontiguousarray(x).reshape(-1), codes.reshape(-1)
    buffer = np.empty(min(BLOCK, x.size), np.float32)
    bottom, top = -float(zero), 255 - float(zero)
    with np.errstate(all="ignore"):
        for first in range(0, x.size, BLOCK):
            q = buffer[: min(BLOCK, x.size - first)]
            np.divide(source[first : first + BLOCK], scale, out=q)
            np.rint(q, out=q)
            np.clip(q, bottom, top, out=q)
            if np.isnan(q.max()):
                q[np.isnan(q)] = bottom
            np.subtract(q, bottom, out=q)
            np.copyto(target[first : first + BLOCK], q, casting="unsafe")
    return codes, scale, zero


def _refusal(name: str, value: str, why: str) -> OperatorError:
    """The error of a scale or zero point that holds NaN or infinity."""
    fix = "find the node that makes it: qrun run MODEL -t '*'"
    return refuse(f"{name} holds {value}", name, "numbers", value, why=why, fix=fix, code="QR202")


def range_parameters(bottom: np.float32, top: np.float32, arith: Arith) -> tuple[Array, Array]:
    """The same for values from bottom to top, which are not NaN; top may be infinite, and in ``ort`` bottom too."""
    with np.errstate(all="ignore"):
        bottom, top = min(_F32(0), bottom), max(_F32(0), top)
        scale = (top - bottom) / _F32(255)
        if not scale:
            unit = _F32(1) / _F32(255) if arith == "onnx-ref" and top == bottom else _F32(1)
            return np.array(unit, _F32), np.array(0, np.uint8)
        zero = _F32(0) - bottom / scale
        zero = _F32(255) if np.isnan(zero) else np.rint(np.clip(zero, _F32(0), _F32(255)))
    return np.array(scale, _F32), np.array(zero, np.uint8)
