"""(x - mean) / sqrt(variance + epsilon) * scale + bias of float32 rows as real numbers, rounded once.

float64 decides nearly all elements: those that its error, on either side, leaves one float32 number. For the others the
real value is compared with the midpoints between such numbers, in integers and fractions: with A = (x - mean) * scale
and V = variance + epsilon, A / sqrt(V) + bias is above m where A is above (m - bias) * sqrt(V), and squares tell that.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from qrun.ir import Array

_UNIT = 2.0**-53
_FEW = 16
_NONE = np.float32(0)


def settled(x: Array, y: Array, states: tuple[Array, Array], scale: Array, bias: Array | None, epsilon: float) -> Array:
    """The correctly rounded results for x, float32 [rows, n]. y: those in float64. scale, bias: float64 [rows, n].

    states: the mean and 1 / sqrt(variance + epsilon) of each row, float64 [rows, 1].
    """
    mean, inverse = states
    with np.errstate(all="ignore"):
        out = y.astype(np.float32)
    if not x.size:
        return out
    added = np.zeros(1) if bias is None else bias
    steps = 64 + x.shape[1] // 4
    with np.errstate(all="ignore"):
        sizes = np.abs(y) + 2 * np.abs(added)
        reach = 2 * steps * _UNIT * (np.abs(scale) * (np.abs(mean) * inverse + 1) + sizes)
        low, high = ((y + end).astype(np.float32) for end in (-reach, reach))
        doubtful = (
            (low.view(np.int32) != high.view(np.int32)) & np.isfinite(y) & np.isfinite(reach) & np.isfinite(epsilon)
        )
    doubtful[x.min(axis=1) == x.max(axis=1)] = False
    for row in np.flatnonzero(doubtful.any(axis=1)):
        exact = _Row(x[row], epsilon)
        if exact.square:
            places = np.flatnonzero(doubtful[row])
            given = np.full(places.shape, -0.0) if bias is None else bias[row, places]
            out[row, places] = exact.results(places, scale[row, places], given)
    return out


class _Row:
    """A row of x as integers. square: its variance plus epsilon, exactly."""

    def __init__(self, x: Array, epsilon: float) -> None:
        fractions, exponents = np.frexp(x.astype(np.float64))
        self._least = int(exponents.min())
        shifts = (exponents - self._least).tolist()
        whole = [int(f) << s for f, s in zip(np.ldexp(fractions, 24).tolist(), shifts, strict=True)]
        self._count, total = len(whole), sum(whole)
        self._apart = [self._count * number - total for number in whole]
        self._unit = Fraction(2) ** (self._least - 24)
        squares = Fraction(sum(number * number for number in self._apart), self._count**3)
        self.square = squares * self._unit**2 + Fraction(epsilon)

    def results(self, places: Array, scale: Array, bias: Array) -> Array:
        """The results, float32, of the elements at these places, each with its own scale and bias.

        float64 arithmetic on the exact differences and variance decides most of them, fractions the others.
        """
        apart = np.ldexp([self._apart[place] / self._count for place in places.tolist()], self._least - 24)
        with np.errstate(all="ignore"):
            scaled = apart * scale / np.sqrt(float(self.square))
            y = scaled + bias
            reach = _FEW * _UNIT * (np.abs(scaled) + np.abs(bias))
            low, high = ((y + end).astype(np.float32) for end in (-reach, reach))
            out: Array = y.astype(np.float32)
        for number in np.flatnonzero(low.view(np.int32) != high.view(np.int32)):
            a = Fraction(self._apart[places[number]], self._count) * self._unit * Fraction(float(scale[number]))
            ends = _order(low[number]), _order(high[number])
            out[number] = _nearest(a, self.square, float(bias[number]), ends, out[number])
        return out


def _nearest(a: Fraction, square: Fraction, bias: float, ends: tuple[int, int], near: Any) -> Any:
    """The float32 nearest to a / sqrt(square) + bias, ties to even. ends: places of the least and greatest one."""
    low, high = ends
    added = Fraction(bias)
    while low < high:
        middle = (low + high) // 2
        above = _sign(a, (_value(middle) + _value(middle + 1)) / 2 - added, square)
        if above > 0 or (above == 0 and middle % 2):
            low = middle + 1
        else:
            high = middle
    if low:
        return _number(low)
    side = _sign(a, -added, square)
    return np.copysign(_NONE, np.float32(side) if side else near if not a and not bias else _NONE)


def _sign(a: Fraction, b: Fraction, square: Fraction) -> int:
    """Of a - b * sqrt(square)."""
    left, right = a * abs(a), b * abs(b) * square
    return (left > right) - (left < right)


def _order(value: Any) -> int:
    """The place of a float32 number in ascending order: 0 for 0 and -0, 1 for the least positive number."""
    bits = int(value.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def _number(place: int) -> Any:
    bits = np.array(place if place >= 0 else -place, np.int32).view(np.float32)
    return bits if place >= 0 else -bits


def _value(place: int) -> Fraction:
    """The number at a place; 2**128 instead of infinity."""
    number = _number(place)
    return Fraction(float(number)) if np.isfinite(number) else Fraction(int(np.sign(number)) * 2**128)
