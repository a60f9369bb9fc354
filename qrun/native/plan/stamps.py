"""The times of a program's run: notes of its threads, what they say about each item, and which calls are shorter than
the cost of sharing them; helpers leave these to the leader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import PASS, SKIP
from qrun.native.machine.memory import Ints
from qrun.native.plan.items import Key

_SMALL = 3000
"""Calls of less work, in nanoseconds, are no faster with two threads: taking tiles and waiting for each other moves
some cache lines between caches, each in some hundred nanoseconds."""
_RUNS = 4
"""Runs in which calls are measured. The shortest time counts, as it depends least on other work of the machine."""
_PART = 16
"""The calls in one part of a segment; the time limit is checked between parts."""


@frozen
class Segment:
    """The calls first to end - 1; or, if there are none, a Python step. Pieces of `cut` have both.

    frees: keys of arrays that no later segment needs. tiles: of all its calls.
    """

    first: int
    end: int
    item: int = -1
    frees: tuple[Key, ...] = ()
    tiles: int = 0

    def cut(self, items: Sequence[int], item_of: Ints) -> Iterator[Segment]:
        """The calls, cut after each of these items, in order; each piece names its item. item_of: each call's item."""
        first = self.first
        for item in items:
            end = int(np.searchsorted(item_of, item, "right"))
            if first < end <= self.end and item_of[end - 1] == item:
                yield Segment(first, end, item)
                first = end
        if first < self.end:
            yield Segment(first, self.end)

    def parts(self) -> Iterator[Segment]:
        """The calls, _PART in each part."""
        for first in range(self.first, self.end, _PART):
            yield Segment(first, min(first + _PART, self.end))


@frozen
class Stamp:
    """When a segment began and ended (perf_counter_ns), and the processor's clock in each thread, the leader's first.

    ticks: [threads, calls + 1, 2]: when the thread came to each of the calls, and when it ended its own work on it;
           then when it came to the end. An absent thread has ticks older than the leader's.
    tick:  the nanoseconds of a tick. step: the nanoseconds of an empty call, which are subtracted from each call.
    """

    segment: Segment
    begin: int
    end: int
    ticks: Ints
    tick: float = 1.0
    step: float = 0.0

    @property
    def nanoseconds(self) -> Ints:
        """The ticks on the clock of begin and end, at most twice as far from the begin as the end is."""
        ticks = self.ticks - self.ticks[0, 0, 0]
        # Where processors' clocks differ, a leader that moves to another processor may end before it began.
        span = max(int(ticks[0, -1, 0]), 1)
        found: Ints = self.begin + (np.clip(ticks, -2 * span, 2 * span) * self.tick).astype(np.int64)
        return found


@frozen
class StampedResult:
    """The requested values, and the time stamps. lent: whether others may hold some of the values too. told: by item,
    the events that Python steps report."""

    values: Mapping[Any, np.ndarray[Any, Any]]
    stamps: tuple[Stamp, ...]
    lent: bool
    told: Mapping[int, Any] = field(default_factory=dict)


def times(stamps: Sequence[Stamp], item_of: Sequence[int], items: int) -> tuple[list[int], list[int]]:
    """For each item its start (perf_counter_ns) and duration in ns. An item that nobody had to run has 0, and starts
    when the item before it ends.

    item_of: each call's item. The time of a call is the leader's, with its wait for the helpers, less the time of an
    empty call.
    """
    starts, spans = [0] * items, [0] * items
    for stamp in stamps:
        segment = stamp.segment
        if segment.item >= 0:
            starts[segment.item], spans[segment.item] = stamp.begin, stamp.end - stamp.begin
            continue
        ns = stamp.nanoseconds[0, :, 0].tolist()
        for item, start, end in zip(item_of[segment.first : segment.end], ns[:-1], ns[1:], strict=True):
            starts[item] = starts[item] or start
            spans[item] += max(end - start - round(stamp.step), 0)
    now = stamps[0].begin if stamps else 0
    for item in range(items):
        starts[item] = starts[item] or now
        now = starts[item] + spans[item]
    return starts, spans


def helper_spans(stamps: Sequence[Stamp], item_of: Sequence[int]) -> dict[int, list[tuple[int, int, int]]]:
    """When helpers worked on each item: (helper, counted from 1; start in perf_counter_ns; duration in ns), by item."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for stamp in stamps:
        if stamp.segment.item >= 0:
            continue
        ns = stamp.nanoseconds
        came, ended = ns[1:, :-1, 0], ns[1:, :-1, 1]
        present = (ended > came) & (came >= stamp.begin) & (ended <= stamp.end)
        for helper, call in np.argwhere(present).tolist():
            start, end = int(came[helper, call]), int(ended[helper, call])
            item = item_of[stamp.segment.first + call]
            found.setdefault(item, []).append((helper + 1, start, end - start))
    return found


class Alone:
    """Measures the calls of a plan over several runs, to find those that the leader runs alone.

    tiles: of each call; a call without tiles belongs to nobody. marks: after which calls all threads wait.
    """

    def __init__(self, tiles: Sequence[int] | Ints, marks: Sequence[bool] | Ints) -> None:
        self.tiles, self.marks = np.array(tiles, np.int64), marks
        self.work = np.full(len(tiles), np.iinfo(np.int64).max)
        self.runs = 0

    @property
    def known(self) -> bool:
        """Whether there were enough runs to know the time."""
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
        """Flags of what helpers skip: small calls, and waits that only such calls follow."""
        small = (self.work < _SMALL) & (self.tiles > 0)
        flags = np.where(small, SKIP, 0)
        following = True
        for number in range(len(flags) - 1, -1, -1):
            if self.marks[number]:
                flags[number] |= PASS * following
                following = True
            following = following and bool(small[number])
        return flags
