"""Elementwise functions of one tensor: Relu and its relatives, Clip, Sigmoid, Gelu, Swish, Softplus, Tanh, Exp, Sqrt,
Abs, Neg, Sign, Floor, Ceil, Round, Reciprocal, Log, Erf and trigonometry; Gelu, BiasGelu, FastGelu and QuickGelu of
com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qrun.formulas import single as formulas
from qrun.formulas import wide
from qrun.ops import _functions
from qrun.ops._complete import ALWAYS
from qrun.ops._float import binary, bounds, is_integer, narrow, single, unary, widen
from qrun.ops._functions import apply_double, apply_single
from qrun.ops._op import Array, Context, OpDef, bad_attribute, contrib_op, misfit, op
from qrun.ops._shape import scalar
from qrun.ops.lowering.float32 import function, function_kernel, pointwise, pointwise_kernel
from qrun.ops.lowering.kernel import (
    FLOAT,
    Lowering,
    LoweringContext,
    NativeKernel,
    Stage,
    decline_error,
    elementwise_of,
    require_type,
    staged_kernel,
)

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
    return _clip_to_limits(input, low, high)


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
    return _clip_to_limits(input, low, high)


@clip.native
def _lower_clip(site: LoweringContext) -> NativeKernel:
    ends = (float(end) for end in bounds(site.narrow or np.dtype(np.float32)))
    given = zip(site.inputs[1:], ends, strict=True)
    return pointwise_kernel(site, "clip", lambda: _numbers(y if x is None else float(x.reshape(())) for x, y in given))


def _numbers(limits: Iterable[float]) -> list[float]:
    """The limits as numbers. Raises Declined for NaN."""
    found = list(limits)
    if any(map(math.isnan, found)):
        raise decline_error("a limit is NaN")
    return found


def _clip_to_limits(x: Array, low: Array, high: Array) -> Array:
    """x, unchanged and with its sign if it equals a limit; NaN everywhere if a limit is NaN."""
    if not is_integer(x.dtype) and (np.isnan(low) or np.isnan(high)):
        return np.full(x.shape, np.nan, x.dtype)
    with np.errstate(all="ignore"):
        raised = np.where(x < low, low, x)
        return np.where(raised > high, high, raised)


@op("Sigmoid", since=6, form="pointwise", native=function("sigmoid"))
def sigmoid(X: Array) -> Array:
    """1 / (1 + exp(-X)) as a polynomial in float32, at most 1.73 ULP from the real value; float64 stays float64."""
    return apply_single(formulas.sigmoid, _functions.logistic, X)


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

    return apply_double(wide.mish, stable, X)


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
    return apply_double(wide.elu, lambda x: np.where(x < 0, scale * np.expm1(x), x), X, scale)


@op("Selu", since=6, form="pointwise", native=function("selu", "alpha", "gamma"))
def selu(X: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    """gamma * X where X > 0, else gamma * alpha * (exp(X) - 1), in float64 and rounded once; float64 stays float64."""
    a, g = single(alpha), single(gamma)
    return apply_double(wide.selu, lambda x: g * np.where(x > 0, x, a * np.expm1(x)), X, a, g)


@op("Celu", since=12, form="pointwise", native=function("celu", "alpha"))
def celu(X: Array, *, alpha: float = 1.0) -> Array:
    """max(0, X) + min(0, alpha * (exp(X / alpha) - 1)), in float64 and rounded once; float64 stays float64."""
    a = np.float64(single(alpha))

    def parts(x: Array) -> Array:
        below = a * np.expm1(x / a)
        return np.asarray(np.where(x < 0, 0.0, x) + np.where(below > 0, 0.0, below))

    return apply_double(wide.celu, parts, X, float(a))


@op("ThresholdedRelu", since=10, form="pointwise", native=function("thresholded_relu", "alpha"))
def thresholded_relu(X: Array, *, alpha: float = 1.0) -> Array:
    """X where X > alpha, else 0, also for NaN; exact."""
    with np.errstate(all="ignore"):
        return np.where(widen(X) > single(alpha), X, X.dtype.type(0))


@op("Softplus", since=1, form="pointwise", native=function("softplus"))
def softplus(X: Array) -> Array:
    """ln(1 + exp(X)), in float64 and rounded once; float64 stays float64."""
    return apply_double(wide.softplus, lambda x: np.logaddexp(0.0, x), X)


@op("Softsign", since=1, form="pointwise", native=function("softsign"))
def softsign(input: Array) -> Array:
    """input / (1 + |input|), in float64 and rounded once; float64 stays float64; NaN at infinities."""
    return unary(lambda x: x / (1.0 + np.abs(x)), input)


@op("Tanh", since=6, form="pointwise", native=function("tanh"))
def tanh(input: Array) -> Array:
    """tanh(input) as polynomials in float32, at most 1.20 ULP from the real value; float64 stays float64."""
    return apply_single(formulas.tanh, np.tanh, input)


@op("Exp", since=6, form="pointwise", native=function("exp"))
def exp(input: Array) -> Array:
    """e ** input as a polynomial in float32, at most 0.98 ULP from the real value; float64 stays float64."""
    return apply_single(formulas.exp, np.exp, input)


@op("Sqrt", since=6, form="pointwise", native=function("sqrt"))
def sqrt(X: Array) -> Array:
    """Take the square root, correctly rounded; NaN below 0."""
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(X))


def _exact(op_type: str, compute: Callable[[Array], Any], says: str, *, since: int, native: Lowering) -> OpDef:
    """Declare a function that numpy computes in the type of its operand, correctly rounded."""

    def made(X: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(compute(X))

    made.__doc__ = says
    return op(op_type, since=since, form="pointwise", native=native)(made)


abs_ = _exact("Abs", np.abs, "|X|, exact; the smallest signed integer stays itself.", since=6, native=pointwise("abs"))
neg = _exact("Neg", np.negative, "-X, exact; the smallest integer stays itself.", since=6, native=pointwise("neg"))
floor = _exact("Floor", np.floor, "The largest integer not above X, exact.", since=6, native=function("floor"))
ceil = _exact("Ceil", np.ceil, "The smallest integer not below X, exact.", since=6, native=function("ceil"))
round_ = _exact("Round", np.rint, "The nearest integer, halves to even, exact.", since=11, native=function("round"))
reciprocal = _exact(
    "Reciprocal",
    lambda x: np.divide(x.dtype.type(1), x),
    "1 / X, correctly rounded; infinity at 0.",
    since=6,
    native=function("reciprocal"),
)


@op("Sign", since=9, form="pointwise", native=pointwise("sign"))
def sign(input: Array) -> Array:
    """1 above 0, -1 below, 0 at 0; NaN stays NaN."""
    with np.errstate(all="ignore"):
        return np.asarray(np.sign(input) + input.dtype.type(0))


@op("Log", since=6, form="pointwise", native=function("log"))
def log(input: Array) -> Array:
    """The natural logarithm, in float64 and rounded once; float64 stays float64; NaN below 0."""
    return apply_double(wide.log, np.log, input)


@op("Erf", since=9, form="pointwise", native=function("erf"))
def erf(input: Array) -> Array:
    """2 / sqrt(pi) * integral of exp(-t**2) from 0 to input, as polynomials in float32; float64 stays float64.

    Integers, in version 9 only: toward zero, so 0.
    """
    return np.zeros_like(input) if is_integer(input.dtype) else apply_single(formulas.erf, _functions.erf, input)


def _angle(op_type: str, double: Callable[[Array], Any], says: str, *, since: int) -> OpDef:
    """Declare a trigonometric or hyperbolic function. For angles beyond WIDEST it is numpy's float64 function."""
    name = op_type.lower()

    def made(input: Array) -> Array:
        y = apply_double(getattr(wide, name), double, input)
        with np.errstate(all="ignore"):
            far = (np.abs(input) > wide.WIDEST) & (input.dtype != np.float64)
            if name in ("sin", "cos", "tan") and far.any():
                y = np.where(far, unary(double, input), y)
        return y

    made.__doc__ = f"{says} In float64 and rounded once; float64 stays float64."
    return op(op_type, since=since, form="pointwise", native=function(name))(made)


sin = _angle("Sin", np.sin, "The sine of radians; NaN at infinities.", since=7)
cos = _angle("Cos", np.cos, "The cosine of radians; NaN at infinities.", since=7)
tan = _angle("Tan", np.tan, "The tangent of radians; NaN at infinities.", since=7)
asin = _angle("Asin", np.arcsin, "The angle in [-pi/2, pi/2] with this sine; NaN outside [-1, 1].", since=7)
acos = _angle("Acos", np.arccos, "The angle in [0, pi] with this cosine; NaN outside [-1, 1].", since=7)
atan = _angle("Atan", np.arctan, "The angle in [-pi/2, pi/2] with this tangent.", since=7)
sinh = _angle("Sinh", np.sinh, "(e**x - e**-x) / 2.", since=9)
cosh = _angle("Cosh", np.cosh, "(e**x + e**-x) / 2.", since=9)
asinh = _angle("Asinh", np.arcsinh, "The number with this Sinh.", since=9)
acosh = _angle("Acosh", np.arccosh, "The number >= 0 with this Cosh; NaN below 1.", since=9)
atanh = _angle("Atanh", np.arctanh, "The number with this Tanh; NaN outside [-1, 1].", since=9)


_FLOATS = "float16 float double bfloat16"


@contrib_op("Gelu", types={"T": (_FLOATS, "X")}, form="pointwise", native=function("gelu"))
def gelu_1(X: Array) -> Array:
    """Gelu of ai.onnx without approximation."""
    return _functions.gelu(X)


@contrib_op("QuickGelu", types={"T": (_FLOATS, "X")}, form="pointwise", native=function("swish", "alpha"))
def quick_gelu(X: Array, *, alpha: float = 1.7020000219345093) -> Array:
    """X * Sigmoid(alpha * X) in float32; float64 stays float64."""
    return _functions.swish(X, alpha)


@contrib_op("BiasGelu", types={"T": (_FLOATS, "A B")})
def bias_gelu(A: Array, B: Array, *, ctx: Context) -> Array:
    """Gelu(A + B): A [...,n], B [n], floating point of one type.

    The same bits as Add, then Gelu, each rounded once. Raises OperatorError for another shape of B.
    """
    return _functions.gelu(_add_bias(A, B, "B", ctx))


@bias_gelu.native
def _lower_bias_gelu(site: LoweringContext) -> NativeKernel:
    return _gelu_of_sum(site, "gelu", "B")


def _gelu_of_sum(site: LoweringContext, name: str, bias: str) -> NativeKernel:
    """The kernel of Add, then a function. name: of the function in native/emit/functions.py; bias: the operator's name
    of the second input."""
    a, b = site.inputs
    _check_bias(a, b, bias, site.ctx)
    require_type(a.dtype == FLOAT, a.dtype)
    first, last = elementwise_of(site, "add", a, b), elementwise_of(site, name, a)
    return staged_kernel(site, [Stage(first, (0, 1), "sum"), Stage(last, ("sum",))], [first, last], ALWAYS)


@contrib_op("FastGelu", types={"T": (_FLOATS, "X bias")})
def fast_gelu(X: Array, bias: Array | None = None, *, ctx: Context) -> Array:
    """Gelu(X + bias) approximated by tanh: X [...,n], bias [n], floating point of one type.

    The same bits as Add, then Gelu of ai.onnx with approximate = "tanh", each rounded once, whose sqrt(2 / pi) the
    page of this operator gives as 0.797885. Raises OperatorError for another shape of bias.
    """
    if bias is None:
        ctx.claim(X.shape, X.itemsize)
    return _functions.gelu_by_tanh(X if bias is None else _add_bias(X, bias, "bias", ctx))


@fast_gelu.native
def _lower_fast_gelu(site: LoweringContext) -> NativeKernel:
    if site.inputs[1] is None:
        return function_kernel(site, "gelu_by_tanh")
    return _gelu_of_sum(site, "gelu_by_tanh", "bias")


def _add_bias(x: Array, bias: Array, name: str, ctx: Context) -> Array:
    """x + bias; bias must be a vector of x's last axis."""
    _check_bias(x, bias, name, ctx)
    return binary(np.add, x, bias, ctx)


def _check_bias(x: Array, bias: Array, name: str, ctx: Context) -> None:
    """Refuse a bias that is not one number for each index of the last axis; claim the sum and the result."""
    if bias.shape != x.shape[-1:] or not x.ndim:
        expected = f"[{x.shape[-1]}]" if x.ndim else "a first input of rank 1 or more"
        raise misfit(f"{name} does not fit the input", name, expected, bias)
    ctx.claim(x.shape, 2 * x.itemsize)
