"""Blocks of QuantizeLinear: quotients, their codes, and what was seen in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare import Later
from qrun.ir import Array
from qrun.ir.types import FLOAT8
from qrun.ops._context import Context
from qrun.ops._quantize import limits

if TYPE_CHECKING:
    from qrun.ops import _narrow
else:
    _narrow = Later("qrun.ops._narrow")

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


def divide(x: Array, scale: Array, division: np.dtype[Any], out: Array) -> None:
    """x / scale, operands and quotient in the division type, written as float32 (or float64 for that type)."""
    with np.errstate(all="ignore"):
        if division == SINGLE and x.dtype == scale.dtype == SINGLE:
            np.divide(x, scale, out=out)
        elif division in (SINGLE, DOUBLE):
            np.divide(x.astype(division), scale.astype(division), out=out)
        else:
            a, b = (v.astype(division).astype(SINGLE) for v in (x, scale))
            np.divide(a, b, out=out)
            out[...] = out.astype(division)


def round_codes(q: Array, zero: Array | None, out: Array, counts: Counts) -> None:
    """saturate(RNE(q) + zero) in place; NaN to the smallest value."""
    low, high = limits(out.dtype)
    with np.errstate(all="ignore"):
        np.rint(q, out=q)
        if zero is not None and zero.size == 1:
            offset: Any = int(zero.reshape(()))
        else:
            offset = 0 if zero is None else zero.astype(np.int32).astype(q.dtype)
        bottom, top = low - offset, high - offset
        counts.integers(q, bottom, top)
        np.clip(q, bottom, top, out=q)
        if np.isnan(q.max()):
            counts.nan(q)
            np.copyto(q, np.asarray(bottom, q.dtype), where=np.isnan(q))
        if zero is not None:
            np.add(q, offset, out=q)
        if out.dtype.kind == "V":
            out[...] = q.astype(np.int8).astype(out.dtype)
        else:
            np.copyto(out, q, casting="unsafe")


class Counts:
    """Saturated elements, NaN and infinities, over the blocks of one tensor."""

    def __init__(self, observing: bool) -> None:
        self.observing = observing
        self.saturated = self.missing = 0
        self.infinite = False

    def integers(self, q: Array, bottom: Any, top: Any) -> None:
        if self.observing:
            self.infinite |= bool(np.isinf(q).any())
            self.saturated += int(np.count_nonzero(q > top))
            if np.any(bottom):
                self.saturated += int(np.count_nonzero(q < np.where(bottom, bottom, -np.inf)))

    def nan(self, q: Array) -> None:
        self.missing += int(np.count_nonzero(np.isnan(q)))

    def narrow(self, q: Array, target: np.dtype[Any]) -> None:
        if self.observing:
            self.saturated += int(np.count_nonzero(np.abs(q) > _narrow.largest(target)))
            if target not in FLOAT8:
                self.missing += int(np.count_nonzero(np.isnan(q)))

    def report(self, ctx: Context, x: Array) -> None:
        ctx.observe("saturated", "y", self.saturated, x.size)
        if self.missing and ctx.observing:
            ctx.observe("nan-quantized", "x", self.missing, x.size, _first(np.isnan(x)))
        if self.infinite:
            infinite = np.isinf(x)
            ctx.observe("infinite-quantized", "x", int(np.count_nonzero(infinite)), x.size, _first(infinite))


def _first(found: Array) -> list[int]:
    """The index of the first element, if there is one."""
    return [int(i) for i in np.unravel_index(int(np.argmax(found)), found.shape)] if found.any() else []
