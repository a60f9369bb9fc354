"""Float64 functions in steps of one rounding each; the caller rounds their results to a narrower type.

Their arguments were float32, or follow from such numbers, and so are not subnormal. scripts/functions_error.py measures
their distance from the real values; numerics.md, F41, has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qrun.formulas.lanes import Number

_LOGARITHM = tuple(1 / (2 * n + 1) for n in range(10))
"""atanh(s) / s in powers of s**2, for |s| <= 0.172: the Taylor series."""
_ROOT = 0x3FE6A09E667F3BCD
_ONE = 0x3FF0000000000000
"""The bits of float64: sqrt(1/2), and 1."""
_FRACTION = (1 << 52) - 1
"""Bits of a float64 that are not its exponent or its sign."""
_WHOLE = 0x4330000000000000
_COUNT = 2.0**52 + 1023
"""2**52: with an integer in the low bits of its pattern, it is 2**52 larger than that integer. The stored exponent
exceeds the true one by 1023."""
_LN2 = math.log(2)


_MAGIC = 1.5 * 2.0**52
"""Adding this number rounds to an integer, which is then in the low bits."""
_LOG2E = 1.4426950408889634
_LN2S = (0.6931471803691238, 1.9082149292705877e-10)
"""log(2): its first 32 bits, whose products with up to 2**20 are exact, and the rest."""
_FARTHEST = 700.0
"""exp(-700) is less than any float32 number, so it does not count when added to one."""
_EXPONENTIAL = tuple(1 / math.factorial(n) for n in range(2, 14))
"""(exp(r) - 1 - r) / r**2 in powers of r, for |r| <= log(2) / 2: the Taylor series."""


def series(coefficients: Sequence[float], x: Number) -> Any:
    """A polynomial, the constant term first."""
    made = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made = made * x + coefficient
    return made


def _powers(x: Number) -> tuple[Any, Any]:
    """2**n and p with exp(x) = 2**n * (1 + p), p small, for x clamped to -700..700; NaN stays NaN."""
    x = x.test("olt", -_FARTHEST).select(-_FARTHEST, x)
    x = x.test("ogt", _FARTHEST).select(_FARTHEST, x)
    raised = x * _LOG2E + _MAGIC
    count = raised - _MAGIC
    rest = x - count * _LN2S[0] - count * _LN2S[1]
    small = rest * rest * series(_EXPONENTIAL, rest) + rest
    return ((raised.bitcast("i64") << 52) + _ONE).bitcast("double"), small


def exp(x: Number) -> Any:
    """exp(x) for x from -700 to 700; 0 below that, exp(700) above it."""
    power, small = _powers(x)
    return x.test("olt", -_FARTHEST).select(0.0, power * small + power)


def expm1(x: Number) -> Any:
    """exp(x) - 1 for x clamped to -700..700; 0 for -0."""
    power, small = _powers(x)
    return power * small + (power - 1.0)


def _positive(x: Number, less: Number) -> Any:
    """The logarithm of a finite x above 0. less: x - 1, which matters where x itself is rounded.

    x = 2**n * m with m from sqrt(1/2) to sqrt(2), and log(m) = 2 atanh((m - 1) / (m + 1)).
    """
    shifted = x.bitcast("i64") + (_ONE - _ROOT)
    n = (shifted.lshr(52) | _WHOLE).bitcast("double") - _COUNT
    m = ((shifted & _FRACTION) + _ROOT).bitcast("double")
    rest = n.test("oeq", 0.0).select(less, m - 1.0)
    s = rest / (rest + 2.0)
    return n * _LN2 + (s + s) * series(_LOGARITHM, s * s)


def _unless_infinite(x: Number, made: Any) -> Any:
    """`made` for a finite x; x itself if it is infinite or NaN."""
    return abs(x).test("olt", math.inf).select(made, x)


def _log1p(x: Number) -> Any:
    """log(1 + x) for a finite x above -1."""
    return _positive(x + 1.0, x)


def log(x: Number) -> Any:
    """log(x); -infinity for 0, NaN below."""
    made = x.test("oeq", 0.0).select(-math.inf, _unless_infinite(x, _positive(x, x - 1.0)))
    return x.test("olt", 0.0).select(math.nan, made)


def softplus(x: Number) -> Any:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))."""
    e = exp(-0.0 - abs(x))
    made = _log1p(e) + x.test("ugt", 0.0).select(x, 0.0)
    return x.test("uno", x).select(x, made)


def mish(x: Number) -> Any:
    """x * tanh(softplus(x)) without cancellation, as a quotient in e = exp(-|x|)."""
    e = exp(-0.0 - abs(x))
    above = x.test("oge", 0.0)
    part = above.select((e + e) + 1.0, e * (e + 2.0))
    return x * part / (part + above.select((e + e) * e, e.like(2.0)))


def sinh(x: Number) -> Any:
    """(e + e / (e + 1)) / 2, e = exp(|x|) - 1, with the sign of x."""
    e = expm1(abs(x))
    return ((e + e / (e + 1.0)) * 0.5).copysign(x)


def cosh(x: Number) -> Any:
    """The hyperbolic cosine in float64."""
    e = exp(abs(x))
    return (e + 1.0 / e) * 0.5


def asinh(x: Number) -> Any:
    """log(|x| + sqrt(x**2 + 1)), with the sign of x."""
    size, square = abs(x), x * x
    made = _log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    return _unless_infinite(x, made.copysign(x))


def acosh(x: Number) -> Any:
    """log(x + sqrt(x**2 - 1)); NaN below 1."""
    less = x - 1.0
    made = _unless_infinite(x, _log1p(less + (less * (x + 1.0)).sqrt()))
    return x.test("olt", 1.0).select(math.nan, made)


def atanh(x: Number) -> Any:
    """log((1 + |x|) / (1 - |x|)) / 2, with the sign of x; NaN beyond 1."""
    size = abs(x)
    made = _log1p((size + size) / (1.0 - size)) * 0.5
    made = size.test("olt", 1.0).select(made, size.test("oeq", 1.0).select(size.like(math.inf), size.like(math.nan)))
    return made.copysign(x)


def power(x: Number, exponent: Any) -> Any:
    """|x| ** exponent, with the relative error of `exp` and 2**-52 for each unit of exponent * log(|x|)."""
    return exp(exponent * log(abs(x)))


WIDEST = 2.0**22
"""The largest angle that the parts of pi / 2 reduce without loss of digits."""
_RIGHT = (1.5707963267341256, 6.07710049817245e-11, 8.333742918520879e-20)
"""pi / 2 in parts: the first two have 31 bits, and their products with up to 2**22 are exact."""
_SINE = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(1, 8))
"""(sin(r) / r - 1) / r**2 in powers of r**2, for |r| <= pi / 4."""
_COSINE = tuple((-1) ** n / math.factorial(2 * n) for n in range(1, 9))
"""(cos(r) - 1) / r**2 in powers of r**2, for |r| <= pi / 4."""
_ARC = tuple((-1) ** n / (2 * n + 1) for n in range(19))
"""atan(t) / t in powers of t**2, for |t| <= tan(pi / 8)."""
_EIGHTH = math.tan(math.pi / 8)


def _count_quarters(x: Number) -> tuple[Any, Any, Any]:
    """The number of right angles in an angle up to WIDEST, as an i64, and sine and cosine of the remainder."""
    raised = x * (2 / math.pi) + _MAGIC
    count, rest = raised - _MAGIC, x
    for part in _RIGHT:
        rest = rest - count * part
    square = rest * rest
    sine = (rest * square * series(_SINE, square) + rest).copysign(rest)
    return raised.bitcast("i64"), sine, square * series(_COSINE, square) + 1.0


def too_wide(x: Number) -> Any:
    """i1 in each lane: whether it is a finite angle beyond WIDEST."""
    size = abs(x)
    return size.test("ogt", WIDEST) & size.test("olt", math.inf)


def _sine(x: Number, quarters: int) -> Any:
    """The sine of x plus `quarters` right angles."""
    count, sine, cosine = _count_quarters(x)
    count = count + quarters
    made = (count & 1).test("ne", 0).select(cosine, sine)
    return (count & 2).test("ne", 0).select(-made, made)


def sin(x: Number) -> Any:
    """The sine in float64."""
    return _sine(x, 0)


def cos(x: Number) -> Any:
    """The cosine in float64."""
    return _sine(x, 1)


def tan(x: Number) -> Any:
    """The tangent in float64."""
    count, sine, cosine = _count_quarters(x)
    odd = (count & 1).test("ne", 0)
    return odd.select(-cosine, sine) / odd.select(sine, cosine)


def _arc(a: Number, b: Number) -> Any:
    """The angle between 0 and pi / 2 whose tangent is a / b; neither is negative, and not both are 0."""
    steep = a.test("ogt", b)
    low, high = steep.select(b, a), steep.select(a, b)
    wide = low.test("ogt", high * _EIGHTH)
    t = wide.select(low - high, low) / wide.select(low + high, high)
    made = t * series(_ARC, t * t) + wide.select(t.like(math.pi / 4), t.like(0.0))
    return steep.select(math.pi / 2 - made, made)


def atan(x: Number) -> Any:
    """The inverse tangent in float64."""
    return _arc(abs(x), x.like(1.0)).copysign(x)


def asin(x: Number) -> Any:
    """The angle whose tangent is |x| / sqrt(1 - x**2), with the sign of x; NaN beyond 1."""
    size = abs(x)
    return _arc(size, ((1.0 - size) * (1.0 + size)).sqrt()).copysign(x)


def acos(x: Number) -> Any:
    """Twice the angle whose tangent is sqrt((1 - x) / (1 + x)); NaN beyond 1."""
    made = _arc((1.0 - x).sqrt(), (1.0 + x).sqrt())
    return made + made


def cube(x: Number) -> Any:
    """x * x * x."""
    return x * x * x


def elu(x: Number, alpha: Any) -> Any:
    """alpha * (exp(x) - 1) below 0, else x."""
    return x.test("olt", 0.0).select(alpha * expm1(x), x)


def selu(x: Number, alpha: Any, gamma: Any) -> Any:
    """gamma * x above 0, else gamma * alpha * (exp(x) - 1)."""
    return gamma * x.test("ogt", 0.0).select(x, alpha * expm1(x).copysign(x))


def celu(x: Number, alpha: Any) -> Any:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1)); NaN where an alpha of 0 meets an infinite power."""
    quotient = x / alpha
    grown = quotient.test("oeq", math.inf).select(quotient, expm1(quotient).copysign(quotient))
    below = alpha * grown
    return x.test("uge", 0.0).select(x, 0.0) + below.test("ule", 0.0).select(below, 0.0)


def even_power(x: Number, exponent: Any) -> Any:
    """x ** exponent for an even integer exponent."""
    return power(x, exponent)


def odd_power(x: Number, exponent: Any) -> Any:
    """x to the power of an odd integer."""
    return power(x, exponent).copysign(x)


def real_power(x: Number, exponent: Any) -> Any:
    """x ** exponent for an exponent that is no integer: NaN for finite numbers below 0."""
    below = x.test("olt", 0.0) & x.test("ogt", -math.inf)
    return below.select(math.nan, power(x, exponent))


FUNCTIONS = (
    log, softplus, mish, elu, selu, celu, sinh, cosh, asinh, acosh, atanh, sin, cos, tan, asin, acos, atan, cube,
    even_power, odd_power, real_power,
)  # fmt: skip
"""The functions that graphs name."""
