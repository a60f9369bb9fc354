"""QLinearSigmoid and QLinearLeakyRelu of com.microsoft."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._codes import Rounded, all_codes, parameters, single, unary
from qrun.ops._functions import nearest_share
from qrun.ops._op import Array, Context, Real, contrib_op
from qrun.ops._rounding import REACH, decide, fma32, two_product
from qrun.ops._signature import InputRecord
from qrun.ops.lowering.pointwise import unary_kernel

_SIGMOID = "QLinearSigmoid"
_DOUBT = 1e-9
_ODD = (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01)
_EVEN = (
    6.10247389755681e-13,
    5.76102136993427e-09,
    6.29106785017040e-06,
    1.70198817374094e-03,
    1.16817656904453e-01,
    9.93151921023180e-01,
)


@frozen
class UnaryInputs(InputRecord):
    X: Array
    X_scale: Array
    X_zero_point: Array | None
    Y_scale: Array
    Y_zero_point: Array | None = None


@contrib_op(
    _SIGMOID,
    computes=Real("Sigmoid"),
    form="pointwise",
    native=partial(unary_kernel, zero=4),
    types={"T": ("int8 uint8", "X Y")},
)
def qlinear_sigmoid(given: UnaryInputs, *, ctx: Context) -> Array:
    """Logistic function of a quantized tensor, int8 or uint8, with scalar parameters.

        Y = saturate(RNE(1 / (1 + exp(-(X - X_zero_point) * X_scale)) / Y_scale) + Y_zero_point)

    Exact: the real value is rounded once; near a tie it is computed with as many digits as it takes.
    ``ort``: float32 steps and the rational approximation that onnxruntime evaluates with fused multiply-adds on x86.
    onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    (xs, ys), (xz, yz) = parameters(_SIGMOID, given, ctx)
    centre = all_codes(given.X.dtype).astype(np.float64) - float(xz)
    return unary(given.X, (_sigmoid_ort if ctx.arith == "ort" else _sigmoid_exact)(centre, xs, ys), yz, ctx, "Y")


def _sigmoid_exact(centre: Array, xs: Array, ys: Array) -> Rounded:
    with np.errstate(all="ignore"):
        estimate = 1 / (1 + np.exp(-(centre * xs))) / ys
        rounded = np.rint(estimate)
        doubtful = np.abs(np.abs(estimate - rounded) - 0.5) <= _DOUBT
        doubtful &= np.abs(rounded) <= REACH
    for i in np.nonzero(doubtful)[0]:
        terms = {0: 1, -int(centre[i]): 1} if centre[i] else {0: 2}
        rounded[i] = nearest_share(terms, float(xs), float(ys), float(estimate[i]))
    return np.asarray(rounded)


def _sigmoid_ort(centre: Array, xs: Array, ys: Array) -> Rounded:
    with np.errstate(all="ignore"):
        value = logistic32(centre.astype(np.float32) * single(xs))
        return np.asarray(np.rint(value / single(ys)).astype(np.float64))


def logistic32(x: Array, step: Callable[[Any, Any, Any], Array] = fma32) -> Array:
    """The logistic function of float32 values as onnxruntime computes it on x86, bit for bit.

    step: a * b + c in float32, with one rounding on CPUs with FMA.
    """
    with np.errstate(all="ignore"):
        v = np.clip(x, np.float32(-18), np.float32(18))
        square = v * v
        p, q = np.full_like(v, _ODD[0]), np.full_like(v, _EVEN[0])
        for c in _ODD[1:]:
            p = step(p, square, np.float32(c))
        for c in _EVEN[1:]:
            q = step(q, square, np.float32(c))
        return np.asarray(np.clip(p * v / q + np.float32(0.5), np.float32(0), np.float32(1)))


_LEAKY_RELU = "QLinearLeakyRelu"


@contrib_op(
    _LEAKY_RELU,
    computes=Real("LeakyRelu"),
    form="pointwise",
    native=partial(unary_kernel, zero=4),
    types={"T": ("int8 uint8", "X Y")},
)
def qlinear_leaky_relu(given: UnaryInputs, *, alpha: float = 0.01, ctx: Context) -> Array:
    """LeakyRelu of a quantized tensor, int8 or uint8, with scalar parameters; alpha is a float32 number.

        v = (X - X_zero_point) * X_scale
        Y = saturate(RNE((v if v >= 0 else alpha * v) / Y_scale) + Y_zero_point)

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 steps. onnx.reference has no such
    operator: ``onnx-ref`` is exact.
    """
    (xs, ys), (xz, yz) = parameters(_LEAKY_RELU, given, ctx)
    centre = all_codes(given.X.dtype).astype(np.float64) - float(xz)
    with np.errstate(all="ignore"):
        slope = np.float64(np.float32(alpha))
    return unary(given.X, (_leaky_ort if ctx.arith == "ort" else _leaky_exact)(centre, xs, slope, ys), yz, ctx, "Y")


def _leaky_exact(centre: Array, xs: Array, slope: np.float64, ys: Array) -> Rounded:
    with np.errstate(all="ignore"):
        factor = np.where(centre * xs < 0, slope * xs, xs)
        return decide(centre * factor / ys, lambda at: (two_product(centre[at], factor[at]), ys))


def _leaky_ort(centre: Array, xs: Array, slope: np.float64, ys: Array) -> Rounded:
    with np.errstate(all="ignore"):
        value = centre.astype(np.float32) * single(xs)
        value = np.where(value >= 0, value, np.float32(slope) * value)
        return np.asarray(np.rint(value / single(ys)).astype(np.float64))
