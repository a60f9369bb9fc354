"""Correctly rounded quotients in float64.

The real value q = num / den is rounded to the nearest integer, ties to even. A floating-point estimate decides
wherever it is farther from a tie than its own error; the rest is decided by comparing num with (k + 1/2) * den
exactly, each written as an unevaluated sum of two float64 (Dekker 1971, "A floating-point technique for extending
the available precision"; Ogita, Rump & Oishi 2005, "Accurate sum and dot product").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


class DoubleDouble(NamedTuple):
    """A real number hi + lo with hi = float64(hi + lo): every real that fits has exactly one such form,
    so pairs compare lexicographically."""

    hi: Floats
    lo: Floats


def two_sum(a: Any, b: Any) -> DoubleDouble:
    """a + b exactly."""
    s = np.add(a, b)
    t = s - a
    return DoubleDouble(s, (a - (s - t)) + (b - t))


def two_product(a: Any, b: Any) -> DoubleDouble:
    """a * b exactly, for factors whose product neither overflows nor reaches below 2**-968."""
    p = np.multiply(a, b)
    a1, a2 = _split(a)
    b1, b2 = _split(b)
    return DoubleDouble(p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2)


def _split(a: Any) -> tuple[Any, Any]:
    c = np.multiply(a, 134217729.0)
    high = c - (c - a)
    return high, a - high


def scale_pair(number: DoubleDouble, factor: Any) -> DoubleDouble:
    """number * factor exactly, if the result has at most 104 significant bits and factor at most 32."""
    p, e = two_product(number.hi, factor)
    return two_sum(p, e + number.lo * factor)


def nearest(num: DoubleDouble, den: Floats) -> Floats:
    """num / den rounded to nearest, ties to even, for finite quotients below 2**50 and finite non-zero `den`.

    All arrays have one shape. Exact: no estimate enters the decision.
    """
    sign = np.sign(den)
    num, den = DoubleDouble(num.hi * sign, num.lo * sign), den * sign
    tie = np.rint(num.hi / den - 0.5) + 0.5
    bound = two_product(tie, den)
    above = (num.hi > bound.hi) | ((num.hi == bound.hi) & (num.lo > bound.lo))
    equal = (num.hi == bound.hi) & (num.lo == bound.lo)
    low, high = tie - 0.5, tie + 0.5
    even = np.where(low % 2 == 0, low, high)
    return np.where(equal, even, np.where(above, high, low))
