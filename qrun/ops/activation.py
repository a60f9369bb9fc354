"""Elementwise functions of one tensor: Relu and its relatives, Clip, Sigmoid, Gelu, Swish, Softplus ..., Tanh,
Exp, Sqrt."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from qrun.formulas import single as formulas
from qrun.formulas import wide
from qrun.ops import _functions
from qrun.ops._float import bounds, is_integer, narrow, single, unary, widen
from qrun.ops._op import Array, bad_attribute, op
from qrun.ops._polynomials import rounded_double, rounded_single
from qrun.ops._shape import scalar
from qrun.ops.lowering.float32 import function, function_kernel, pointwise, pointwise_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined

FLOAT_MAX = 3.4028234663852886e38


@op("Relu", since=6, form="pointwise", native=pointwise("relu"))
def relu(X: Array) -> Array:
    """max(X, 0), exact; NaN stays NaN, and -0 becomes 0. Signed integers since version 14."""
    zero = X.dtype.type(0)
    with np.errstate(all="ignore"):
        return np.where(np.less_equal(X, zero), zero, X)


@op("LeakyRelu", since=6, form="pointwise", native=function("leaky_relu", "alpha"))
def leaky_relu(X: Array, *, alpha: float = 0.01) -> Array:
    """X where X >= 0, else alpha * X, correctly rounded."""
    slope = single(alpha)
    if X.dtype == np.float32:
        with np.errstate(all="ignore"):
            return np.where(X < 0, np.float32(slope) * X, X)
    return unary(lambda x: np.where(x < 0, slope * x, x), X)


@op("Clip", since=6, form="pointwise")
def clip_6(input: Array, *, min_: float = -FLOAT_MAX, max_: float = FLOAT_MAX) -> Array:
    """min(max_, max(input, min_)), exact; the limits default to those of float32, whatever the type; NaN stays NaN.

    Source: ONNX operators, Clip-6.
    """
    low, high = (narrow(single(limit), input.dtype) for limit in (min_, max_))
    return _between(input, low, high)


@clip_6.native
def _lower_clip_6(site: LoweringContext) -> NativeKernel:
    limits = [single(site.attributes[name]) for name in ("min_", "max_")]
    return pointwise_kernel(site, "clip", lambda: _numbers(limits))


@op("Clip", since=11, form="pointwise")
def clip(input: Array, min: Array | None = None, max: Array | None = None) -> Array:
    """min(max, max(input, min)), exact: `max` everywhere if min > max. min and max are scalars of input's type.

    Integers since version 12. Omitted limits are the type's smallest and largest finite value, so infinities become
    finite. NaN stays NaN; a limit of NaN makes every element NaN; a zero between or at the limits keeps its sign.
    Raises OperatorError for a limit that is not a scalar.
    """
    for name, limit in (("min", min), ("max", max)):
        if limit is not None:
            scalar(limit, name)
    if is_integer(input.dtype) and min is None and max is None:
        return input
    lowest, highest = bounds(input.dtype)
    low = lowest if min is None else min.reshape(())
    high = highest if max is None else max.reshape(())
    return _between(input, low, high)


@clip.native
def _lower_clip(site: LoweringContext) -> NativeKernel:
    ends = (float(end) for end in bounds(site.narrow or np.dtype(np.float32)))
    given = zip(site.inputs[1:], ends, strict=True)
    return pointwise_kernel(site, "clip", lambda: _numbers(y if x is None else float(x.reshape(())) for x, y in given))


def _numbers(limits: Iterable[float]) -> list[float]:
    found = list(limits)
    if any(map(math.isnan, found)):
        raise declined("a limit is NaN")
    return found


def _between(x: Array, low: Array, high: Array) -> Array:
    """x as it is, with its sign, where it equals a limit; NaN everywhere if a limit is NaN."""
    if not is_integer(x.dtype) and (np.isnan(low) or np.isnan(high)):
        return np.full(x.shape, np.nan, x.dtype)
    with np.errstate(all="ignore"):
        raised = np.where(x < low, low, x)
        return np.where(raised > high, high, raised)


@op("Sigmoid", since=6, form="pointwise", native=function("sigmoid"))
def sigmoid(X: Array) -> Array:
    """1 / (1 + exp(-X)) as a polynomial in float32, at most 1.73 ULP from the real value; float64 stays float64."""
    return rounded_single(formulas.sigmoid, _functions.logistic, X)


@op("HardSigmoid", since=6, form="pointwise", native=function("hard_sigmoid", "alpha", "beta"))
def hard_sigmoid(X: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """max(0, min(1, alpha * X + beta)), in float64 and rounded once; float64 stays float64; NaN stays NaN."""
    a, b = single(alpha), single(beta)
    return unary(lambda x: np.maximum(np.minimum(a * x + b, 1.0), 0.0), X)


@op("HardSwish", since=14, form="pointwise", native=function("hard_swish"))
def hard_swish(X: Array) -> Array:
    """X * max(0, min(1, X / 6 + 1/2)), in float64 and rounded once; float64 stays float64; NaN at -inf and NaN."""
    return unary(lambda x: x * np.maximum(np.minimum(x / 6.0 + 0.5, 1.0), 0.0), X)


@op("Swish", since=24, form="pointwise", native=function("swish", "alpha"))
def swish(X: Array, *, alpha: float = 1.0) -> Array:
    """X * Sigmoid(alpha * X) in float32; float64 stays float64."""
    return _functions.swish(X, alpha)


@op("Mish", since=18, form="pointwise", native=function("mish"))
def mish(X: Array) -> Array:
    """X * tanh(ln(1 + exp(X))), in float64 and rounded once; float64 stays float64."""

    def stable(x: Array) -> Array:
        e = np.exp(-np.abs(x))
        part = np.where(x >= 0, 1.0 + 2.0 * e, e * (e + 2.0))
        return np.asarray(x * part / (part + np.where(x >= 0, 2.0 * e * e, 2.0)))

    return rounded_double(wide.mish, stable, X)


@op("Gelu", since=20, form="pointwise")
def gelu(X: Array, *, approximate: str = "none") -> Array:
    """X / 2 * (1 + erf(X / sqrt(2))), or for "tanh" X / 2 * (1 + tanh(sqrt(2 / pi) * (X + 0.044715 * X**3))).

    In float32 without cancellation; float64 stays float64; NaN at -inf.
    Raises OperatorError for another approximation.
    """
    if approximate == "none":
        return _functions.gelu(X)
    if approximate == "tanh":
        return _functions.gelu_by_tanh(X)
    raise bad_attribute("approximate", "none, tanh", approximate)


@gelu.native
def _lower_gelu(site: LoweringContext) -> NativeKernel:
    return function_kernel(site, "gelu_by_tanh" if site.attributes["approximate"] == "tanh" else "gelu")


@op("Elu", since=6, form="pointwise", native=function("elu", "alpha"))
def elu(X: Array, *, alpha: float = 1.0) -> Array:
    """alpha * (exp(X) - 1) where X < 0, else X, in float64 and rounded once; float64 stays float64."""
    scale = single(alpha)
    return rounded_double(wide.elu, lambda x: np.where(x < 0, scale * np.expm1(x), x), X, scale)


@op("Selu", since=6, form="pointwise", native=function("selu", "alpha", "gamma"))
def selu(X: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    """gamma * X where X > 0, else gamma * alpha * (exp(X) - 1), in float64 and rounded once; float64 stays float64."""
    a, g = single(alpha), single(gamma)
    return rounded_double(wide.selu, lambda x: g * np.where(x > 0, x, a * np.expm1(x)), X, a, g)


@op("Celu", since=12, form="pointwise", native=function("celu", "alpha"))
def celu(X: Array, *, alpha: float = 1.0) -> Array:
    """max(0, X) + min(0, alpha * (exp(X / alpha) - 1)), in float64 and rounded once; float64 stays float64."""
    a = np.float64(single(alpha))

    def parts(x: Array) -> Array:
        below = a * np.expm1(x / a)
        return np.asarray(np.where(x < 0, 0.0, x) + np.where(below > 0, 0.0, below))

    return rounded_double(wide.celu, parts, X, float(a))


@op("ThresholdedRelu", since=10, form="pointwise", native=function("thresholded_relu", "alpha"))
def thresholded_relu(X: Array, *, alpha: float = 1.0) -> Array:
    """X where X > alpha, else 0, also for NaN; exact."""
    with np.errstate(all="ignore"):
        return np.where(widen(X) > single(alpha), X, X.dtype.type(0))


@op("Softplus", since=1, form="pointwise", native=function("softplus"))
def softplus(X: Array) -> Array:
    """ln(1 + exp(X)), in float64 and rounded once; float64 stays float64."""
    return rounded_double(wide.softplus, lambda x: np.logaddexp(0.0, x), X)


@op("Softsign", since=1, form="pointwise", native=function("softsign"))
def softsign(input: Array) -> Array:
    """input / (1 + |input|), in float64 and rounded once; float64 stays float64; NaN at infinities."""
    return unary(lambda x: x / (1.0 + np.abs(x)), input)


@op("Tanh", since=6, form="pointwise", native=function("tanh"))
def tanh(input: Array) -> Array:
    """tanh(input) as polynomials in float32, at most 1.20 ULP from the real value; float64 stays float64."""
    return rounded_single(formulas.tanh, np.tanh, input)


@op("Exp", since=6, form="pointwise", native=function("exp"))
def exp(input: Array) -> Array:
    """e ** input as a polynomial in float32, at most 0.98 ULP from the real value; float64 stays float64."""
    return rounded_single(formulas.exp, np.exp, input)


@op("Sqrt", since=6, form="pointwise", native=function("sqrt"))
def sqrt(X: Array) -> Array:
    """The square root, correctly rounded; NaN below 0."""
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(X))
