"""Confidence intervals of shares, means and ratios over samples, and of differences between models on the same samples.

All intervals are 95 % intervals. Sources: E. B. Wilson, "Probable inference, the law of succession, and statistical
inference", JASA 22 (1927); R. G. Newcombe, "Improved confidence intervals for the difference between binomial
proportions based on paired data", Statistics in Medicine 17 (1998), method 10; Q. McNemar, Psychometrika 12 (1947); B.
Efron, "Bootstrap methods", Annals of Statistics 7 (1979), percentiles; E. L. Korn and B. I. Graubard, "Confidence
intervals for proportions with small expected number of positive counts estimated from survey data", Survey Methodology
24 (1998); M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions" (1964), 26.7.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, erfc, sqrt

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array

Z = 1.959963984540054
"""The 97.5 % point of the normal distribution."""
RESAMPLES = 2000
BLOCKS = 4096
"""The most sums that `Blocks` keeps; more samples are resampled in groups of 2, 4, 8 ... neighbours."""
_AT_ONCE = 250
"""The number of resamples computed at a time, which bounds the memory."""


@frozen
class Interval:
    """A value with its 95 % limits; NaN if the samples do not determine them."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def known(self) -> tuple[float | None, float | None]:
        """The limits, or (None, None) if one is NaN."""
        return (self.low, self.high) if self.low == self.low and self.high == self.high else (None, None)


def wilson(hits: float, count: float) -> Interval:
    """A share with the limits of Wilson's score interval; NaN between 0 and 1 without samples.
    count: the number of samples, or an effective number, which need not be whole."""
    if not count:
        return Interval(float("nan"), 0.0, 1.0)
    share, square = hits / count, Z * Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z / (1 + square / count) * sqrt(share * (1 - share) / count + square / (4 * count * count))
    return Interval(share, 0.0 if hits == 0 else middle - half, 1.0 if hits == count else middle + half)


@frozen
class Pairs:
    """The number of samples that both models have right, only the first, only the second, or neither."""

    both: int
    first: int
    second: int
    neither: int

    @property
    def count(self) -> int:
        return self.both + self.first + self.second + self.neither

    def difference(self) -> Interval:
        """The second model's share minus the first's, with Newcombe's limits."""
        n = self.count
        if not n:
            return Interval(float("nan"), -1.0, 1.0)
        one, other = wilson(self.both + self.first, n), wilson(self.both + self.second, n)
        shared = self._correlation()
        value = (self.second - self.first) / n
        below, above = (other.value - other.low, one.high - one.value), (other.high - other.value, one.value - one.low)
        low, high = (sqrt(max(x * x - 2 * shared * x * y + y * y, 0.0)) for x, y in (below, above))
        return Interval(value, max(value - low, -1.0), min(value + high, 1.0))

    def _correlation(self) -> float:
        """Newcombe's phi, with his continuity correction."""
        a, b, c, d = self.both, self.first, self.second, self.neither
        product = (a + b) * (c + d) * (a + c) * (b + d)
        if not product:
            return 0.0
        over = a * d - b * c
        half = self.count / 2
        corrected = max(over - half, 0.0) if over > 0 else over
        return corrected / sqrt(product)

    def p_value(self) -> float:
        """McNemar's exact test: the probability of a split at least this uneven if both models are equally good."""
        n, few = self.first + self.second, min(self.first, self.second)
        if n > 1000:  # the normal approximation is exact to more digits than are shown
            return erfc(max(abs(self.first - self.second) - 1, 0) / sqrt(2 * n))
        return min(1.0, float(2 * sum(comb(n, k) for k in range(few + 1)) / 2**n))


class Blocks:
    """Sums of values over groups of neighbouring samples, in order: the data of a bootstrap, in bounded memory.

    names: the names of each sample's values.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._size = 1
        self._sums: list[list[float]] = []
        self._filled = 0

    def add(self, rows: Array) -> None:
        """Add rows, float64 [samples, names], in the order of the samples. The sums do not depend on how the samples
        are divided among calls. Rows with a NaN are skipped."""
        for row in rows.tolist():
            if any(value != value for value in row):
                continue
            if self._filled == 0:
                self._sums.append([*row, 1.0])
            else:
                last = self._sums[-1]
                for at, value in enumerate((*row, 1.0)):
                    last[at] += value
            self._filled = (self._filled + 1) % self._size
            if self._filled == 0 and len(self._sums) == BLOCKS:
                pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
                self._sums = [[a + b for a, b in zip(one, other, strict=True)] for one, other in pairs]
                self._size *= 2

    @property
    def count(self) -> int:
        return int(sum(row[-1] for row in self._sums))

    def totals(self) -> dict[str, float]:
        """The sums over all samples by name, with the number of samples as ``count``."""
        rows = np.array(self._sums, np.float64).reshape(-1, len(self.names) + 1)
        return dict(zip((*self.names, "count"), rows.sum(axis=0).tolist(), strict=True))

    def interval(self, of: Callable[[dict[str, Array]], Array]) -> Interval:
        """The value of `of` with the percentile limits of a bootstrap. of: maps arrays of sums by name to values.

        The resamples are the same in every process (seed 0). If there is only one sample, or all are alike, there are
        no limits.
        """
        rows = np.array(self._sums, np.float64).reshape(-1, len(self.names) + 1)
        names = (*self.names, "count")
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(of(dict(zip(names, rows.sum(axis=0, keepdims=True).T, strict=True)))[0])
            if len(rows) < 2:
                return Interval(value, float("nan"), float("nan"))
            random, found = np.random.default_rng(0), []
            even = np.full(len(rows), 1 / len(rows))
            for start in range(0, RESAMPLES, _AT_ONCE):
                often = random.multinomial(len(rows), even, size=min(_AT_ONCE, RESAMPLES - start))
                found.append(of(dict(zip(names, (often @ rows).T, strict=True))))
        low, high = np.percentile(np.concatenate(found), (2.5, 97.5), method="inverted_cdf")
        return Interval(value, float(low), float(high)) if low < high else Interval(value, float("nan"), float("nan"))

    def share(self, hits: str, of: str) -> Interval:
        """The share of `hits` among items that samples hold several of (`of`), such as tokens, with Wilson's limits.

        The items of one sample may be right or wrong together, so they count less than as many samples: the limits are
        those of the number of independent items that would vary as much (Korn and Graubard's effective number). It is
        at least the number of samples, which it equals if the items of a sample always agree, or if nothing varies.
        """
        rows = np.array(self._sums, np.float64).reshape(-1, len(self.names) + 1)
        right, held, samples = rows[:, self.names.index(hits)], rows[:, self.names.index(of)], rows[:, -1]
        total = float(held.sum())
        if not total:
            return wilson(0, 0)
        value, groups = float(right.sum()) / total, len(rows)
        number = total * total / float((held * held).sum()) * float(samples.sum()) / groups
        variance = float(((right - value * held) ** 2).sum()) * groups / max(groups - 1, 1) / (total * total)
        if groups > 1 and variance:
            found = value * (1 - value) / variance * (Z / _student(groups - 1)) ** 2
            number = min(max(found, number), max(total, number))
        limits = wilson(value * number, number)
        return Interval(value, limits.low, limits.high)


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t, within 3 % for two degrees of freedom, closer for more."""
    z, n = Z, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def mean_of(name: str) -> Callable[[dict[str, Array]], Array]:
    """A function for `Blocks.interval` that computes the mean of a value."""
    return lambda sums: np.divide(sums[name], sums["count"])


def decibels_of(signal: str, noise: str) -> Callable[[dict[str, Array]], Array]:
    """A function for `Blocks.interval` that computes the ratio of two energies in dB."""
    return lambda sums: np.asarray(10 * np.log10(np.divide(sums[signal], sums[noise])))
