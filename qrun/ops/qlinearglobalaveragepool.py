"""QLinearGlobalAveragePool of com.microsoft."""

from __future__ import annotations

import math

import numpy as np

from qrun.ir import Array
from qrun.ops._codes import scale_param, single, zero_param
from qrun.ops._context import Context
from qrun.ops._op import op
from qrun.ops._pooling import channel_layout, pooled
from qrun.ops._quantize import store

_NAME = "QLinearGlobalAveragePool"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
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
    ctx: Context | None = None,
) -> Array:
    """Mean over all spatial positions of a quantized tensor [N,C,spatial...], or [N,spatial...,C] if channels_last.

    int8 or uint8 with scalar parameters; the spatial axes of the output are 1, and n is how many positions there are.

        Y = saturate(RNE(x_scale * sum (X - x_zero_point) / (y_scale * n)) + y_zero_point)

    Exact: the sum is an integer and the quotient is rounded once, as a real number. Of no positions it is NaN.
    ``ort``: float32 multiplier x_scale / (y_scale * n). onnx.reference has no such operator: ``onnx-ref`` is exact.
    Source: onnxruntime ContribOperators, com.microsoft.QLinearGlobalAveragePool.
    """
    ctx = ctx or Context()
    axes = channel_layout(X, bool(channels_last), _NAME)
    xs, ys = scale_param(x_scale, "x_scale", _NAME, ctx), scale_param(y_scale, "y_scale", _NAME, ctx)
    xz = zero_param(x_zero_point, X.dtype, "x_zero_point", "X", _NAME)
    yz = zero_param(y_zero_point, X.dtype, "y_zero_point", "Y", _NAME)
    n = math.prod(X.shape[a] for a in axes)
    wide = np.int32 if n < 1 << 23 else np.int64
    total = np.asarray(np.sum(X, axis=axes, dtype=wide, keepdims=True))
    acc = total.astype(np.float64) - float(n) * float(xz)
    y = np.empty(acc.shape, X.dtype)
    if ctx.arith == "ort":
        with np.errstate(all="ignore"):
            multiplier = single(xs) / (single(ys) * np.float32(n))
            rounded = np.rint(acc.astype(np.float32) * multiplier).astype(np.float64)
    else:
        rounded = pooled(acc, xs, ys, np.full((1,) * acc.ndim, float(n)))
    store(rounded, yz, y, ctx, "Y")
    return y
