"""How int32 sums become results: the form of requantization for each panel of channels, and its packed constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo, memoize
from qrun.native.emit.spec import LIMITS, MAGIC
from qrun.native.machine.engine import Engine, Ints
from qrun.native.machine.memory import aligned_copy
from qrun.native.proof.epilogue import REASONS, Proven, Target, int32_bounds, ort_multiplier, prove_forms
from qrun.native.proof.search import exact_steps, table_rows

_PROVEN_FORMS = ("y32", "x32", "f64")
_TOGETHER = 64
"""Counts of equal channels are rounded up to this: the channels of the widest panel, a multiple of all others."""
PanelRun = tuple[int, int, int, str]
"""Neighbouring panels of a group that share a kernel: first channel, vectors of a panel, panels, form."""


@frozen
class Results:
    """A requantization target and its proofs, or neither: then the int32 sums themselves are stored.

    alike: if not 0, all channels take the cheapest form with the same constants, and there are at most this many.
    memo: keeps runs of panels, and packed constants by form and channels.
    """

    target: Target | None
    proven: Proven | None
    alike: int = 0
    memo: Memo = field(default_factory=Memo)

    @classmethod
    def of(cls, target: Target | None, bounds: Callable[[], tuple[Ints, Ints]], engine: Engine) -> Results:
        """The results of a target, with proofs if its arithmetic needs them. bounds: called then; it returns the least
        and the greatest sum of each channel."""
        if target is None or target.arith == "ort":
            return cls(target, None)
        low, high = bounds()
        return cls(
            target, prove_forms(target, *int32_bounds(low, high), engine.kernels, engine.isa) if len(low) else None
        )

    @property
    def out(self) -> str:
        """The results' type in a kernel's spec: the codes' type, or i32 for sums."""
        return self.target.out if self.target else "i32"

    @property
    def size(self) -> int:
        """The bytes of one result."""
        return 1 if self.target else 4

    @property
    def zero_point(self) -> int:
        """The results' zero point."""
        return self.target.zero_point if self.target else 0

    @memoize
    def part(self, first: int, end: int) -> Results:
        """The results of channels first..end-1."""
        if self.target is None:
            return Results(None, None)
        scales = self.target.w_scale
        target = replace(self.target, w_scale=scales[first:end] if scales.size > 1 else scales)
        return Results(target, self.proven.part(slice(first, end)) if self.proven else None)

    @memoize
    def panels(self, lanes: int, most: int, channels: int, groups: int) -> list[PanelRun]:
        """The panels of groups of `channels` channels each, as runs that have a kernel of their own.

        lanes: of a vector. most: the most vectors of a panel.
        """
        runs: list[PanelRun] = []
        left, first = -(-channels // lanes), 0
        while left:
            vectors = min(most, left)
            end = first + vectors * lanes
            own = [np.arange(g * channels + first, g * channels + min(end, channels)) for g in range(groups)]
            form = self.form(np.concatenate(own))
            if runs and runs[-1][1::2] == (vectors, form):
                start, _, panels, _ = runs.pop()
                runs.append((start, vectors, panels + 1, form))
            else:
                runs.append((first, vectors, 1, form))
            first, left = end, left - vectors
        return runs

    def form(self, channels: slice | Ints) -> str:
        """The cheapest form that is proven for all these channels."""
        if self.target is None:
            return "i32"
        if self.proven is None:
            return "ort"
        return next((form for form in _PROVEN_FORMS if getattr(self.proven, form)[channels].all()), "table")

    def why(self, form: str, channels: Ints) -> str:
        """The reason why these channels take `form` and not a cheaper one; "" for the cheapest form, and if there is no
        choice."""
        forms = (*_PROVEN_FORMS, "table")
        if self.proven is None or form not in forms[1:]:
            return ""
        part = self.proven.part(channels)
        lacking = part.why[~getattr(part, forms[forms.index(form) - 1])]
        if not len(lacking):
            return ""
        reason = REASONS[int(np.bincount(lacking).argmax())]
        missed = ", which float64 misses" if form == "table" and reason == "exact ties" else ""
        count, total = len(lacking), len(part.why)
        return reason + missed + (f" ({count} of {total} channels)" if count < total else "")

    def constants(self, form: str, pick: Ints) -> np.ndarray[Any, Any]:
        """The constants in the order in which kernels read them. pick: the channels [panels, lanes], -1 for none."""
        values = self._constants(form, np.maximum(pick, 0), pick < 0)
        return aligned_copy(values)

    def _constants(self, form: str, lane: Ints, absent: Any) -> np.ndarray[Any, Any]:
        """The constants of a form for each lane; zeros where a lane has no channel."""
        if self.target is None:
            return np.zeros(0, np.float32)
        if self.proven is None:
            m = ort_multiplier(self.target)
            return np.where(absent, np.float32(0), m[lane] if m.size > 1 else m)
        p = self.proven
        if form == "f64":
            return np.where(absent, 0.0, p.m[lane])
        if form == "table":
            rows, flips, caps = self._table(lane)
            return np.concatenate([rows.reshape(len(lane), -1), flips, caps], axis=1)
        a, b = (np.where(absent, np.float32(0), values[lane]) for values in (p.a, p.b))
        return np.concatenate([a, b] + [np.float32(-MAGIC) * a] * (form == "y32"), axis=1)

    def _table(self, lane: Ints) -> list[np.ndarray[Any, Any]]:
        """The result of `table_rows`, by panel and lane."""
        assert self.target is not None
        channels, pick = np.unique(lane, return_inverse=True)
        scales, lowest = self.target.w_scale, LIMITS[self.target.out][0]
        chosen = scales[channels] if scales.size > 1 else np.repeat(scales, len(channels))
        steps = exact_steps(self.target.x_scale, chosen, self.target.y_scale, lowest, self.target.zero_point)
        return [values[pick.reshape(lane.shape)] for values in table_rows(steps)]


def requantization(
    engine: Engine, target: Target, channels: int, low: int, high: int, memo: Memo | None = None
) -> Results:
    """The requantization of sums within low..high, with one scale for all channels, and its proofs, if any.

    memo: of the target. Bounds are first widened to a power of two, so that one search serves many callers: a form that
    is proven for wider bounds holds for narrower ones. Only if the cheapest form fails there, the exact bounds are
    searched. Similar numbers of channels share one result.
    """
    if target.arith != "ort" and target.w_scale.size == 1:
        end = 1 << max(-low, high).bit_length()
        memo = memo or Memo()
        wider = memo.once(("requantization", end), lambda: _uniform_results(engine, target, 1, -end, end).proven)
        if wider is not None and wider.y32.all():
            whole = -(-channels // _TOGETHER) * _TOGETHER
            lanes = np.zeros(whole, np.int64)
            return memo.once(("requantization", end, whole), lambda: Results(target, wider.part(lanes), whole))
    return _uniform_results(engine, target, channels, low, high)


def _uniform_results(engine: Engine, target: Target, channels: int, low: int, high: int) -> Results:
    """Results whose sums have the same range in all channels."""
    return Results.of(target, lambda: (np.full(channels, low), np.full(channels, high)), engine)
