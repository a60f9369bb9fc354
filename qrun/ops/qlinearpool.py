"""QLinearAveragePool and QLinearGlobalAveragePool of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ops._codes import parameters, single
from qrun.ops._context import Arith
from qrun.ops._op import Array, Context, Real, contrib_op
from qrun.ops._quantize import store
from qrun.ops._signature import InputRecord
from qrun.ops._window import PoolGeometry, SlidingWindow, Spans, channel_layout, counts, pooled, spans, window_sums
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined
from qrun.ops.lowering.pool import mean_kernel, taps_of

_NAME = "QLinearAveragePool"
_BLOCK = 1 << 20
Pair = tuple[Array, Array]
"""Of X and of Y."""


@frozen
class AveragePoolInputs(InputRecord):
    X: Array
    x_scale: Array
    x_zero_point: Array | None
    y_scale: Array
    y_zero_point: Array | None = None


@contrib_op(_NAME, computes=Real("AveragePool"), types={"T": ("int8 uint8", "X Y")})
def qlinear_average_pool(
    given: AveragePoolInputs,
    *,
    geometry: PoolGeometry,
    channels_last: int = 0,
    count_include_pad: int = 0,
    ctx: Context,
) -> Array:
    """Mean over sliding windows of a quantized tensor [N,C,spatial...], or [N,spatial...,C] if channels_last.

    int8 or uint8 with scalar parameters. n counts the positions of the window inside the input, or with
    count_include_pad those inside the padded input, as in AveragePool; outside, the real value is 0.

        Y = saturate(RNE(x_scale * sum (X - x_zero_point) / (y_scale * n)) + y_zero_point)

    Exact: the sum is an integer, the quotient is rounded once, as a real number, and before the zero point is added.
    Of no positions it is NaN.
    ``ort``: float32 sum, mean and quotient, the zero point added before rounding; count_include_pad divides by the
    whole kernel even where ceil_mode makes it reach past the padding. Padding is never negative (onnxruntime crops
    for SAME_UPPER with strides longer than the kernel). onnx.reference has no such operator: ``onnx-ref`` is exact.
    Raises OperatorError for geometry that AveragePool's page forbids.
    Source: ONNX operators, AveragePool-22.
    """
    X = given.X
    c = _check(given, geometry, (bool(channels_last), bool(count_include_pad)), ctx)
    y = np.empty(c.shape, X.dtype)
    for part in _blocks(X.shape, c.shape, bool(channels_last)):
        x, out = X[part], y[part]
        if ctx.arith == "ort":
            rounded = _ort(x, c)
        else:
            acc = window_sums(x, c.axes, c.where).astype(np.float64) - c.inside * float(c.zeros[0])
            rounded = pooled(acc, *c.scales, c.divisor)
        store(rounded, c.zeros[1], out, ctx, "Y")
    return y


@frozen
class _Checked:
    """Scales and zero points of X and Y, the spatial axes and the window over them.

    Per output position: where it is, how many elements it covers, and their divisor.
    """

    scales: Pair
    zeros: Pair
    axes: tuple[int, ...]
    window: SlidingWindow
    where: Spans
    inside: Array
    divisor: Array
    shape: list[int]


def _check(given: AveragePoolInputs, geometry: PoolGeometry, modes: tuple[bool, bool], ctx: Context) -> _Checked:
    """Refuse what the page forbids, observe scales, and claim the output. modes: channels_last, count_include_pad."""
    x, (channels_last, count_include_pad) = given.X, modes
    axes = channel_layout(x, channels_last, _NAME)
    size = tuple(x.shape[a] for a in axes)
    win = geometry.window(size)
    (xs, ys), (xz, yz) = parameters(_NAME, given, ctx)
    shape = list(x.shape)
    for axis, length in zip(axes, win.out, strict=True):
        shape[axis] = length
    ctx.claim(shape, x.itemsize)
    ctx.claim((sum(win.out),), 32, "window positions")
    ctx.claim(win.out, 32, "window sums")
    where = spans(size, win)
    inside = divisor = counts(where, axes, x.ndim)
    if count_include_pad:
        divisor = np.full(inside.shape, float(math.prod(win.kernel)))
        if ctx.arith != "ort":
            none = (0,) * len(size)
            full = tuple(n + b + e for n, b, e in zip(size, win.begin, win.end, strict=True))
            divisor = counts(spans(full, replace(win, begin=none, end=none)), axes, x.ndim)
    return _Checked((xs, ys), (xz, yz), axes, win, where, inside, divisor, shape)


@qlinear_average_pool.native
def _lower(site: LoweringContext) -> NativeKernel:
    given = site.given(AveragePoolInputs)
    x, modes = given.X, (bool(site.attributes["channels_last"]), bool(site.attributes["count_include_pad"]))
    c = _check(given, PoolGeometry.of(site.attributes), modes, site.ctx)
    site.require_constants()
    order: Literal["rows", "channels"] = "rows" if modes[0] else "channels"
    taps = taps_of(site, [x.shape[a] for a in c.axes], c.window)
    rounding = None if site.ctx.arith == "ort" else lambda sums, count: pooled(sums, *c.scales, count)
    return mean_kernel(site, x, taps, c.divisor.reshape(-1), c.zeros, c.scales, rounding, order)


def _blocks(shape: tuple[int, ...], out: list[int], channels_last: bool) -> list[tuple[slice, ...]]:
    """Slices of the leading axes (N, and C unless it is last) that keep intermediates small."""
    lead = 1 if channels_last else 2
    each = max(1, math.prod(shape[lead:]), math.prod(out[lead:]))
    if lead == 1 or shape[1] * each <= _BLOCK:
        step = max(1, _BLOCK // max(1, each * math.prod(shape[1:lead])))
        return [(slice(i, i + step),) for i in range(0, shape[0], step)]
    step = max(1, _BLOCK // each)
    return [(slice(n, n + 1), slice(i, i + step)) for n in range(shape[0]) for i in range(0, shape[1], step)]


def _ort(x: Array, c: _Checked) -> Array:
    """Sum in float32, in the order of the window's positions; then mean, quotient and zero point in float32."""
    shape = list(x.shape)
    for axis, (start, _) in zip(c.axes, c.where, strict=True):
        shape[axis] = len(start)
    with np.errstate(all="ignore"):
        total = np.zeros(shape, np.float32)
        for value in _positions((x.astype(np.float32) - single(c.zeros[0])) * single(c.scales[0]), c.axes, c.where):
            total += value
        mean, zero = total / c.divisor.astype(np.float32), c.zeros[1]
        return np.asarray(np.rint(mean / single(c.scales[1]) + single(zero)).astype(np.float64) - float(zero))


def _positions(value: Array, axes: tuple[int, ...], where: Spans) -> Iterator[Array]:
    """The first element of every window, then the second, ..., last axis fastest; 0 where a window has no more."""
    if not axes:
        yield value
        return
    axis, (start, end) = axes[0], where[0]
    for step in range(int((end - start).max(initial=0))):
        inside = start + step < end
        picked = np.take(value, np.minimum(start + step, value.shape[axis] - 1), axis=axis)
        if not inside.all():
            picked[(slice(None),) * axis + (~inside,)] = 0
        yield from _positions(picked, axes[1:], where[1:])


_GLOBAL = "QLinearGlobalAveragePool"


@frozen
class GlobalPoolInputs(InputRecord):
    X: Array
    x_scale: Array
    x_zero_point: Array
    y_scale: Array
    y_zero_point: Array


@contrib_op(_GLOBAL, computes=Real("GlobalAveragePool"), types={"T": ("int8 uint8", "X Y")})
def qlinear_global_average_pool(given: GlobalPoolInputs, *, channels_last: int = 0, ctx: Context) -> Array:
    """Mean over all spatial positions of a quantized tensor [N,C,spatial...], or [N,spatial...,C] if channels_last.

    int8 or uint8 with scalar parameters; the spatial axes of the output are 1, and n is how many positions there are.

        Y = saturate(RNE(x_scale * sum (X - x_zero_point) / (y_scale * n)) + y_zero_point)

    Exact: the sum is an integer and the quotient is rounded once, as a real number. Of no positions it is NaN.
    ``ort``: float32 multiplier x_scale / (y_scale * n). onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    X, (scales, zeros, axes, count) = given.X, _check_image(given, channels_last, ctx)
    ctx.claim([n for axis, n in enumerate(X.shape) if axis not in axes], 8)
    wide = np.int32 if count < 1 << 23 else np.int64
    total = np.asarray(np.sum(X, axis=axes, dtype=wide, keepdims=True))
    acc = total.astype(np.float64) - float(count) * float(zeros[0])
    y = np.empty(acc.shape, X.dtype)
    store(_rounded(acc, scales, np.full((1,) * acc.ndim, float(count)), ctx.arith), zeros[1], y, ctx, "Y")
    return y


def _check_image(given: GlobalPoolInputs, channels_last: int, ctx: Context) -> tuple[Pair, Pair, tuple[int, ...], int]:
    """Refuse what does not fit, and observe scales; scales and zero points,
    the spatial axes and how many positions they have."""
    axes = channel_layout(given.X, bool(channels_last), _GLOBAL)
    (xs, ys), (xz, yz) = parameters(_GLOBAL, given, ctx)
    return (xs, ys), (xz, yz), axes, math.prod(given.X.shape[a] for a in axes)


def _rounded(acc: Array, scales: Pair, count: Array, arith: Arith) -> Array:
    """Sums to rounded quotients."""
    if arith != "ort":
        return pooled(acc, *scales, count)
    with np.errstate(all="ignore"):
        multiplier = single(scales[0]) / (single(scales[1]) * count.astype(np.float32))
        return np.asarray(np.rint(acc.astype(np.float32) * multiplier).astype(np.float64))


@qlinear_global_average_pool.native
def _lower_global(site: LoweringContext) -> NativeKernel:
    given = site.given(GlobalPoolInputs)
    x, last = given.X, site.attributes["channels_last"]
    scales, zeros, axes, count = _check_image(given, last, site.ctx)
    site.require_constants()
    if not count:
        raise declined("the image is empty")
    whole, ones, none = tuple(x.shape[a] for a in axes), (1,) * len(axes), (0,) * len(axes)
    taps = taps_of(site, whole, SlidingWindow(whole, ones, ones, none, none, ones))
    order: Literal["rows", "channels"] = "rows" if last else "channels"

    def rounding(sums: Array, n: Array) -> Array:
        return _rounded(sums, scales, n, site.ctx.arith)

    return mean_kernel(site, x, taps, np.full(1, float(count)), zeros, scales, rounding, order)
