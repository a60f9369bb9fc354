"""Search and proof of cheap requantizations that equal the exact one.

A candidate and the exact function are both monotone in the accumulator, so they agree on [low, high] if they agree at
low, at high, and at each reachable step and one below it. The two float32 constants of a candidate have only their
product prescribed; trying several pairs finds one that agrees for practically every channel. What is left goes to
float64, proven in the same way, and then to a table of the steps, which needs no proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qrun.native.errors import Declined
from qrun.native.forms import LIMITS, MAGIC, MAGIC_BITS
from qrun.native.thresholds import INT32, Bools, Floats, Ints, Steps, exact_steps

_CHUNK = 256
_BATCH = 256
_INSIDE = 2.0**22 - 600
_TRIALS = 1025 + 2 * (np.arange(400) * 611 % 1536)


@dataclass(frozen=True, slots=True)
class Target:
    """What a requantization computes.

    x_scale, y_scale: float32; w_scale: float32 [N] or [1].
    out, zero_point:  "u8" or "s8", and the output's zero point.
    arith:            "exact" or "ort".

    Raises Declined for anything else.
    """

    x_scale: np.float32
    w_scale: np.ndarray[Any, np.dtype[np.float32]]
    y_scale: np.float32
    out: str
    zero_point: int
    arith: str = "exact"

    def __post_init__(self) -> None:
        scales = (self.x_scale, self.w_scale, self.y_scale)
        if any(np.asarray(scale).dtype != np.float32 for scale in scales) or self.w_scale.ndim != 1:
            raise Declined("scales are not float32 numbers and a float32 vector")
        if self.out not in LIMITS or self.arith not in ("exact", "ort"):
            raise Declined(f"no native results of type {self.out} in {self.arith} arithmetic")
        low, high = LIMITS[self.out]
        if not low <= self.zero_point <= high:
            raise Declined(f"zero point {self.zero_point} is outside {low}..{high}")


@dataclass(frozen=True, slots=True)
class Proven:
    """Per channel: which forms equal the exact result, and their constants.

    y32, x32: a and b serve; f64: m serves (only looked for if some channel lacks x32).
    steps: for the table, which always serves.
    """

    y32: Bools
    x32: Bools
    f64: Bools
    a: np.ndarray[Any, np.dtype[np.float32]]
    b: np.ndarray[Any, np.dtype[np.float32]]
    m: Floats
    steps: Steps

    def part(self, channels: slice) -> Proven:
        names = ("y32", "x32", "f64", "a", "b", "m")
        parts = {name: getattr(self, name)[channels] for name in names}
        return Proven(**parts, steps=self.steps.part(channels))


class _Search:
    """The exact function of N channels on [low, high]; arrays are indexed by channel, then by step."""

    def __init__(self, steps: Steps, want: Ints, low: Ints, high: Ints, fma: bool) -> None:
        self.steps, self.want, self.low, self.high, self.fma = steps, want, low, high, fma
        t = steps.steps
        self.reach = (t > self.low[:, None]) & (t <= self.high[:, None])
        self.first = self.want[0, 0] - 1 + np.count_nonzero(t <= self.low[:, None], axis=1)
        self.last = self.want[0, 0] - 1 + np.count_nonzero(t <= self.high[:, None], axis=1)
        self.far = np.where(self.reach, np.maximum(np.abs(t), np.abs(t - 1)), 0).max(axis=1)

    def agrees(self, rows: Ints, results: Iterator[Floats], ends: tuple[Floats, Floats]) -> Bools:
        """Whether rounded results (at the steps, then one below) and those at the ends [n] are the exact ones."""
        reach, want = self.reach[rows], self.want
        good = np.ones(len(rows), np.bool_)
        good &= ~(reach & (next(results) < want)).any(axis=1)
        good &= ~(reach & (next(results) >= want)).any(axis=1)
        bottom, top = self.want[0, 0] - 1, self.want[0, -1]
        for end, exact in zip(ends, (self.first[rows], self.last[rows]), strict=True):
            good &= np.clip(end, bottom, top) == exact
        return good

    def float32(self, rows: Ints, a: Any, b: Any, raised: bool = False) -> Bools:
        """Whether the pair (a, b) [n] proves for channels `rows`, in form x32, or y32 if `raised`."""
        a, b = a.astype(np.float64)[:, None], b.astype(np.float64)[:, None]
        t = self.steps.steps[rows]
        ends = np.stack([self.low[rows], self.high[rows]], axis=1)
        low_high = _raised_value(ends) if raised else ends.astype(np.float32).astype(np.float64)
        edge = _single(low_high * a)
        result = self._product(edge, b)
        inside = (np.abs(edge * b) < _INSIDE).all(axis=1)
        steps = (self._product(_single((t - below).astype(np.float64) * a), b) for below in (0, 1))
        inside &= self.agrees(rows, steps, (result[:, 0], result[:, 1]))
        return np.asarray(inside)

    def _product(self, p: Floats, b: Floats) -> Floats:
        return np.asarray(np.rint(p * b if self.fma else _single(p * b)))

    def float64(self, rows: Ints, m: Floats) -> Bools:
        t = self.steps.steps[rows]
        ends = np.stack([self.low[rows], self.high[rows]], axis=1) * m[:, None]
        inside = (np.abs(ends) < 2.0**31 - 600).all(axis=1)
        steps = (np.rint((t - below) * m[:, None]) for below in (0, 1))
        edges = np.rint(ends)
        inside &= self.agrees(rows, steps, (edges[:, 0], edges[:, 1]))
        return np.asarray(inside)

    def has_ties(self, rows: Ints) -> Bools:
        """Channels where float64 finds a reachable step, or one below it, within its own error of a tie."""
        t, m = self.steps.steps[rows], self.steps.multiplier[rows, None]
        near = np.zeros(t.shape, np.bool_)
        for below in (0, 1):
            product = (t - below) * m
            near |= np.abs(np.abs(product - np.rint(product)) - 0.5) < 2.0**-40
        near &= self.reach[rows]
        return np.asarray(near.any(axis=1))


def _single(values: Any) -> Floats:
    return np.asarray(values).astype(np.float32).astype(np.float64)


def _raised_value(acc: Ints) -> Floats:
    """float_with_bits(acc + MAGIC_BITS) - MAGIC, exact for |acc| < 2**26."""
    inside = np.clip(acc, -(2**26), 2**26)
    return (inside + MAGIC_BITS).astype(np.int32).view(np.float32).astype(np.float64) - MAGIC


def prove(target: Target, low: Ints, high: Ints, fma: bool = True) -> Proven:
    """Find and prove the constants of every channel.

    low, high [N]: bounds of the accumulator, inside int32. fma: the CPU's float32 multiply-add rounds once.
    """
    n = len(low)
    scales = np.broadcast_to(target.w_scale, (n,))
    if n > 1 and (scales == scales[0]).all():
        one = _prove(target, scales[:1], low.min(keepdims=True), high.max(keepdims=True), fma)
        return _gather(_with_float64([one]), np.zeros(n, np.int64))
    parts = [
        _prove(target, scales[i : i + _CHUNK], low[i : i + _CHUNK], high[i : i + _CHUNK], fma)
        for i in range(0, n, _CHUNK)
    ]
    return _gather(_with_float64(parts), np.arange(n))


def _with_float64(parts: list[tuple[Proven, _Search]]) -> list[Proven]:
    if all(proven.x32.all() for proven, _ in parts):
        return [proven for proven, _ in parts]
    return [
        replace(proven, f64=proven.steps.plain & search.float64(np.arange(len(proven.m)), proven.m))
        for proven, search in parts
    ]


def _gather(parts: list[Proven], pick: Ints) -> Proven:
    def join(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])[pick]

    steps = [part.steps for part in parts]
    names = ("steps", "mirrored", "multiplier", "plain")
    joined = (np.concatenate([getattr(step, name) for step in steps])[pick] for name in names)
    parts_joined = {name: join(name) for name in ("y32", "x32", "f64", "a", "b", "m")}
    return Proven(**parts_joined, steps=Steps(*joined))


def _prove(target: Target, scales: Any, low: Ints, high: Ints, fma: bool) -> tuple[Proven, _Search]:
    lowest = LIMITS[target.out][0]
    steps = exact_steps(target.x_scale, scales, target.y_scale, lowest, target.zero_point)
    want = np.arange(1, 256, dtype=np.int64)[None] + (lowest - target.zero_point)
    search = _Search(steps, want, low, high, fma)
    n = len(low)
    a, b = np.zeros(n, np.float32), np.zeros(n, np.float32)
    done = np.zeros(n, np.bool_)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(low), np.abs(high)) * steps.multiplier
        small = steps.plain & (search.far < 2**24) & (size < _INSIDE)
        for rows, first, second in _candidates(search, done, small):
            if not len(rows):
                continue
            good = search.float32(rows, first, second)
            hit = rows[good]
            a[hit], b[hit], done[hit] = first[good], second[good], True
        m = np.where(steps.plain, steps.multiplier, 0.0)
        raised = done & (search.far < 2**22) & (np.maximum(np.abs(low), np.abs(high)) < 2**26) & fma
        raised &= _single(MAGIC * a.astype(np.float64)) == MAGIC * a.astype(np.float64)
        rows = np.flatnonzero(raised)
        raised[rows] = search.float32(rows, a[rows], b[rows], raised=True)
    return Proven(raised, done, np.zeros(n, np.bool_), a, b, m, steps), search


def _candidates(search: _Search, done: Bools, small: Bools) -> Iterator[tuple[Ints, Any, Any]]:
    """Pairs to try, for the channels not yet done: (channels, a, b); a channel may occur several times."""
    m = search.steps.multiplier
    rows = np.flatnonzero(small)
    yield rows, np.ones(len(rows), np.float32), m[rows].astype(np.float32)
    rows = rows[~done[rows]]
    factors = np.arange(1, 65)
    quotients = (m[rows, None] / factors).astype(np.float32)
    order = np.argsort(np.abs(quotients.astype(np.float64) * factors - m[rows, None]), axis=1)[:, :6]
    for pick in order.T:
        left = np.flatnonzero(~done[rows])
        yield rows[left], factors[pick[left]].astype(np.float32), quotients[left, pick[left]]
    rows = rows[~done[rows]]
    tied = search.has_ties(rows)
    ties, rows = rows[tied], rows[~tied]
    single = m.astype(np.float32)
    for a in (single, np.nextafter(single, np.float32(np.inf)), np.nextafter(single, np.float32(0))):
        left = ties[~done[ties]]
        yield left, a[left], np.ones(len(left), np.float32)
    start = 0
    while start < len(_TRIALS) and len(rows):
        trials = _TRIALS[start : start + max(1, _BATCH // len(rows))]
        start += len(trials)
        each = np.repeat(rows, len(trials))
        a = np.tile(trials, len(rows))
        yield each, a.astype(np.float32), (m[each] / a).astype(np.float32)
        rows = rows[~done[rows]]


def int32_bounds(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Bounds of the wrapped accumulator: those given, or all of int32 where they leave it."""
    wraps = (low < INT32[0]) | (high > INT32[1])
    return np.where(wraps, INT32[0], low), np.where(wraps, INT32[1], high)


def ort_multiplier(target: Target) -> np.ndarray[Any, np.dtype[np.float32]]:
    """fl32(fl32(x_scale * w_scale) / y_scale), the multiplier of onnxruntime; as many as w_scale has."""
    with np.errstate(all="ignore"):
        return np.asarray(np.float32(target.x_scale) * target.w_scale / np.float32(target.y_scale), np.float32)
