"""Functions of one element: Abs, Neg, Sign, Floor, Ceil, Round, Reciprocal, Log, Erf and trigonometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qrun.formulas import single, wide
from qrun.ops._float import is_integer, unary
from qrun.ops._functions import erf as erf_of_double
from qrun.ops._op import Array, OpDef, op
from qrun.ops._polynomials import rounded_double, rounded_single
from qrun.ops.lowering.float32 import function, pointwise
from qrun.ops.lowering.kernel import Lowering


def _exact(op_type: str, compute: Callable[[Array], Any], says: str, *, since: int, native: Lowering) -> OpDef:
    """Declare a function that numpy computes in the type of its operand, rounded right."""

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
    return rounded_double(wide.log, np.log, input)


@op("Erf", since=9, form="pointwise", native=function("erf"))
def erf(input: Array) -> Array:
    """2 / sqrt(pi) * integral of exp(-t**2) from 0 to input, as polynomials in float32; float64 stays float64.

    Integers, in version 9 only: toward zero, so 0.
    """
    return np.zeros_like(input) if is_integer(input.dtype) else rounded_single(single.erf, erf_of_double, input)


def _angle(op_type: str, double: Callable[[Array], Any], says: str, *, since: int) -> OpDef:
    """Declare a function of angles, or of those of hyperbolas. Of angles beyond WIDEST it is that of float64."""
    name = op_type.lower()

    def made(input: Array) -> Array:
        y = rounded_double(getattr(wide, name), double, input)
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
