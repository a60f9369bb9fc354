"""Means of windows of integers: finds the cheapest form that equals the definition at every sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import LIMITS
from qrun.native.errors import Declined
from qrun.native.machine.memory import Array, Ints, aligned
from qrun.native.proof.search import Bools, Floats

Rule = Callable[[Ints, float], Array]
"""The definition: takes sums of (x - x_zero), any shape, and the divisor; returns the output codes."""

_ALL = 1 << 16
"""Up to this many sums are all checked; of more, those where the code steps."""
_TABLE = 1 << 22
"""The most codes in a table: beyond 4 MB it is not worth it."""
_WHY = {
    "x32": "",
    "f64": "float32 misses a mean",
    "q64": "exact ties, which a float64 product misses",
    "table": "an empty window or an unusual scale",
}
_INSIDE = 2.0**30
"""Far inside int32, to which kernels convert."""
_FACTORS = np.arange(1, 65)
_TRIALS = 1025 + 2 * (np.arange(200) * 611 % 1536)
"""Factors of form x32, as in search.py."""


@frozen
class Means:
    """The constants of a SumPool.

    form:      x32: RNE(fl32(fl32(float32(sum) * a) * b)); f64: RNE(fl64(sum * m)); q64: RNE(fl64(fl64(sum * scale) /
               d)); all plus `zero`, saturated. table: a lookup.
    constants: 8 bytes for each output pixel; for a lookup int64 places in `table`. why: why no cheaper form applies.
    """

    form: str
    constants: Array
    zero: int
    scale: float = 1.0
    table: Array | None = None
    why: str = ""

    @classmethod
    def of(
        cls,
        rule: Rule,
        scales: tuple[float, float],
        inside: Ints,
        divisors: Floats,
        x_range: tuple[int, int],
        zero: int,
        out: str,
    ) -> Means:
        """The cheapest form. inside, divisors [pixels]: elements of each window, and the divisor of its sum.

        rule:    the definition; for positive scales it does not decrease with the sum.
        scales:  of x and y: sum * x_scale / (y_scale * divisor) is about y - zero.
        x_range: least and largest x - x_zero. zero, out: the result's zero point and type, "u8" or "s8".
        """
        keys, which = np.unique(np.stack([inside, divisors]), axis=1, return_inverse=True)
        classes = [_Class(rule, scales, int(n), float(d), x_range, zero, out) for n, d in keys.T]
        which = which.reshape(-1)
        for form, dtype in (("x32", np.float32), ("f64", np.float64), ("q64", np.float64)):
            found = [getattr(c, form)() for c in classes]
            if all(pair is not None for pair in found):
                constants = aligned((len(inside), 8 // np.dtype(dtype).itemsize), dtype)
                constants[...] = np.asarray(found, dtype).reshape(len(classes), -1)[which]
                return cls(form, constants, zero, scales[0], why=_WHY[form])
        tables = [c.table() for c in classes]
        starts = np.cumsum([0, *(len(t) for t in tables)])[:-1] - [c.low for c in classes]
        constants = aligned((len(inside), 1), np.int64)
        constants[:, 0] = starts[which]
        table = aligned(sum(len(t) for t in tables), np.uint8)
        table[...] = np.concatenate(tables)
        return cls("table", constants, zero, table=table, why=_WHY["table"])


class _Class:
    """Windows of n elements whose sums are divided by the same divisor."""

    def __init__(
        self,
        rule: Rule,
        scales: tuple[float, float],
        n: int,
        divisor: float,
        x_range: tuple[int, int],
        zero: int,
        out: str,
    ) -> None:
        self.rule, self.divisor, self.zero, self.limits = rule, divisor, zero, LIMITS[out]
        self.low, self.high = n * x_range[0], n * x_range[1]
        with np.errstate(all="ignore"):
            self.scale, self.den = np.float64(scales[0]), np.float64(scales[1]) * divisor
            self.multiplier = float(self.scale / self.den)
        self.sums = self._points()
        self.codes = np.asarray(rule(self.sums, divisor)).astype(np.int64)

    def _points(self) -> Ints:
        """All sums; if there are very many: those where the result steps, those one below, and the ends."""
        if self.high - self.low < _ALL:
            return np.arange(self.low, self.high + 1, dtype=np.int64)
        if not 0 < self.multiplier < np.inf:
            raise Declined("windows this large with an unusual scale")
        want = np.arange(self.limits[0] + 1, self.limits[1] + 1)
        low, high = np.full(want.shape, self.low), np.full(want.shape, self.high + 1)
        while (low < high).any():
            middle = (low + high) // 2
            reached = np.asarray(self.rule(np.minimum(middle, self.high), self.divisor)) >= want
            reached |= middle > self.high
            open_ = low < high
            high = np.where(open_ & reached, middle, high)
            low = np.where(open_ & ~reached, middle + 1, low)
        near = np.concatenate([[self.low, self.high], low, low - 1])
        return np.array(sorted({*np.clip(near, self.low, self.high).tolist()}))

    def x32(self) -> tuple[np.float32, np.float32] | None:
        """The constants a and b of form x32 that reproduce the codes, or None."""
        if max(-self.low, self.high) > 2**24:
            return None
        sums = self.sums.astype(np.float32)
        with np.errstate(all="ignore"):
            return next(((a, b) for a, b in self._pairs() if self._agrees(sums * a * b)), None)

    def f64(self) -> np.float64 | None:
        """The float64 multiplier, if it gives all codes exactly; else None."""
        with np.errstate(all="ignore"):
            m = np.float64(self.multiplier)
            return m if self._agrees(self.sums * m) else None

    def q64(self) -> np.float64 | None:
        """The divisor, if scale and division in float64 give all codes exactly; else None."""
        with np.errstate(all="ignore"):
            return self.den if self._agrees(self.sums * self.scale / self.den) else None

    def _agrees(self, value: Array) -> bool:
        """Whether values round to the exact codes of all sums."""
        inside: Bools = np.abs(value) < _INSIDE
        return bool(inside.all()) and bool(
            (np.clip(np.rint(value).astype(np.int64) + self.zero, *self.limits) == self.codes).all()
        )

    def _pairs(self) -> Iterator[tuple[np.float32, np.float32]]:
        """Pairs of float32 factors whose product is near the multiplier, most promising first."""
        m, one = np.float32(self.multiplier), np.float32(1)
        if not np.isfinite(self.multiplier) or abs(m) < np.finfo(np.float32).tiny:
            return
        yield m, one
        for way in (np.inf, -np.inf):
            near = m
            for _ in range(2):
                near = np.nextafter(near, np.float32(way))
                yield near, one
        quotients = (self.multiplier / _FACTORS).astype(np.float32)
        for i in np.argsort(np.abs(quotients.astype(np.float64) * _FACTORS - self.multiplier))[:6]:
            yield np.float32(_FACTORS[i]), quotients[i]
        for trial in _TRIALS:
            yield np.float32(trial), np.float32(self.multiplier / trial)

    def table(self) -> Array:
        """The code of every sum, and three bytes of padding for kernels that read four at a time."""
        count = self.high - self.low + 1
        if count > _TABLE:
            raise Declined("no multiplier gives the exact results of windows this large")
        sums = self.sums if len(self.sums) == count else np.arange(self.low, self.high + 1, dtype=np.int64)
        table = np.zeros(count + 3, np.uint8)
        table[:count] = np.asarray(self.rule(sums, self.divisor)).astype(np.int64) & 0xFF
        return table
