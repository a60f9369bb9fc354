"""One block of memory for buffers that are not all needed at once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import chain

from qrun.declare.frozen import frozen
from qrun.native.machine.memory import aligned_up

MANY = 512
"""Buffers that are placed by size."""


@frozen
class Need:
    """A buffer of `nbytes` that is in use from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def arrange(needs: Sequence[Need]) -> tuple[list[int], int]:
    """Offsets of the buffers, at the start of cache lines, and the size of the whole.

    Buffers in use at the same step do not overlap. The largest are placed first, in the first gap, which leaves few
    gaps but looks at all that are in use at once; more than MANY are placed in the order in which they are needed, in the
    smallest gap.
    """
    if len(needs) > MANY:
        return _in_time(needs)
    offsets, firsts = [0] * len(needs), sorted({need.first for need in needs})
    begun: list[list[tuple[int, int]]] = [[] for _ in firsts]
    there: list[list[tuple[int, int]]] = [[] for _ in firsts]
    for i in sorted(range(len(needs)), key=lambda i: (-needs[i].nbytes, needs[i].first)):
        need, at = needs[i], 0
        first, last = bisect_left(firsts, need.first), bisect_right(firsts, need.last)
        for start, end in sorted(chain(there[first], *begun[first + 1 : last])):
            if at + need.nbytes <= start:
                break
            at = max(at, end)
        offsets[i] = at
        own = at, aligned_up(at + need.nbytes)
        begun[first].append(own)
        for others in there[first:last]:
            others.append(own)
    return offsets, max((o + aligned_up(n.nbytes) for o, n in zip(offsets, needs, strict=True)), default=0)


def _in_time(needs: Sequence[Need]) -> tuple[list[int], int]:
    offsets = [0] * len(needs)
    ends: list[tuple[int, int, int]] = []
    gaps = _Gaps()
    for i in sorted(range(len(needs)), key=lambda i: needs[i].first):
        while ends and ends[0][0] < needs[i].first:
            gaps.give(*heappop(ends)[1:])
        room = aligned_up(needs[i].nbytes)
        if room:
            offsets[i] = gaps.take(room)
            heappush(ends, (needs[i].last, offsets[i], offsets[i] + room))
    return offsets, gaps.top


class _Gaps:
    """What is free below `top`: by size, and by first and last byte."""

    def __init__(self) -> None:
        self.top = 0
        self._sizes: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def take(self, room: int) -> int:
        """The start of so many bytes: of the smallest gap that has them, else of new ones."""
        at = bisect_left(self._sizes, (room, 0))
        if at == len(self._sizes):
            self.top += room
            return self.top - room
        size, start = self._sizes.pop(at)
        self._remove(start)
        if size > room:
            self._add(start + room, start + size)
        return start

    def give(self, start: int, end: int) -> None:
        """Bytes are free again, with those beside them that are."""
        before, after = self._starts.get(start), self._ends.get(end)
        for gap, last in ((before, start), (end if after is not None else None, after)):
            if gap is not None and last is not None:
                del self._sizes[bisect_left(self._sizes, (last - gap, gap))]
                self._remove(gap)
        self._add(start if before is None else before, end if after is None else after)

    def _add(self, start: int, end: int) -> None:
        insort(self._sizes, (end - start, start))
        self._ends[start], self._starts[end] = end, start

    def _remove(self, start: int) -> None:
        del self._starts[self._ends.pop(start)]
