"""What groups alone do to the outputs, measured one by one, or, where that takes too long, by halving sets of them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from time import monotonic

import numpy as np

from qrun.comparing.differences import ErrorSums
from qrun.comparing.ranking.groups import Mixed
from qrun.comparing.ranking.local import Watch
from qrun.comparing.sides import Values
from qrun.ir import Array
from qrun.running.profiling import Progress

LEAST = 16
"""Measurements that are made however long they take."""
_PARTIAL = 0.6
"""Share of a whole run that the run behind one node takes, in the mean."""


class Effects:
    """Noise at the outputs when some groups take the place of the first model's operators, and nothing else does.

    The noise of groups that are quantized together is nearly the sum of what each adds. So when there is no time to
    measure each alone, the first run measures all of them together, and the set with the most noise is halved, and
    both halves measured, until the time is up: the dearest nodes come out alone, the others in sets that cost little.

    parts: what was measured of sets of groups (their places), in the end of disjoint ones.
    """

    def __init__(self, mixed: Mixed, watches: Sequence[Watch], runs: int, seconds: float, progress: Progress | None):
        self.mixed, self.watches, self.runs, self.seconds, self.progress = mixed, watches, runs, seconds, progress
        self.parts: dict[tuple[int, ...], list[ErrorSums]] = {}
        self._done = self._steps = 0

    def add(self, clean: Values, made: Sequence[Array]) -> None:
        """One run of the first model; made: what each group makes of its values."""
        self._start, self._steps = monotonic(), 0
        if self._done:
            for members in self.parts:
                self._measure(members, clean, made, len(self.parts))
        elif made:
            self._explore(clean, made)
        self._done += 1

    def _explore(self, clean: Values, made: Sequence[Array]) -> None:
        """Choose the sets, with the first run."""
        count, room = len(made), self.seconds / self.runs
        whole = tuple(range(count))
        ratio = self._measure(whole, clean, made, count)
        pending = [(-ratio, whole)]
        if (monotonic() - self._start) * count * _PARTIAL <= room:
            del self.parts[whole]
            pending = [(-self._measure((i,), clean, made, count), (i,)) for i in whole]
        heapq.heapify(pending)
        while any(len(members) > 1 for _, members in pending):
            if self._steps >= LEAST and monotonic() - self._start > room:
                break
            largest = min(part for part in pending if len(part[1]) > 1)
            pending.remove(largest)
            members = largest[1]
            del self.parts[members]
            for half in (members[: len(members) // 2], members[len(members) // 2 :]):
                pending.append((-self._measure(half, clean, made, count), half))

    def _measure(self, members: tuple[int, ...], clean: Values, made: Sequence[Array], total: int) -> float:
        if self.progress is not None:
            self._tell(total)
        self._steps += 1
        outputs = self.mixed.parts([clean[name] for name in self.mixed.outputs])
        groups = [self.watches[i].group for i in members if self.watches[i].sums.ratio]
        known = {groups[0].target: made[members[0]]} if len(members) == 1 and groups else None
        got = self.mixed.parts(self.mixed.run(clean, groups, known)) if groups else outputs
        sums = self.parts.setdefault(members, [ErrorSums() for _ in outputs])
        for one, x, want in zip(sums, got, outputs, strict=True):
            one.add(comparable(x), comparable(want))
        return mean_ratio(sums)

    def _tell(self, total: int) -> None:
        """How many of so many measurements of this run are made, and the time left."""
        spent = monotonic() - self._start
        left = spent / max(self._steps, 1) * max(0, (self.runs - self._done) * total - self._steps)
        rest = self.seconds * (self.runs - self._done) / self.runs - spent
        assert self.progress is not None
        self.progress(self._done * total + self._steps, total * self.runs, max(0.0, min(left, rest)))

    @property
    def measured(self) -> int:
        """How many groups were measured alone."""
        return sum(len(members) == 1 for members in self.parts)

    def ratios(self) -> list[tuple[float, bool]]:
        """For each group its noise to signal ratio at the outputs, and whether it was measured alone.

        Else it is the group's part of what its set does, by the noise of its own result.
        """
        found = [(0.0, False)] * len(self.watches)
        for members, sums in self.parts.items():
            ratio = mean_ratio(sums)
            own = [min(self.watches[i].sums.ratio, 1.0) for i in members]
            for i, noise in zip(members, own, strict=True):
                alone = len(members) == 1
                found[i] = (ratio if alone else ratio * noise / math.fsum(own) if noise else 0.0, alone)
        return found


def mean_ratio(sums: Sequence[ErrorSums]) -> float:
    """The mean ratio of noise to signal over the outputs that are `averaged`; 0 without any."""
    counted = averaged(sums)
    return math.fsum(s.ratio for s in counted) / len(counted) if counted else 0.0


def averaged(sums: Sequence[ErrorSums]) -> Sequence[ErrorSums]:
    """The outputs whose noise counts: those of floats, as labels and indices beside them are exact until they jump;
    all of them if none is."""
    return [s for s in sums if not s.whole] or sums


def comparable(array: Array) -> Array:
    """Numbers; other elements as integers that are all alike."""
    return array if array.dtype.kind in "fiub" else np.zeros(array.shape, np.int8)
