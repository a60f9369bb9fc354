"""Sums over all runs from which signal to noise, cosine and the largest error of a tensor follow."""

from __future__ import annotations

import math

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array


@frozen
class Noise:
    """How far the elements of a tensor are from what they should be, over all runs.

    sqnr:    signal to quantization noise ratio, ``10 log10(sum(want^2) / sum((got - want)^2))`` dB; inf without noise,
             -inf where the signal is 0, nan where there is no element.
    cosine:  of the angle between both as vectors; 1 if both are 0, 0 if one is.
    largest: absolute error.
    count:   elements; odd: those that are NaN or infinite on one side only, or infinite with other signs; they are in
             none of the sums, and neither are those that are so on both sides.
    ratio:   noise to signal, the sqnr as a number: sum((got - want)^2) / sum(want^2).
    """

    KEYS = {"sqnr_db": "sqnr", "cosine": "cosine", "max_abs": "largest", "elements": "count", "odd": "odd"}

    sqnr: float
    cosine: float
    largest: float
    count: int
    odd: int
    ratio: float


class ErrorSums:
    """Sums over the elements of one tensor, run by run."""

    __slots__ = ("count", "largest", "noise", "odd", "power", "product", "signal")

    def __init__(self) -> None:
        self.signal = self.power = self.product = self.noise = self.largest = 0.0
        self.count = self.odd = 0

    def add(self, got: Array, want: Array) -> None:
        """Add the elements of one run; the arrays have the same number of elements."""
        a, b = (np.asarray(x, np.float64).reshape(-1) for x in (got, want))
        self.count += a.size
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            self.odd += int(np.count_nonzero(~finite & ~same))
            a, b = a[finite], b[finite]
        if not a.size:
            return
        error = a - b
        self.signal += float(b @ b)
        self.power += float(a @ a)
        self.product += float(a @ b)
        self.noise += float(error @ error)
        self.largest = max(self.largest, float(np.abs(error).max()))

    @property
    def ratio(self) -> float:
        if self.odd:
            return math.inf
        if not self.noise:
            return 0.0
        return self.noise / self.signal if self.signal else math.inf

    def result(self) -> Noise:
        size = math.sqrt(self.signal) * math.sqrt(self.power)
        cosine = min(1.0, self.product / size) if size else float(not self.signal and not self.power)
        sqnr = decibels(self.ratio) if self.count else math.nan
        return Noise(sqnr, cosine, self.largest, self.count, self.odd, self.ratio)


def decibels(ratio: float) -> float:
    """A noise to signal ratio as SQNR in dB."""
    return math.inf if ratio == 0 else -math.inf if ratio == math.inf else -10 * math.log10(ratio)
