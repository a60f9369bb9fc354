"""Correct rounding, once: of quotients, of real numbers with an estimate and an exact form, of sums of two float64.

The real value q = num / den is rounded to the nearest integer, ties to even. A floating-point estimate decides if it
is farther from a tie than its own error; otherwise the comparison of num with (k + 1/2) * den decides, made
exactly, each written as an unevaluated sum of two float64 (Dekker 1971, "A floating-point technique for extending
the available precision"; Ogita, Rump & Oishi 2005, "Accurate sum and dot product").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qrun.ir import Array

Floats = np.ndarray[Any, np.dtype[np.float64]]
REACH = 257.0
"""Quotients beyond this saturate every 8-bit type, whatever the zero point."""
_EPS = float(np.finfo(np.float64).eps)
_TOLERANCE = 16 * _EPS
DROPPED, MIDDLE = np.int64(0x1FFFFFFF), np.int64(0x10000000)
"""The bits of float64 that float32 lacks, and their pattern in a number in the middle between two float32 numbers."""
LEAST_NORMAL = 2.0**-126
Where = Array
"""A mask of positions, of the array's own shape."""


class DoubleDouble(NamedTuple):
    """A real number hi + lo with hi = float64(hi + lo). Every real that fits has exactly one such form, so pairs
    compare lexicographically."""

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
    """A float64 as the sum of two with 26 bits each."""
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


def decide(estimate: Array, exact: Callable[[Where], tuple[DoubleDouble, Any]]) -> Floats:
    """Rounds the reals that `estimate` approximates with a relative error of at most _TOLERANCE to nearest, ties to
    even.

    exact: numerator and denominator at given positions; called only near ties. Quotients beyond REACH, infinities and
    NaN stay as estimated.
    """
    with np.errstate(all="ignore"):
        rounded = np.rint(estimate)
        near = np.abs(estimate - rounded) >= 0.5 - REACH * _TOLERANCE
        near &= np.abs(rounded) <= REACH
        if near.any():
            num, den = exact(near)
            rounded[near] = nearest(num, np.broadcast_to(np.asarray(den, np.float64), num.hi.shape))
    return np.asarray(rounded)


def odd(number: DoubleDouble) -> Floats:
    """hi + lo rounded to odd: rounding the result again, to fewer than 52 bits, rounds the sum once.

    Source: Boldo & Melquiond 2008, "Emulation of FMA and correctly rounded sums:
    proved algorithms using rounding to odd".
    """
    hi = np.array(number.hi, np.float64, ndmin=1)
    lo = np.broadcast_to(np.asarray(number.lo), hi.shape)
    bits = hi.view(np.int64)
    inexact = (lo != 0) & np.isfinite(hi) & np.isfinite(lo) & (bits & 1 == 0)
    away = (lo > 0) == (hi > 0)
    bits += np.where(inexact, np.where(away, 1, -1), 0)
    return np.asarray(hi.reshape(np.shape(number.hi)))


def odd_single(values: Array) -> Array:
    """float64 to float32, rounded to odd: inexact values go to the neighbour whose last bit is 1."""
    with np.errstate(all="ignore"):
        single = values.astype(np.float32)
        inexact = single != values
        bits = single.view(np.uint32)
        bits = bits - (inexact & (np.abs(single) > np.abs(values)))
        return np.asarray((bits | (inexact & ~np.isnan(values))).view(np.float32))


def fma32(a: Any, b: Any, c: Any) -> Array:
    """float32(a * b + c) with one rounding, for float32 operands.

    float64 holds the product exactly, and rounds the sum; rounding that to float32 is a second rounding only in the
    middle between two float32 numbers, or below the normal ones. There the bits that float64 lost decide.
    """
    with np.errstate(all="ignore"):
        product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
        total = np.array(product + addend)
        doubtful = (total.view(np.int64) & DROPPED) == MIDDLE
        doubtful |= (np.abs(total) < LEAST_NORMAL) & (total != 0)
        made = total.astype(np.float32)
        if doubtful.any():
            whole = (np.broadcast_to(x, total.shape)[doubtful] for x in (product, addend))
            made[doubtful] = odd(two_sum(*whole)).astype(np.float32)
        return made


def scale_sums(acc: Array, factors: tuple[Array, ...], bias: Array | None, dtype: np.dtype[Any]) -> Array:
    """acc * factor * ... + bias, rounded once to `dtype` (float32 or float16).

    acc: integers below 2**31 in magnitude. factors: two or three float32 numbers. bias: float32, or None. A float64
    estimate decides, except near the middle between two neighbours of `dtype`.
    """
    first, second, *third = (np.asarray(f, np.float64) for f in factors)
    with np.errstate(all="ignore"):
        factor = first * second
        estimate = np.multiply(acc, factor, dtype=np.float64)
        for f in third:
            estimate *= f
        doubtful = np.zeros(estimate.shape, bool)
        addend = np.zeros(())
        if bias is not None:
            addend = bias.astype(np.float64)
            most = np.abs(estimate) / 4
            estimate += addend
            doubtful = np.abs(estimate) < most
        doubtful |= _near_middle(estimate, dtype)
        result = estimate.astype(dtype)
        if doubtful.any():
            at = doubtful
            number = two_product(acc[at].astype(np.float64), np.broadcast_to(factor, acc.shape)[at])
            for f in third:
                number = scale_pair(number, np.broadcast_to(f, acc.shape)[at])
            result[at] = odd(plus(number, np.broadcast_to(addend, acc.shape)[at])).astype(dtype)
        return result


def _near_middle(values: Floats, dtype: np.dtype[Any]) -> Array:
    """Finite values within 32 units of float64 of a value where rounding to `dtype` changes, or subnormal in it."""
    info = np.finfo(dtype)
    half = 1 << (51 - info.nmant)
    low = values.view(np.int64) & (2 * half - 1)
    low -= half
    size = np.abs(values)
    near = np.abs(low) <= 32
    near |= (size < float(info.smallest_normal)) & (size > 0)
    return np.asarray(near & (size < np.inf))


def plus(number: DoubleDouble, addend: Floats) -> DoubleDouble:
    """number + addend as float64 and a remainder of which only the sign is meaningful."""
    s, e = two_sum(number.hi, addend)
    u, v = two_sum(e, number.lo)
    top, rest = two_sum(s, u)
    return DoubleDouble(top, np.where(rest != 0, rest, v))
