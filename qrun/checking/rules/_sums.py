"""How far the int32 sums of a product can go, from its real weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

from qrun.checking.rules._weights import Weight
from qrun.ir import Array

LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Bound:
    """The sum furthest from 0 that some input reaches. row: its output channel; terms: products in a sum."""

    row: int
    sum: int
    bias: int
    terms: int

    @property
    def wraps(self) -> bool:
        return not -LIMIT <= self.sum < LIMIT

    @property
    def headroom(self) -> float:
        """Bits between this sum and the end of int32; below 0 if it does not fit."""
        return 31 - log2(max(1, self.sum if self.sum >= 0 else -self.sum - 1))


def bound(w: Weight, enough: int) -> Bound | None:
    """The worst sum, or None if it is surely at most `enough`, or the other operand's type is not known."""
    x = w.x.dtype
    if x is None or x.kind not in "iu" or x.itemsize > 2:
        return None
    limits, wide = np.iinfo(x), np.iinfo(w.codes.dtype)
    rows = w.rows()
    bias = _bias(w, len(rows))
    terms = rows.shape[1]
    span_x, span_w = int(limits.max) - int(limits.min), int(wide.max) - int(wide.min)
    if terms * span_x * span_w + int(np.abs(bias).max(initial=0)) <= enough:
        return None
    zero = w.x.zero.astype(np.int64) if w.x.zero is not None else np.array([limits.min, limits.max], np.int64)
    if not zero.size:
        return None
    high, low = int(limits.max) - int(zero.min()), int(limits.min) - int(zero.max())
    up, down = _parts(rows, w.zeros(rows))
    top, bottom = up * high - down * low + bias, up * low - down * high + bias
    best, worst = int(np.argmax(top)), int(np.argmin(bottom))
    if int(top[best]) >= -int(bottom[worst]) - 1:
        return Bound(best, int(top[best]), int(bias[best]), terms)
    return Bound(worst, int(bottom[worst]), int(bias[worst]), terms)


def _parts(rows: Array, zero: Array) -> tuple[Array, Array]:
    """For each row the sum of its weights above 0, and of those below, without sign."""
    if not zero.any():
        total = rows.sum(1, dtype=np.int64)
        up = np.maximum(rows, rows.dtype.type(0)).sum(1, dtype=np.int64)
    else:
        real = rows - zero
        total, up = real.sum(1), np.maximum(real, 0).sum(1)
    return up, up - total


def _bias(w: Weight, rows: int) -> Array:
    """The bias of each row; none where it does not fit, which QR305 tells, or was clipped, which QR312 tells."""
    if w.b is None or w.b.dtype != np.int32 or w.b.size not in (1, rows):
        return np.zeros(rows, np.int64)
    bias = w.b.reshape(-1).astype(np.int64)
    clipped = (bias == LIMIT - 1) | (bias == -LIMIT)
    return np.broadcast_to(np.where(clipped, 0, bias), (rows,))
