"""Functions of float64 in steps of one rounding each; what rounds them to a narrower type makes a result of them.

What they are given was float32, or follows from such numbers, so that it is not subnormal. scripts/functions_error.py
tells how far from the real values they are; docs/numerics.md, F1, has the figures.
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
"""2**52: its bits with an integer in the low ones are 2**52 more than it.
An exponent is 1023 more than what it stands for."""
_LN2 = math.log(2)


def series(coefficients: Sequence[float], x: Number) -> Any:
    """A polynomial, the constant term first."""
    made = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made = made * x + coefficient
    return made


def _positive(x: Number, less: Number) -> Any:
    """The logarithm of a finite x above 0. less: x - 1, which counts where x itself is rounded.

    x = 2**n * m with m from sqrt(1/2) to sqrt(2), and log(m) = 2 atanh((m - 1) / (m + 1)).
    """
    shifted = x.bitcast("i64") + (_ONE - _ROOT)
    n = (shifted.lshr(52) | _WHOLE).bitcast("double") - _COUNT
    m = ((shifted & _FRACTION) + _ROOT).bitcast("double")
    rest = n.test("oeq", 0.0).select(less, m - 1.0)
    s = rest / (rest + 2.0)
    return n * _LN2 + (s + s) * series(_LOGARITHM, s * s)


def _unless_infinite(x: Number, made: Any) -> Any:
    """What was made of finite numbers; infinities and NaN stay themselves."""
    return abs(x).test("olt", math.inf).select(made, x)


def log(x: Number) -> Any:
    """-infinity of 0, NaN of what is less."""
    made = x.test("oeq", 0.0).select(-math.inf, _unless_infinite(x, _positive(x, x - 1.0)))
    return x.test("olt", 0.0).select(math.nan, made)
