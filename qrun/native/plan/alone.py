"""Which calls of a plan helpers leave to the leader: those that take less time than it costs to share them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.emit.spec import PASS, SKIP
from qrun.native.machine.memory import Ints
from qrun.native.plan.stamps import Stamp

_SMALL = 3000
"""Nanoseconds of work that two threads do not do sooner than one: taking tiles and waiting for each other moves some lines
of memory between their caches, each some hundred nanoseconds."""
_RUNS = 4
"""Runs in which calls are measured. The shortest time counts, which depends least on what else the machine does."""


class Alone:
    """What the runs of one plan say of its calls.

    tiles: of each call; a call without tiles is nobody's. marks: after which calls all threads wait.
    """

    def __init__(self, tiles: Sequence[int] | Ints, marks: Sequence[bool] | Ints) -> None:
        self.tiles, self.marks = np.array(tiles, np.int64), marks
        self.work = np.full(len(tiles), np.iinfo(np.int64).max)
        self.runs = 0

    @property
    def known(self) -> bool:
        return self.runs >= _RUNS

    def measure(self, stamps: Sequence[Stamp]) -> None:
        """Note how long all threads together worked on each call."""
        self.runs += 1
        for stamp in stamps:
            if stamp.segment.item >= 0:
                continue
            ns, part = stamp.nanoseconds[:, :-1], slice(stamp.segment.first, stamp.segment.end)
            spans = np.where(ns[:, :, 0] >= stamp.begin, ns[:, :, 1] - ns[:, :, 0], 0)
            self.work[part] = np.minimum(self.work[part], spans.sum(0))

    def flags(self) -> Ints:
        """What helpers leave out: small calls, and waits that only such calls follow."""
        small = (self.work < _SMALL) & (self.tiles > 0)
        flags = np.where(small, SKIP, 0)
        following = True
        for number in range(len(flags) - 1, -1, -1):
            if self.marks[number]:
                flags[number] |= PASS * following
                following = True
            following = following and bool(small[number])
        return flags
