"""The steps of an exact requantization, the candidates for a cheap one, and the proof that both are equal.

For a multiplier M = x_scale * w_scale / y_scale > 0 (three float32, a real number) the function acc -> saturate(RNE(acc
* M) + zero_point) does not decrease. So its 255 steps, the smallest int32 accumulators of every output value, determine
it. The other multipliers give functions that do not increase, or are constant: they get the steps of their mirror
image.

A candidate and the exact function are both monotone in the accumulator, so they agree on [low, high] if they agree at
low, at high, and at each reachable step and one below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import MAGIC, MAGIC_BITS
from qrun.native.machine.memory import Ints

Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

INT32 = (-(2**31), 2**31 - 1)
NEVER = 2**34
ALWAYS = -(2**34)
"""Steps that no int32 reaches, or that all have passed: as far away as float64 quotients may err by _NEAR."""
STEPS = 255
"""One step between each two of 256 codes."""
_NEAR = 2.0**-16
"""4 units in the last place of numbers up to NEVER."""

FloatBounds = Callable[[Floats, Floats, Floats], Floats]
"""A function that finds bounds as numpy_bounds does."""
Singles = np.ndarray[Any, np.dtype[np.float32]]

_CHUNK = 256
"""Channels whose steps are examined together: their 255 float64 each are half a megabyte, which stays in the cache."""
INSIDE = 2.0**22 - 600
"""Rounded products below it are whole numbers beside MAGIC, also after adding a zero point and all steps."""
SINGLE = 2**24
"""Integers below it are float32 numbers: their product with a small factor needs no rounding."""
RAISED = 2**22
RAISED_ENDS = 2**26
"""Accumulators that form y32 adds to the bits of MAGIC: below RAISED the sum is MAGIC plus the accumulator. Beyond, it
still grows with the accumulator, so that at the ends, up to RAISED_ENDS, the saturated result can be tried."""
_LONG = 2.0**31 - 600
"""The same as INSIDE, for results that are converted to int32."""
_FACTORS = (range(2, 17), range(17, 65), range(65, 257))
"""Factors of form x32 that leave one rounding, in parts: most channels are done after the first."""
_TRIALS = 1025 + 2 * (np.arange(400) * 611 % 1536)
"""Factors for the rest, odd numbers between 1025 and 4095: a step of 1222 among them lies far from the one before."""
_BATCH = 4096
"""Pairs of channels and factors that are examined together."""
_PICKS = 4
"""Likely factors of a channel that are proved before it is left to later factors."""
_TIGHTEST = 16
"""Accumulators that reject nearly all wrong factors, before a proof examines all steps."""


@frozen
class Steps:
    """For channels [N]: y = lowest + number of k with steps[:, k] <= v, where v = acc, or ~acc where `mirrored`.

    steps:      [N, 255] ascending int64; NEVER and ALWAYS (or anything outside int32) are beyond every accumulator.
    multiplier: [N] float64 value of M, correctly signed, possibly zero, infinite or NaN.
    plain:      [N] true where 0 < M < 512, finite and not mirrored: the cases in which fast forms are possible.
    """

    steps: Ints
    mirrored: Bools
    multiplier: Floats
    plain: Bools

    def part(self, channels: slice) -> Steps:
        """The steps of some channels."""
        names = ("steps", "mirrored", "multiplier", "plain")
        return Steps(*(getattr(self, name)[channels] for name in names))


def exact_steps(
    x_scale: np.float32, w_scale: np.ndarray[Any, Any], y_scale: np.float32, lowest: int, zero: int
) -> Steps:
    """The steps of y = saturate(RNE(acc * x_scale * w_scale / y_scale) + zero), NaN giving `lowest`.

    w_scale [N] float32. Exact for every float32, also subnormal, zero, negative and not finite ones.
    """
    x, w, y = np.float64(x_scale), np.asarray(w_scale, np.float32).astype(np.float64), np.float64(y_scale)
    m = multiplier(x_scale, w_scale, y_scale)
    size = np.abs(m)
    plain = is_plain(size)
    want = wanted_products(lowest, zero)
    steps = np.where(want <= 0, 0, 1) + np.zeros((len(w), 1), np.int64)
    if plain.any():
        steps[plain] = plain_steps(np.abs(x), np.abs(w[plain]), np.abs(y), want)
    steps[np.isinf(m)] = 1
    steps[m == 0] = np.where(want <= 0, ALWAYS, NEVER)
    mirrored = np.asarray(m < 0)
    steps[mirrored] -= 1
    steps[np.isnan(m)] = NEVER
    return Steps(steps, mirrored, m, plain & ~mirrored)


def multiplier(x_scale: np.float32, w_scale: np.ndarray[Any, Any], y_scale: np.float32) -> Floats:
    """The float64 [N] nearest to the real M, up to half a unit in its last place."""
    with np.errstate(all="ignore"):
        w = np.asarray(w_scale, np.float32).astype(np.float64)
        return np.asarray(np.float64(x_scale) * w / np.float64(y_scale))


def is_plain(m: Floats) -> Bools:
    """Whether fast forms are possible for these multipliers."""
    return np.asarray((m > 0) & (m < 512))


def wanted_products(lowest: int, zero: int) -> Ints:
    """int64 [255]: the rounded products at which the result steps."""
    return np.arange(1, STEPS + 1, dtype=np.int64) + (lowest - zero)


def plain_steps(x: np.float64, w: Floats, y: np.float64, want: Ints) -> Floats:
    """Smallest integers t with RNE(t * x * w / y) >= want, for 0 < x * w / y < 512: float64 [N, 255].

    The float64 quotients are right within 4 units in their last place: 2**-16 for those below NEVER. Where an integer
    is that near, integers decide.
    """
    quotients = np.multiply((y / (x * w))[:, None], want - 0.5)
    steps = np.ceil(quotients)
    above = np.subtract(steps, quotients, out=quotients)
    near = (above.min(axis=1) <= _NEAR) | (above.max(axis=1) >= 1 - _NEAR)
    near |= np.maximum(np.abs(steps[:, 0]), np.abs(steps[:, -1])) >= NEVER
    rows = np.flatnonzero(near)
    if len(rows):
        steps[rows] = _integer_steps(x, w[rows], y, want)
    return np.asarray(steps)


def _integer_steps(x: np.float64, w: Floats, y: np.float64, want: Ints) -> Ints:
    """Smallest t with RNE(t * x * w / y) >= want, for 0 < x * w / y < 512; NEVER and ALWAYS if far beyond int32.

    With odd mantissas, t * a * b / c * 2**e reaches want - 1/2 when t * p >= q; equality is a tie and counts only
    where want is even (d >= 0), else t * p must be larger (d >= 1). Compared through d = t * p - q modulo 2**64: for t
    next to the estimate |d| stays below 2**61, though p or q alone may not fit.
    """
    (a, ea), (b, eb), (c, ec) = _odd(np.asarray([x])), _odd(w), _odd(np.asarray([y]))
    shift = -(ea + eb - ec) - 1
    p = np.left_shift(a * b, np.clip(-shift, 0, 62))[:, None]
    up = np.maximum(shift, 0)[:, None]
    with np.errstate(over="ignore"):
        q = np.where(up < 64, np.left_shift((2 * want - 1) * c, np.minimum(up, 63)), 0)
        estimate = (want - 0.5) / (x * w / y)[:, None]
        near = np.abs(estimate) < NEVER
        t = np.floor(np.where(near, estimate, 0)).astype(np.int64)
        d = t * p - q - want % 2
        steps = t - 1
        for move in (-1, 0, 1):
            steps += d + move * p < 0
    return np.where(near, steps, np.where(estimate > 0, NEVER, ALWAYS))


def _odd(values: Floats) -> tuple[Ints, Ints]:
    """Positive float32 values as (odd integer below 2**24, exponent)."""
    fraction, exponent = np.frexp(values)
    mantissa = (fraction * 2.0**24).astype(np.int64)
    low = np.log2((mantissa & -mantissa).astype(np.float64)).astype(np.int64)
    return mantissa >> low, exponent.astype(np.int64) - 24 + low


def table_rows(steps: Steps) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Constants of the table form: thresholds int32 [N, 256], xor masks int32 [N], reachable steps int32 [N]."""
    low, high = INT32
    rows = np.full((len(steps.steps), STEPS + 1), high, np.int32)
    rows[:, :STEPS] = np.clip(steps.steps, low, high)
    cap = np.count_nonzero(steps.steps <= high, axis=1).astype(np.int32)
    return rows, np.where(steps.mirrored, -1, 0).astype(np.int32), cap


class Search:
    """The exact function of N channels with plain multipliers on [low, high], and the checks of candidates against it.

    scales: float64, positive: x, w [N], y. want [255]: the rounded products at the steps.
    m:    float64 [N], the multiplier.
    near: whether a step may be a tie.
    far:  the largest accumulator, by magnitude, that is a reachable step or one below it.
    begin, end: the range of reachable steps.
    """

    def __init__(
        self,
        scales: tuple[Any, Floats, Any],
        want: Ints,
        low: Ints,
        high: Ints,
        fma: bool,
        float_bounds: FloatBounds | None = None,
    ) -> None:
        self.scales, self.low, self.high, self.fma = scales, low, high, fma
        self._want, self.want = want, want.astype(np.float64)
        x, w, y = scales
        n = len(w)
        self.m = x * w / y
        self._weights = 1 / (self.want - 0.5)
        inverse = 1 / self.m
        self._bounds = (float_bounds or numpy_bounds)(inverse, self.want - 0.5, self._weights)
        self.near = ~_inside(self._bounds, inverse)
        self.begin, self.end = np.zeros(n, np.int64), np.full(n, STEPS)
        first, last = (np.ceil(inverse * (self.want[i] - 0.5)) for i in (0, -1))
        self.far = np.maximum(np.abs(first - 1), np.abs(last))
        special = np.flatnonzero(self.near | (first <= low) | (last > high))
        for start in range(0, len(special), _CHUNK):
            self._examine(special[start : start + _CHUNK])

    def _examine(self, rows: Ints) -> None:
        """Correct the bounds and ranges of channels that have steps near ties or out of reach."""
        steps = self.steps(rows)
        self.begin[rows] = np.count_nonzero(steps <= self.low[rows, None], axis=1)
        self.end[rows] = np.count_nonzero(steps <= self.high[rows, None], axis=1)
        self._bounds[:, rows] = self._inverse_bounds(steps, self._reach(rows))
        begin, end, each = self.begin[rows], self.end[rows], np.arange(len(rows))
        bottom, top = steps[each, np.minimum(begin, STEPS - 1)] - 1, steps[each, end - 1]
        self.far[rows] = np.where(begin < end, np.maximum(np.abs(bottom), np.abs(top)), 0)

    def _inverse_bounds(self, steps: Floats, reach: Bools) -> Floats:
        """The bounds between which 1 / product lies if multiplying by `product`, a real number, takes every reachable
        step to more than want - 1/2, and one below it to less: float64 [2, n].

        step / (want - 1/2) lies on one side of 1 / product, and (step - 1) / (want - 1/2) on the other. Their errors
        are below 2**-51 of the former, and 2**-52.
        """
        at = steps * self._weights
        below = at - self._weights
        positive = self._weights > 0
        low, high = np.where(positive, below, at), np.where(positive, at, below)
        return np.stack([np.where(reach, low, 0).max(axis=1), np.where(reach, high, np.inf).min(axis=1)])

    def steps(self, rows: Ints) -> Floats:
        """The sums at which the code changes, for some channels."""
        x, w, y = self.scales
        return plain_steps(x, w[rows], y, self._want)

    def serves(self, rows: Ints, a: Singles, b: Singles) -> Bools:
        """Whether the pairs (a, b) [n] are proven for channels `rows`, in form x32."""
        good = self._ends_agree(rows, a, b, self._ends(rows).astype(np.float32).astype(np.float64))
        # where a times a reachable step, or one below it, is exact, and only the product by b is rounded
        whole = (a == np.rint(a)) & (a >= 1) & (a <= 4096)
        exact = whole & (a * self.far[rows] < SINGLE) & self.fma
        sure = exact & self._steps_agree(rows, a.astype(np.float64) * b.astype(np.float64))
        left = np.flatnonzero(good & ~sure)
        good[left] = self.near[rows[left]] | ~exact[left]
        left = left[good[left]]
        good[left] = _in_parts(self._agrees, rows[left], a[left], b[left])
        return good

    def serves_raised(self, rows: Ints, a: Singles, b: Singles) -> Bools:
        """Whether pairs proven in form x32 also hold in form y32, which differs beyond +-2**22 only."""
        ends = self._ends(rows)
        good = (self.far[rows] < RAISED) & (np.abs(ends) < RAISED_ENDS).all(axis=1) & self.fma
        good &= _single(MAGIC * a.astype(np.float64)) == MAGIC * a.astype(np.float64)
        bits = np.where(good[:, None], ends, 0).astype(np.int32) + np.int32(MAGIC_BITS)
        ends = bits.view(np.float32).astype(np.float64) - MAGIC
        return np.asarray(good & self._ends_agree(rows, a, b, ends))

    def serves_float64(self) -> Bools:
        """Whether the multiplier in float64 is proven, for every channel."""
        rows = np.arange(len(self.m))
        ends = self._ends(rows) * self.m[:, None]
        good = (np.abs(ends) < _LONG).all(axis=1) & self._at_ends(rows, np.rint(ends))
        return np.asarray(good & _in_parts(self._agrees_in_float64, rows))

    def has_ties(self, rows: Ints) -> Bools:
        """Channels where float64 finds a reachable step, or one below it, within its own error of a tie."""
        return _in_parts(self._has_ties, rows)

    def _has_ties(self, rows: Ints) -> Bools:
        """Whether a sum is halfway between two codes, for each channel."""
        steps, near = self.steps(rows), np.zeros((len(rows), STEPS), np.bool_)
        for below in (0, 1):
            product = (steps - below) * self.m[rows, None]
            near |= np.abs(np.abs(product - np.rint(product)) - 0.5) < 2.0**-40
        return np.asarray((near & self._reach(rows)).any(axis=1))

    def candidates(
        self, found: Singles, rows: Ints, guess: tuple[Singles, Singles] | None = None
    ) -> Iterator[tuple[Ints, Singles, Singles]]:
        """Candidate pairs for `rows`, as long as found[row] is 0: (channels, a, b); a channel may occur several
        times."""
        m = self.m
        if guess is not None:
            yield rows, guess[0][rows], guess[1][rows]
            rows = rows[found[rows] == 0]
        if not len(rows):
            return
        yield rows, np.ones(len(rows), np.float32), m[rows].astype(np.float32)
        for factors in _FACTORS:
            rows = rows[found[rows] == 0]
            yield from self._factors(found, rows, np.array(factors))
        rows = rows[found[rows] == 0]
        tied = self.has_ties(rows)
        ties, rows = rows[tied], rows[~tied]
        single = m.astype(np.float32)
        for a in (single, np.nextafter(single, np.float32(np.inf)), np.nextafter(single, np.float32(0))):
            left = ties[found[ties] == 0]
            yield left, a[left], np.ones(len(left), np.float32)
        yield from self._trials(found, rows)

    def _factors(self, found: Singles, rows: Ints, factors: Ints) -> Iterator[tuple[Ints, Singles, Singles]]:
        """Pairs (factor, m / factor) with no rounding before the last one, whose proof is likely."""
        if len(rows):
            quotients = (self.m[rows, None] / factors).astype(np.float32)
            products = quotients.astype(np.float64) * factors
            likely = self._steps_agree(rows[:, None], products) & (factors * self.far[rows, None] < SINGLE)
            yield from _picks(found, rows, factors, quotients, likely)

    def _trials(self, found: Singles, rows: Ints) -> Iterator[tuple[Ints, Singles, Singles]]:
        """Pairs (trial, m / trial) that agree at the accumulators where candidates fail most often."""
        if not len(rows):
            return
        points, reached, want = self._tightest_sums(rows)
        size = max(1, _BATCH // len(rows))
        for start in range(0, len(_TRIALS), size):
            left = np.flatnonzero(found[rows] == 0)
            if not len(left):
                return
            factors = _TRIALS[start : start + size]
            quotients = (self.m[rows[left], None] / factors).astype(np.float32)
            rounded = _single(points[left, None] * factors[:, None])
            results = self._product(rounded, quotients.astype(np.float64)[..., None])
            likely = ((results >= want[left, None]) == reached[left, None]).all(axis=2)
            yield from _picks(found, rows[left], factors, quotients, likely)

    def _steps_agree(self, rows: Ints, product: Floats) -> Bools:
        """Whether multiplying by `product`, a real number, steps where the exact function does."""
        return _inside(self._bounds[:, rows], 1 / product)

    def _reach(self, rows: Ints) -> Bools:
        """Which steps the sums of each channel can reach."""
        columns = np.arange(STEPS)
        return np.asarray((columns >= self.begin[rows, None]) & (columns < self.end[rows, None]))

    def _ends(self, rows: Ints) -> Floats:
        """The least and the greatest sum of each channel."""
        return np.stack([self.low[rows], self.high[rows]], axis=1).astype(np.float64)

    def _product(self, p: Floats, b: Floats) -> Floats:
        """The rounded p * b, in one float32 operation or fused."""
        return np.asarray(np.rint(p * b if self.fma else _single(p * b)))

    def _ends_agree(self, rows: Ints, a: Singles, b: Singles, ends: Floats) -> Bools:
        """Whether the pairs give the exact results at `ends` [n, 2], the float32 values of low and high."""
        first, second = a.astype(np.float64)[:, None], b.astype(np.float64)[:, None]
        edge = _single(ends * first)
        inside = (np.abs(edge * second) < INSIDE).all(axis=1)
        return np.asarray(inside & self._at_ends(rows, self._product(edge, second)))

    def _at_ends(self, rows: Ints, results: Floats) -> Bools:
        """Whether the results at the least and greatest sums are the exact codes."""
        bottom = self.want[0] - 1
        exact = np.stack([self.begin[rows], self.end[rows]], axis=1) + bottom
        return np.asarray((np.minimum(np.maximum(results, bottom), bottom + STEPS) == exact).all(axis=1))

    def _agrees(self, rows: Ints, a: Singles, b: Singles) -> Bools:
        """Whether multipliers a, then b, in float32 give the exact codes at every step."""
        first, second = a.astype(np.float64)[:, None], b.astype(np.float64)[:, None]
        steps = self.steps(rows)
        at, below = (self._product(_single((steps - i) * first), second) for i in (0, 1))
        return self._at_steps(rows, at, below)

    def _agrees_in_float64(self, rows: Ints) -> Bools:
        """Whether the float64 multiplier gives the exact codes at every step."""
        m, steps = self.m[rows, None], self.steps(rows)
        return self._at_steps(rows, np.rint(steps * m), np.rint((steps - 1) * m))

    def _tightest_sums(self, rows: Ints) -> tuple[Floats, Bools, Floats]:
        """For each of `rows`: the accumulators [n, _TIGHTEST] where candidates fail most often; whether each is a step,
        or else one below a step; and the rounded product at that step."""
        steps, reach = self.steps(rows), self._reach(rows)
        both = np.concatenate([steps, steps - 1], axis=1)
        want = np.concatenate([np.where(reach, self.want, -np.inf), np.where(reach, self.want, np.inf)], axis=1)
        slack = np.abs(both * self.m[rows, None] / (want - 0.5) - 1)
        pick = np.argpartition(slack, _TIGHTEST, axis=1)[:, :_TIGHTEST]
        return np.take_along_axis(both, pick, 1), pick < STEPS, np.take_along_axis(want, pick, 1)

    def _at_steps(self, rows: Ints, at: Floats, below: Floats) -> Bools:
        """Whether rounded results at the reachable steps, and one below them, are the exact ones."""
        wrong = (at < self.want) | (below >= self.want)
        return np.asarray(~(wrong & self._reach(rows)).any(axis=1))


def numpy_bounds(inverse: Floats, halves: Floats, weights: Floats) -> Floats:
    """The same as Search._inverse_bounds for all steps, as float64 finds them for multipliers 1 / inverse [n].

    If `inverse` lies well between the bounds, these steps are the exact ones: the multiplier takes them to more than
    want - 1/2, and one below them to less.
    """
    bounds = np.empty((2, len(inverse)))
    room = np.empty((STEPS, min(len(inverse), _CHUNK)))
    column, weight, split = halves[:, None], weights[:, None], int(np.count_nonzero(halves < 0))
    for start in range(0, len(inverse), _CHUNK):
        chunk = inverse[start : start + _CHUNK]
        ratios, (low, high) = room[:, : len(chunk)], bounds[:, start : start + _CHUNK]
        np.multiply(np.ceil(np.multiply(chunk, column, out=ratios), out=ratios), weight, out=ratios)
        ratios[:split].max(axis=0, initial=0, out=low)
        ratios[split:].min(axis=0, initial=np.inf, out=high)
        np.subtract(ratios, weight, out=ratios)
        np.maximum(low, ratios[split:].max(axis=0, initial=0), out=low)
        np.minimum(high, ratios[:split].min(axis=0, initial=np.inf), out=high)
    return bounds


def _inside(bounds: Floats, inverse: Floats) -> Bools:
    """Whether an inverse lies within bounds, with a margin for rounding."""
    margin = inverse * 2.0**-48 + 2.0**-47
    return np.asarray((bounds[0] < inverse - margin) & (inverse + margin < bounds[1]))


def _picks(
    found: Singles, rows: Ints, factors: Ints, quotients: Singles, likely: Bools
) -> Iterator[tuple[Ints, Singles, Singles]]:
    """The first likely pairs [rows, factors] of each row, one after another."""
    for _ in range(_PICKS):
        pick = likely.argmax(axis=1)
        some = np.flatnonzero(likely[np.arange(len(rows)), pick] & (found[rows] == 0))
        if not len(some):
            return
        yield rows[some], factors[pick[some]].astype(np.float32), quotients[some, pick[some]]
        likely[some, pick[some]] = False


def _in_parts(check: Callable[..., Bools], *arrays: np.ndarray[Any, Any]) -> Bools:
    """check(*arrays), computed for _CHUNK channels at a time."""
    count = len(arrays[0])
    parts = [check(*(array[i : i + _CHUNK] for array in arrays)) for i in range(0, count, _CHUNK)]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def _single(values: Any) -> Floats:
    """Rounded to float32, as float64."""
    return np.asarray(values).astype(np.float32).astype(np.float64)
