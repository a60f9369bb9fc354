"""Where an exact requantization steps: the smallest int32 accumulator of every output value.

For a multiplier M = x_scale * w_scale / y_scale > 0 (three float32, a real number) the function
acc -> saturate(RNE(acc * M) + zero_point) does not decrease, so its 255 steps say everything about it. The other
multipliers give functions that do not increase, or are constant: they get the steps of their mirror image.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.machine.memory import Ints

Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

INT32 = (-(2**31), 2**31 - 1)
NEVER = 2**34
ALWAYS = -(2**34)
"""Steps that no int32 reaches, or all have passed: as far away as float64 quotients may err by _NEAR."""
STEPS = 255
"""One between each two of 256 codes."""
_NEAR = 2.0**-16
"""4 units in the last place of numbers up to NEVER."""


@frozen
class Steps:
    """For channels [N]: y = lowest + number of k with steps[:, k] <= v, where v = acc, or ~acc where `mirrored`.

    steps:      [N, 255] ascending int64; NEVER and ALWAYS (or anything outside int32) are beyond every accumulator.
    multiplier: [N] float64 value of M, correctly signed, possibly zero, infinite or NaN.
    plain:      [N] true where 0 < M < 512, finite and not mirrored: the cases that fast forms may take.
    """

    steps: Ints
    mirrored: Bools
    multiplier: Floats
    plain: Bools

    def part(self, channels: slice) -> Steps:
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
    want = wanted(lowest, zero)
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
    """float64 [N] nearest to the real M, but for half a unit in its last place."""
    with np.errstate(all="ignore"):
        w = np.asarray(w_scale, np.float32).astype(np.float64)
        return np.asarray(np.float64(x_scale) * w / np.float64(y_scale))


def is_plain(m: Floats) -> Bools:
    """Multipliers that fast forms may take."""
    return np.asarray((m > 0) & (m < 512))


def wanted(lowest: int, zero: int) -> Ints:
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
