"""Logarithms of float64 vectors in IR, and the functions that are made of them, all with relative errors below 2**-49.

What they are given was float32, or follows from such numbers, so that it is not subnormal.
"""

from __future__ import annotations

import math

from qrun.native.emit.numbers import exp, expm1, series
from qrun.native.emit.values import Value

_SERIES = tuple(1 / (2 * n + 1) for n in range(10))
"""atanh(s) / s in powers of s**2, for |s| <= 0.172: the Taylor series."""
_ROOT = 0x3FE6A09E667F3BCD
_ONE = 0x3FF0000000000000
"""The bits of float64: sqrt(1/2), and 1."""
_FRACTION = (1 << 52) - 1
"""Bits of a float64 that are not its exponent or its sign."""
_WHOLE = 0x4330000000000000
_COUNT = 2.0**52 + 1023
"""2**52: its bits with an integer in the low ones are 2**52 more than it. An exponent is 1023 more than what it stands for."""
_LN2 = math.log(2)


def _positive(x: Value, less: Value) -> Value:
    """The logarithm of a finite x above 0. less: x - 1, which counts where x itself is rounded.

    x = 2**n * m with m from sqrt(1/2) to sqrt(2), and log(m) = 2 atanh((m - 1) / (m + 1)).
    """
    shifted = x.bitcast("i64") + (_ONE - _ROOT)
    n = (shifted.lshr(52) | _WHOLE).bitcast("double") - _COUNT
    m = ((shifted & _FRACTION) + _ROOT).bitcast("double")
    rest = n.test("oeq", 0.0).select(less, m - 1.0)
    s = rest / (rest + 2.0)
    return n.fma(_LN2, (s + s) * series(_SERIES, s * s))


def _log1p(x: Value) -> Value:
    """log(1 + x) for a finite x above -1."""
    return _positive(x + 1.0, x)


def _unless_infinite(x: Value, made: Value) -> Value:
    """What was made of finite numbers; infinities and NaN stay themselves."""
    return abs(x).test("olt", math.inf).select(made, x)


def log(x: Value) -> Value:
    """-infinity of 0, NaN of what is less."""
    made = x.test("oeq", 0.0).select(-math.inf, _unless_infinite(x, _positive(x, x - 1.0)))
    return x.test("olt", 0.0).select(math.nan, made)


def scalar_log(x: Value) -> Value:
    """log(x) of a scalar."""
    return log(x.splat(1)).extract(0)


def softplus(x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))."""
    e = exp(-0.0 - abs(x))
    made = _log1p(e) + x.where("ugt", 0.0)
    return x.test("uno", x).select(x, made)


def mish(x: Value) -> Value:
    """x * tanh(softplus(x)) without cancellation, as a quotient in e = exp(-|x|)."""
    e = exp(-0.0 - abs(x))
    above = x.test("oge", 0.0)
    part = above.select((e + e) + 1.0, e * (e + 2.0))
    return x * part / (part + above.select((e + e) * e, e.like(2.0)))


def sinh(x: Value) -> Value:
    """(e + e / (e + 1)) / 2, e = exp(|x|) - 1, with the sign of x."""
    e = expm1(abs(x))
    return ((e + e / (e + 1.0)) * 0.5).intrinsic("copysign", x)


def cosh(x: Value) -> Value:
    e = exp(abs(x))
    return (e + 1.0 / e) * 0.5


def asinh(x: Value) -> Value:
    """log(|x| + sqrt(x**2 + 1)), with the sign of x."""
    size, square = abs(x), x * x
    made = _log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    return _unless_infinite(x, made.intrinsic("copysign", x))


def acosh(x: Value) -> Value:
    """log(x + sqrt(x**2 - 1)); NaN below 1."""
    less = x - 1.0
    made = _unless_infinite(x, _log1p(less + (less * (x + 1.0)).sqrt()))
    return x.test("olt", 1.0).select(math.nan, made)


def atanh(x: Value) -> Value:
    """log((1 + |x|) / (1 - |x|)) / 2, with the sign of x; NaN beyond 1."""
    size = abs(x)
    made = _log1p((size + size) / (1.0 - size)) * 0.5
    made = size.test("olt", 1.0).select(made, size.test("oeq", 1.0).select(size.like(math.inf), size.like(math.nan)))
    return made.intrinsic("copysign", x)


def power(x: Value, exponent: Value) -> Value:
    """|x| ** exponent, with the relative error of `exp` and 2**-52 for each unit of exponent * log(|x|)."""
    return exp(exponent * log(abs(x)))
