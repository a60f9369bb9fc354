"""QLinearLeakyRelu of com.microsoft."""

from __future__ import annotations

from functools import partial

import numpy as np

from qrun.ir import Array
from qrun.ops._codes import Rounded, all_codes, parameters, single, unary
from qrun.ops._context import Context
from qrun.ops._native_pointwise import unary_kernel
from qrun.ops._op import Real, op
from qrun.ops._rounding import decide, two_product

_NAME = "QLinearLeakyRelu"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    computes=Real("LeakyRelu"),
    form="pointwise",
    native=partial(unary_kernel, zero=4),
    types={"T": ("int8 uint8", "X X_zero_point Y_zero_point"), "float": ("float", "X_scale Y_scale")},
)
def qlinear_leaky_relu(
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
    ctx: Context,
) -> Array:
    """LeakyRelu of a quantized tensor, int8 or uint8, with scalar parameters; alpha is a float32 number.

        v = (X - X_zero_point) * X_scale
        Y = saturate(RNE((v if v >= 0 else alpha * v) / Y_scale) + Y_zero_point)

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 steps. onnx.reference has no such
    operator: ``onnx-ref`` is exact.
    Source: onnxruntime ContribOperators, com.microsoft.QLinearLeakyRelu.
    """
    of = {"X": (X.dtype, X_scale, X_zero_point), "Y": (X.dtype, Y_scale, Y_zero_point)}
    (xs, ys), (xz, yz) = parameters(_NAME, ctx, **of)
    centre = all_codes(X.dtype).astype(np.float64) - float(xz)
    with np.errstate(all="ignore"):
        slope = np.float64(np.float32(alpha))
    return unary(X, (_ort if ctx.arith == "ort" else _exact)(centre, xs, slope, ys), yz, ctx, "Y")


def _exact(centre: Array, xs: Array, slope: np.float64, ys: Array) -> Rounded:
    with np.errstate(all="ignore"):
        factor = np.where(centre * xs < 0, slope * xs, xs)
        return decide(centre * factor / ys, lambda at: (two_product(centre[at], factor[at]), ys))


def _ort(centre: Array, xs: Array, slope: np.float64, ys: Array) -> Rounded:
    with np.errstate(all="ignore"):
        value = centre.astype(np.float32) * single(xs)
        value = np.where(value >= 0, value, np.float32(slope) * value)
        return np.asarray(np.rint(value / single(ys)).astype(np.float64))
