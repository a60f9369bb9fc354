"""QLinearGlobalAveragePool of com.microsoft."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops._codes import parameters, single
from qrun.ops._context import Arith, Context
from qrun.ops._native import LoweringContext, NativeKernel, declined
from qrun.ops._native_pool import image_taps, mean_kernel
from qrun.ops._op import Real, op
from qrun.ops._pooling import channel_layout, pooled
from qrun.ops._quantize import store

_NAME = "QLinearGlobalAveragePool"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    computes=Real("GlobalAveragePool"),
    types={"T": ("int8 uint8", "X x_zero_point y_zero_point"), "float": ("float", "x_scale y_scale")},
)
def qlinear_global_average_pool(
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    channels_last: int = 0,
    ctx: Context,
) -> Array:
    """Mean over all spatial positions of a quantized tensor [N,C,spatial...], or [N,spatial...,C] if channels_last.

    int8 or uint8 with scalar parameters; the spatial axes of the output are 1, and n is how many positions there are.

        Y = saturate(RNE(x_scale * sum (X - x_zero_point) / (y_scale * n)) + y_zero_point)

    Exact: the sum is an integer and the quotient is rounded once, as a real number. Of no positions it is NaN.
    ``ort``: float32 multiplier x_scale / (y_scale * n). onnx.reference has no such operator: ``onnx-ref`` is exact.
    Source: onnxruntime ContribOperators, com.microsoft.QLinearGlobalAveragePool.
    """
    c = _check(X, (x_scale, y_scale), (x_zero_point, y_zero_point), channels_last, ctx)
    ctx.claim([n for axis, n in enumerate(X.shape) if axis not in c.axes], 8)
    wide = np.int32 if c.count < 1 << 23 else np.int64
    total = np.asarray(np.sum(X, axis=c.axes, dtype=wide, keepdims=True))
    acc = total.astype(np.float64) - float(c.count) * float(c.x_zero)
    y = np.empty(acc.shape, X.dtype)
    store(_rounded(acc, c, np.full((1,) * acc.ndim, float(c.count)), ctx.arith), c.y_zero, y, ctx, "Y")
    return y


@frozen
class _Checked:
    """Scalar parameters, the spatial axes, and how many positions there are."""

    x_scale: Array
    y_scale: Array
    x_zero: Array
    y_zero: Array
    axes: tuple[int, ...]
    count: int


def _check(
    x: Array, scales: tuple[Array, Array], zeros: tuple[Array, Array], channels_last: int, ctx: Context
) -> _Checked:
    """Refuse what does not fit, and observe scales."""
    axes = channel_layout(x, bool(channels_last), _NAME)
    (xs, ys), (xz, yz) = parameters(_NAME, ctx, x=(x.dtype, scales[0], zeros[0]), y=(x.dtype, scales[1], zeros[1]))
    return _Checked(xs, ys, xz, yz, axes, math.prod(x.shape[a] for a in axes))


def _rounded(acc: Array, c: _Checked, count: Array, arith: Arith) -> Array:
    """Sums to rounded quotients."""
    if arith != "ort":
        return pooled(acc, c.x_scale, c.y_scale, count)
    with np.errstate(all="ignore"):
        multiplier = single(c.x_scale) / (single(c.y_scale) * count.astype(np.float32))
        return np.asarray(np.rint(acc.astype(np.float32) * multiplier).astype(np.float64))


@qlinear_global_average_pool.native
def _lower(site: LoweringContext) -> NativeKernel:
    x, xs, xz, ys, yz = site.inputs
    c = _check(x, (xs, ys), (xz, yz), site.attributes["channels_last"], site.ctx)
    site.require_constants()
    if not c.count:
        raise declined("the image is empty")
    taps = image_taps(site, [x.shape[a] for a in c.axes])
    order: Literal["rows", "channels"] = "rows" if site.attributes["channels_last"] else "channels"
    return mean_kernel(
        site,
        x,
        taps,
        np.full(1, float(c.count)),
        (c.x_zero, c.y_zero),
        (c.x_scale, c.y_scale),
        lambda sums, count: _rounded(sums, c, count, site.ctx.arith),
        order,
    )
