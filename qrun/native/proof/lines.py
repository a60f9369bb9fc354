"""Lines through tables of 8-bit codes: found, and proven on every entry of each table.

A line that somebody expects is tried first; only for tables that it does not give is the best slope searched.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.machine.memory import Ints
from qrun.native.proof.fits import CODES, CodeProduct, CodeSum, Singles, agree, mul_add, nudged
from qrun.native.proof.thresholds import Bools, Floats

_FAR = 1e6
"""Where a table is saturated, its line may lie so far beyond."""
_STEEPEST, _CUTS = 300.0, 8
"""The steepest slope that is searched, as one of 255 crosses all codes in a step; and how many slopes are tried."""
_TRIES = ((0, False), (0, True), (1, True), (-1, True))
"""Nudges of the slope, and whether the offset is that of the rounded slope or of the exact one."""


@frozen
class Expected:
    """An estimate: table number i is about slopes[i] * u + offsets[i], for codes u = 0..255."""

    slopes: Floats
    offsets: Floats

    def rows(self, chosen: Ints) -> Expected:
        return Expected(self.slopes[chosen], self.offsets[chosen])


def expected(near: CodeSum | CodeProduct, codes: Ints) -> Expected:
    """The lines of u for each code v."""
    other = np.asarray(codes, np.float64).reshape(-1) - near.v_zero
    if isinstance(near, CodeSum):
        return Expected(np.full(len(other), near.a), near.b * other - near.a * near.u_zero + near.zero)
    slopes = near.m * other
    return Expected(slopes, near.zero - slopes * near.u_zero)


def fit_lines(
    tables: Ints, limits: tuple[int, int], fma: bool, likely: Expected | None = None
) -> tuple[Bools, Singles, Singles, int]:
    """For tables [N, 256], values within limits: which have a line, its a and b, and the `add` of all.

    y = saturate(RNE(u * a + b) + add)

    likely: lines to try first.
    """
    best: tuple[Bools, Singles, Singles, int] | None = None
    for add in (0, 1):
        done = np.zeros(len(tables), np.bool_)
        a, b = np.zeros(len(tables), np.float32), np.zeros(len(tables), np.float32)
        for rows, slope, offset, product in _candidates(tables, limits, add, done, likely):
            value = mul_add(product, offset.astype(np.float64)[:, None], fma)
            good = agree(value, add, tables[rows], limits).all(axis=1)
            hit = rows[good]
            a[hit], b[hit], done[hit] = slope[good], offset[good], True
        if best is None or done.sum() > best[0].sum():
            best = done, a, b, add
        if done.all():
            break
    assert best is not None
    return best


def _candidates(
    tables: Ints, limits: tuple[int, int], add: int, done: Bools, likely: Expected | None
) -> Iterator[tuple[Ints, Singles, Singles, Floats]]:
    """Lines to try for the tables that are not done: their numbers, slopes, offsets,
    and slopes times codes [n, 256]."""
    if likely is not None:
        with np.errstate(over="ignore"):
            slope, offset = likely.slopes.astype(np.float32), (likely.offsets - add).astype(np.float32)
        rows = np.flatnonzero(np.isfinite(slope) & np.isfinite(offset))
        yield rows, slope[rows], offset[rows], _products(slope[rows])
    searched = np.flatnonzero(~done)
    if not len(searched):
        return
    low, high = limits
    left = tables[searched]
    upper = np.where(left >= high, _FAR, left + 0.5)
    lower = np.where(left <= low, -_FAR, left - 0.5)
    slopes = _slopes(upper, lower)
    for nudge, rounded in _TRIES:
        some = np.flatnonzero(~done[searched])
        slope = nudged(slopes[some], nudge)
        product = _products(slope)
        near = product if rounded else slopes[some, None] * CODES
        middle = ((lower[some] - near).max(axis=1) + (upper[some] - near).min(axis=1)) / 2
        yield searched[some], slope, (middle - add).astype(np.float32), product


def _products(slopes: Singles) -> Floats:
    return np.asarray(slopes.astype(np.float64)[:, None] * CODES)


def _slopes(upper: Floats, lower: Floats) -> Floats:
    """The slopes a of the lines that stay farthest inside lower <= a * u + b <= upper: cutting planes.

    The room that a slope leaves, min(upper - a * u) - max(lower - a * u), is concave and piecewise linear in a; the
    next slope is where the tangents at the ends of the range meet.
    """
    ends = [_tangents(upper, lower, np.full(len(upper), end)) for end in (-_STEEPEST, _STEEPEST)]
    (left_room, left_rise), (right_room, right_rise) = ends
    middle = np.zeros(len(upper))
    for _ in range(_CUTS):
        bend = left_rise - right_rise
        middle = np.where(bend > 0, (right_room - left_room) / np.where(bend > 0, bend, 1), middle)
        room, rise = _tangents(upper, lower, middle)
        left, right = rise >= 0, rise <= 0
        left_room, left_rise = np.where(left, room, left_room), np.where(left, rise, left_rise)
        right_room, right_rise = np.where(right, room, right_room), np.where(right, rise, right_rise)
    return middle


def _tangents(upper: Floats, lower: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """Tangents to the room (how far the limits are apart) as a function of the slope, at each of `slopes`.

    Gives the tangent's value at slope 0, and its rise.
    """
    product = slopes[:, None] * CODES
    rows = np.arange(len(slopes))
    top, bottom = np.argmin(upper - product, axis=1), np.argmax(lower - product, axis=1)
    return upper[rows, top] - lower[rows, bottom], (bottom - top).astype(np.float64)
