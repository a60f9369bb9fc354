"""Operators of com.microsoft that combine many elements of a quantized tensor: QLinearAveragePool,
QLinearGlobalAveragePool and QLinearSoftmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ops._codes import Rounded, parameters, scale_param, single, zero_param
from qrun.ops._complete import FewEnds
from qrun.ops._float import axis_in
from qrun.ops._op import Array, Context, Real, contrib_op
from qrun.ops._quantize import store
from qrun.ops._rounding import REACH, DoubleDouble, decide
from qrun.ops._signature import InputRecord
from qrun.ops._window import PoolGeometry, SlidingWindow, Spans, channel_layout, counts, round_means, spans, window_sums
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, between_turns, decline_error, kernel_of, quiet
from qrun.ops.lowering.pool import mean_kernel, taps_of

_AVERAGE = "QLinearAveragePool"
_BLOCK = 1 << 20
Pair = tuple[Array, Array]
"""A parameter of X and the same one of Y."""


@frozen
class AveragePoolInputs(InputRecord):
    X: Array
    x_scale: Array
    x_zero_point: Array | None
    y_scale: Array
    y_zero_point: Array | None = None


@contrib_op(_AVERAGE, computes=Real("AveragePool"), types={"T": ("int8 uint8", "X Y")})
def qlinear_average_pool(
    given: AveragePoolInputs,
    *,
    geometry: PoolGeometry,
    channels_last: int = 0,
    count_include_pad: int = 0,
    ctx: Context,
) -> Array:
    """Average each window of a quantized tensor [N,C,spatial...], or [N,spatial...,C] with channels_last.

    int8 or uint8 with scalar parameters. n counts the positions of the window inside the input, or with
    count_include_pad those inside the padded input, as in AveragePool; outside, the real value is 0.

        Y = saturate(RNE(x_scale * sum (X - x_zero_point) / (y_scale * n)) + y_zero_point)

    Exact: the sum is an integer, the quotient is rounded once, as a real number, and before the zero point is added.
    Over no positions it is NaN.
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
            rounded = _pool_ort(x, c)
        else:
            acc = window_sums(x, c.axes, c.where).astype(np.float64) - c.inside * float(c.zeros[0])
            rounded = _round(acc, c.scales, c.zeros, c.divisor, ctx)
        store(rounded, c.zeros[1], out, ctx, "Y")
    return y


@frozen
class _Checked:
    """Scales and zero points of X and Y, the spatial axes and the window over them.

    For each output position: its span, the number of elements it covers, and their divisor.
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
    axes = channel_layout(x, channels_last, _AVERAGE)
    size = tuple(x.shape[a] for a in axes)
    win = geometry.window(size)
    (xs, ys), (xz, yz) = parameters(_AVERAGE, given, ctx)
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
    given = site.input_record(AveragePoolInputs)
    x, modes = given.X, (bool(site.attributes["channels_last"]), bool(site.attributes["count_include_pad"]))
    c = _check(given, PoolGeometry.of(site.attributes), modes, site.ctx)
    site.require_constants()
    order: Literal["rows", "channels"] = "rows" if modes[0] else "channels"
    taps = taps_of(site, [x.shape[a] for a in c.axes], c.window)
    rounding = None if site.ctx.arith == "ort" else lambda sums, n: _round(sums, c.scales, c.zeros, n, site.ctx)
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


def _pool_ort(x: Array, c: _Checked) -> Array:
    """Sums in float32, in the order of the window's positions; then mean, quotient and zero point in float32."""
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
    """Yields the first element of every window, then the second, ..., last axis fastest; 0 if a window has no more."""
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
    """Average all positions of a quantized tensor [N,C,spatial...], or [N,spatial...,C] with channels_last.

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
    store(_round(acc, scales, zeros, np.full((1,) * acc.ndim, float(count)), ctx), zeros[1], y, ctx, "Y")
    return y


def _check_image(given: GlobalPoolInputs, channels_last: int, ctx: Context) -> tuple[Pair, Pair, tuple[int, ...], int]:
    """Refuse what does not fit, and observe scales; returns scales and zero points, the spatial axes and the number of
    their positions."""
    axes = channel_layout(given.X, bool(channels_last), _GLOBAL)
    (xs, ys), (xz, yz) = parameters(_GLOBAL, given, ctx)
    return (xs, ys), (xz, yz), axes, math.prod(given.X.shape[a] for a in axes)


def _round(acc: Array, scales: Pair, zeros: Pair, count: Array, ctx: Context) -> Array:
    """Divide the sums of X - x_zero_point and round the quotients. Integer engines average the codes themselves, if X
    and Y have one scale and zero point; an element in the padding has the code x_zero_point."""
    engine, zero = ctx.integer_engine, zeros[0].astype(np.int64)
    if engine and engine.codes and scales[0] == scales[1] and zeros[0] == zeros[1] and bool(np.all(count > 0)):
        from qrun.arithmetics import average_of_codes

        n = count.astype(np.int64)
        return (average_of_codes(acc.astype(np.int64) + n * zero, n) - zero).astype(np.float64)
    if ctx.arith != "ort":
        return round_means(acc, *scales, count)
    with np.errstate(all="ignore"):
        multiplier = single(scales[0]) / (single(scales[1]) * count.astype(np.float32))
        return np.asarray(np.rint(acc.astype(np.float32) * multiplier).astype(np.float64))


@qlinear_global_average_pool.native
def _lower_global(site: LoweringContext) -> NativeKernel:
    given = site.input_record(GlobalPoolInputs)
    x, last = given.X, site.attributes["channels_last"]
    scales, zeros, axes, count = _check_image(given, last, site.ctx)
    site.require_constants()
    if not count:
        raise decline_error("the image is empty")
    whole, ones, none = tuple(x.shape[a] for a in axes), (1,) * len(axes), (0,) * len(axes)
    taps = taps_of(site, whole, SlidingWindow(whole, ones, ones, none, none, ones))
    order: Literal["rows", "channels"] = "rows" if last else "channels"

    def rounding(sums: Array, n: Array) -> Array:
        return _round(sums, scales, zeros, n, site.ctx)

    return mean_kernel(site, x, taps, np.full(1, float(count)), zeros, scales, rounding, order)


_SOFTMAX = "QLinearSoftmax"
_SOFTMAX_BLOCK = 1 << 18
_EPS = float(np.finfo(np.float64).eps)


@contrib_op(_SOFTMAX, computes=Real("Softmax"), types={"T": ("int8 uint8", "X Y")})
def qlinear_softmax(
    X: Array,
    X_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array,
    *,
    axis: int = -1,
    opset: int,
    ctx: Context,
) -> Array:
    """Apply Softmax to a quantized int8 or uint8 tensor with scalar parameters.

    opset: that of the Softmax meant: from 13 on over one axis, before over all axes from `axis` on.
    x_zero_point cancels out.

        Y = saturate(RNE(exp(X_scale * X) / sum exp(X_scale * X) / y_scale) + y_zero_point)

    Exact: the real value is rounded once; near a tie it is computed with as many digits as needed. ``ort``: a float32
    table of exponentials, float32 sum in order, and floor(1 / y_scale) as multiplier, as onnxruntime does, but where
    its product overflows (a short axis, small y_scale) the quotient is formed first, and an X_scale that is not
    positive and finite is computed as in exact arithmetic. onnx.reference has no such operator: ``onnx-ref`` is exact.
    Source: ONNX operators, Softmax-11 and -13.
    """
    dim = axis_in(axis, X.ndim)
    xs, ys = (
        scale_param(X_scale, "X_scale", _SOFTMAX, ctx),
        scale_param(y_scale, "y_scale", _SOFTMAX, ctx),
    )
    zero_param(x_zero_point, X.dtype, "x_zero_point", "X", _SOFTMAX)
    yz = zero_param(y_zero_point, X.dtype, "y_zero_point", "Y", _SOFTMAX)
    ctx.claim(X.shape, 1)
    moved = X if opset < 13 else np.moveaxis(X, dim, -1)
    length = math.prod(X.shape[dim:]) if opset < 13 else X.shape[dim]
    if not X.size:
        return np.empty(X.shape, X.dtype)
    rows = moved.reshape(-1, length)
    y = np.empty(rows.shape, X.dtype)
    step = max(1, _SOFTMAX_BLOCK // length)
    function = _softmax_ort if ctx.arith == "ort" else _softmax_exact
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        store(function(rows[part], float(xs), ys), yz, y[part], ctx, "Y")
    return np.ascontiguousarray(y.reshape(X.shape) if opset < 13 else np.moveaxis(y.reshape(moved.shape), -1, dim))


@qlinear_softmax.native
def lower_qlinear_softmax(site: LoweringContext) -> NativeKernel:
    """The kernel computes in float64; the reference kernel computes inputs with a result near a tie."""
    from qrun.native.kernels.softmax import Softmax

    site.require_constants()
    x, scale, _, y_scale, y_zero = (np.zeros(0) if array is None else array for array in site.inputs)
    axis, opset = site.attributes["axis"], site.attributes["opset"]
    whole: Callable[..., Array] = qlinear_softmax
    site.ctx.claim(x.shape, 1)
    nothing = x[:0] if x.ndim else x
    site.memo.once(
        ("checked", x.ndim, x.dtype), lambda: whole(nothing, *site.inputs[1:], axis=axis, opset=opset, ctx=quiet(site))
    )
    xs, ys, zero = float(scale.reshape(())), float(y_scale.reshape(())), y_zero.reshape(())
    if site.ctx.arith == "ort" or not (0 < xs < math.inf and 0 < ys < math.inf) or not x.size:
        raise decline_error("an unusual scale, or the arithmetic of onnxruntime")
    index, complete = axis % x.ndim, FewEnds.of(x.dtype, int(zero))
    perm = [*(axis for axis in range(x.ndim) if axis != index), index]
    turns = opset >= 13 and index != x.ndim - 1 and x.shape[index] != x.size
    shape = [x.shape[axis] for axis in perm] if turns else x.shape
    length = x.shape[index] if turns else math.prod(x.shape[index:])
    kernel = kernel_of(site, Softmax(site.engine, shape, length, xs, ys, zero, site.memo), (0,), complete)
    return between_turns(site, kernel, perm) if turns else kernel


def _softmax_exact(rows: Array, xs: float, ys: Array) -> Rounded:
    """Softmax of rows of codes, over the output's scale, rounded exactly."""
    from qrun.ops._functions import nearest_share

    if not math.isfinite(xs):
        return np.full(rows.shape, np.nan)
    length = rows.shape[1]
    codes = rows.astype(np.int16)
    below = np.abs(codes - (codes.max if xs >= 0 else codes.min)(axis=1, keepdims=True))
    with np.errstate(all="ignore"):
        weight = np.exp(-abs(xs) * np.arange(256.0))[below]
        estimate = weight / weight.sum(axis=1, keepdims=True) / ys
        rounded = np.rint(estimate)
        doubtful = np.abs(np.abs(estimate - rounded) - 0.5) <= (length + 32) * REACH * _EPS
        doubtful &= np.abs(rounded) <= REACH
        even = decide(np.full(1, 1 / (ys * length)), lambda at: (DoubleDouble(np.ones(1), np.zeros(1)), ys * length))
    flat = (below == 0).all(axis=1) | (xs == 0)
    rounded[flat] = even
    doubtful[flat] = False
    known: dict[bytes, int] = {}
    for i in np.nonzero(doubtful.any(axis=1))[0]:
        present, first, counts = np.unique(codes[i], return_index=True, return_counts=True)
        for code, at in zip(present, first, strict=True):
            if doubtful[i, at]:
                distance = present - code
                key = np.concatenate([distance, counts, [np.rint(estimate[i, at] - 0.5)]]).tobytes()
                if key not in known:
                    terms = dict(zip(distance.tolist(), counts.tolist(), strict=True))
                    known[key] = nearest_share(terms, xs, float(ys), float(estimate[i, at]))
                rounded[i, codes[i] == code] = known[key]
    return np.asarray(rounded)


def _softmax_ort(rows: Array, xs: float, ys: Array) -> Rounded:
    """Softmax of rows of codes, over the output's scale, in onnxruntime's arithmetic."""
    if not 0 < xs < math.inf:
        return _softmax_exact(rows, xs, ys)
    codes = rows.astype(np.int16)
    with np.errstate(all="ignore"):
        room = float(np.log(np.finfo(np.float32).max / np.float32(rows.shape[1])))
        shift = max(0.0, room - 5) / xs
        table = np.array([math.exp((i - 255 + shift) * xs) for i in range(256)]).astype(np.float32)
        weight = table[255 + codes - codes.max(axis=1, keepdims=True)]
        total = np.add.accumulate(weight, axis=1)[:, -1:]
        levels = np.floor(np.float32(1) / single(ys))
        product = weight * levels
        quotient = np.where(np.isfinite(product), product / total, weight / total * levels)
        quotient[weight == 0] = 0
        return np.asarray(np.rint(quotient).astype(np.float64))
