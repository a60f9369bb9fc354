"""Schedules a model as one list of kernel calls in one block of memory: places operands and sets barriers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.kernels.copy import Copy, arrange
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array, Ints
from qrun.native.machine.operation import Operand, must_reach
from qrun.native.plan.fusing import fuse
from qrun.native.plan.items import Item, Key, PythonStep, Task
from qrun.native.plan.placement import Placed, Placement, Storage
from qrun.native.plan.stamps import Segment


@frozen
class Span:
    """Bytes of the arena, or beyond it, that a call touches; columns: of each row, where rows are `stride` bytes
    apart."""

    root: Storage
    first: int
    end: int
    stride: int
    columns: tuple[int, int]

    @classmethod
    def of(cls, storage: Storage) -> Span:
        """The bytes of a storage."""
        root, row = storage.root, storage.row_bytes
        rows = storage.operand.nbytes // max(row, 1)
        first, stride = storage.place + (root.beyond or 0), storage.stride
        column = storage.ahead % stride if stride else 0
        end = first + ((rows - 1) * stride + row if stride and rows else storage.nbytes)
        return cls(root, first, end, stride, (column, column + row))

    @property
    def grid(self) -> tuple[Storage, int] | None:
        """The grid of rows; two spans of one grid meet only if their columns do. None without rows."""
        return (self.root, self.stride) if self.stride else None


class Ranges:
    """Half-open ranges of numbers, joined where they meet; `tag`: the common tag of a joined range, or None."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, tuple[int, object]] = {}

    def overlapping_starts(self, first: int, end: int) -> list[int]:
        """Starts of the ranges that overlap this one."""
        at = bisect_right(self._starts, first) - 1
        found = []
        for start in self._starts[max(at, 0) : at + 1]:
            if self._ranges[start][0] > first:
                found.append(start)
        for index in range(at + 1, len(self._starts)):
            if self._starts[index] >= end:
                break
            found.append(self._starts[index])
        return found

    def tag(self, start: int) -> object:
        """The tag of the range that begins at `start`."""
        return self._ranges[start][1]

    def add(self, first: int, end: int, tag: object = None) -> None:
        """Add a range; ranges with the same tag join."""
        if first >= end:
            return
        for start in self.overlapping_starts(first - 1, end + 1):
            other, had = self._ranges[start]
            if had != tag and (start >= end or other <= first):
                continue
            del self._ranges[start]
            del self._starts[bisect_right(self._starts, start) - 1]
            first, end, tag = min(first, start), max(end, other), tag if had == tag else None
        insort(self._starts, first)
        self._ranges[first] = end, tag


class Touched:
    """The spans of some calls. `meets` may report an overlap that does not exist, where different grids overlap."""

    def __init__(self) -> None:
        self._bytes = Ranges()
        self._columns: dict[object, Ranges] = {}

    def meets(self, span: Span) -> bool:
        """Whether a span shares bytes with one that was added."""
        found = self._bytes.overlapping_starts(span.first, span.end)
        if not found or span.grid is None or any(self._bytes.tag(start) != span.grid for start in found):
            return bool(found)
        return bool(self._columns[span.grid].overlapping_starts(*span.columns))

    def add(self, span: Span) -> None:
        """Add a span."""
        self._bytes.add(span.first, span.end, span.grid)
        if span.grid is not None:
            self._columns.setdefault(span.grid, Ranges()).add(*span.columns)


@frozen
class PlannedCall:
    section: KernelCall
    placed: Placed


class Schedule:
    """Operations and Python steps, in order, on values by key; `Program` runs it.

    items:  in an order in which they can run.
    given:  operands of the values that come as arrays: feeds, constants, and results of Python steps.
    fixed:  arrays that are the same in each run.
    wanted: keys of the values that a run returns.
    loose:  keys of values that may have any shape and type: no operation reads them.
    """

    def __init__(
        self,
        engine: Engine,
        items: Sequence[Item],
        given: Mapping[Any, Operand],
        fixed: Mapping[Any, Array],
        wanted: Sequence[Key],
        loose: AbstractSet[Key] = frozenset(),
    ) -> None:
        self.loose = frozenset(loose)
        self.engine, self.wanted = engine, tuple(wanted)
        self.items = tuple(fuse(engine, items, wanted))
        self.joined = joined_items(items, self.items)
        self.given, self.fixed = dict(given), dict(fixed)
        self.placement = Placement(self.items, self.given, wanted, partial(arrange, engine))
        self._spans: dict[Storage, Span] = {}
        self.calls = self._calls()
        self.rows, self.parts = self._rows()
        self.helpers = min(engine.threads, max((call.section.tiles for call in self.calls), default=1)) - 1
        self.barriers, self.since = self._barriers()
        self.segments = self._segments()
        self.room = self._room()
        self.doubtful = [number for number, call in enumerate(self.calls) if not call.section.decides]
        self.scratch = max((call.section.scratch for call in self.calls), default=0)
        self.arena = max(self.placement.arena, self.room.pop(None, 0))

    def _span(self, storage: Storage) -> Span:
        """The span of a storage, computed once."""
        found = self._spans.get(storage)
        if found is None:
            found = self._spans[storage] = Span.of(storage)
        return found

    def _calls(self) -> tuple[PlannedCall, ...]:
        """The native calls of all tasks."""
        calls = []
        for placed in self.placement.placed:
            whole = placed.storages[-1]
            parts = enumerate(placed.operation.parts)
            there = [p for p, start in parts if _is_part(placed.storages[p], whole, start)]
            made = placed.operation.sections([storage.stride for storage in placed.storages])
            if not there and not any(whole.operand.border):
                must_reach(made, self._span(whole).end - self._span(whole).first if whole.stride else whole.nbytes)
            calls += [PlannedCall(section, placed) for section in made if not any(section.extents[p] for p in there)]
        return tuple(calls)

    def _rows(self) -> tuple[tuple[PlannedCall, ...], Ints]:
        """The calls, then the calls that tiles of some of them make themselves; and for each call with such parts [4]:
        its number, the word that points to its parts, the number of the first one, and their count."""
        rows, parts = list(self.calls), []
        for number, call in enumerate(self.calls):
            section = call.section
            if section.parts:
                parts.append((number, section.kernel.word("parts*"), len(rows), len(section.parts)))
                rows += [PlannedCall(part, call.placed) for part in section.parts]
        return tuple(rows), np.array(parts, np.int64).reshape(-1, 4)

    def _barriers(self) -> tuple[list[bool], list[int]]:
        """After which calls all threads wait, and the first call since the wait before. A single thread waits for
        none."""
        marks, since = [False] * len(self.calls), [0] * len(self.calls)
        first, before, reads, writes = 0, None, Touched(), Touched()
        for number, call in enumerate(self.calls if self.helpers else ()):
            placed = call.placed
            if placed is not before:
                before = placed
                inputs = [self._span(s) for s in placed.storages[:-1] if s.is_written]
                output = self._span(placed.storages[-1])
                clash = any(map(writes.meets, (*inputs, output))) or reads.meets(output)
                if number and (clash or self._after_python_step(number)):
                    marks[number - 1] = True
                    first, reads, writes = number, Touched(), Touched()
                for span in inputs:
                    reads.add(span)
                writes.add(output)
            since[number] = first
        if marks:
            marks[-1] = True
        return marks, since

    def _after_python_step(self, number: int) -> bool:
        """Whether a Python step runs between this call and the one before."""
        start, end = self.calls[number - 1].placed.item, self.calls[number].placed.item
        return any(isinstance(item, PythonStep) and item.outputs for item in self.items[start + 1 : end])

    def _segments(self) -> tuple[Segment, ...]:
        """The runs of native calls between Python steps."""
        plain: list[Segment] = []
        number = 0
        foreign = [n for n, item in enumerate(self.items) if isinstance(item, PythonStep) and item.outputs]
        for item in [*foreign, len(self.items)]:
            first = number
            while number < len(self.calls) and self.calls[number].placed.item < item:
                number += 1
            if number > first:
                tiles = sum(call.section.tiles for call in self.calls[first:number])
                plain.append(Segment(first, number, tiles=tiles))
            if item < len(self.items):
                plain.append(Segment(0, 0, item))
        return tuple(self._with_frees(plain))

    def _with_frees(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        """The segments with the arrays that no later one needs; except the last segment where nothing is made after
        it."""
        ends = [s.item if s.item >= 0 else self.calls[s.end - 1].placed.item for s in segments]
        frees: dict[int, list[Key]] = {}
        wanted = set(self.wanted)
        if all(self.placement.forms[key][0].root.key is not None for key in wanted):
            ends = ends[:-1]
        for key in self.given.keys() - self.fixed.keys():
            forms = self.placement.forms.get(key)
            if forms and key not in wanted:
                last = forms[0].lifetime()[1]
                where = bisect_left(ends, last)
                if where < len(ends) and last < len(self.items):
                    frees.setdefault(where, []).append(key)
        return (replace(segment, frees=tuple(frees.get(n, ()))) for n, segment in enumerate(segments))

    def _room(self) -> dict[Key | None, int]:
        """For each array, by key, and for the arena (None): bytes from its start to the end of what calls may touch."""
        room: dict[Key | None, int] = {}
        for call in self.calls:
            for storage, extent in zip(call.placed.storages, call.section.extents, strict=True):
                key = storage.root.key
                room[key] = max(room.get(key, 0), storage.place + extent)
        return room


def _is_part(storage: Storage, whole: Storage, start: int) -> bool:
    """Whether a concatenation's operand was written in this place of the result."""
    return storage.parent is whole and storage.gaps and storage.start == start


def joined_items(given: Sequence[Item], items: Sequence[Item]) -> dict[int, int]:
    """For each item whose work the operation of another item does, that item's number. Copies are not included: the
    other operation reads or writes in their place, and nothing is copied any more.

    given: the items of the steps; items: the same after fusing, where an item joined to another is a step that does
    nothing.
    """
    makers = {key: number for number, item in enumerate(items) for key in item.outputs}
    readers = {key: number for number, item in enumerate(given) for key in item.inputs}

    def doer(number: int) -> int | None:
        """The item that makes its result now, or that reads its inputs in its place."""
        for key in given[number].outputs:
            if key in makers:
                return makers[key]
            reader = readers.get(key)
            if reader is not None and reader != number:
                return reader if items[reader].outputs else doer(reader)
        return None

    copies = {n for n, item in enumerate(given) if isinstance(item, Task) and isinstance(item.operation, Copy)}
    idle = (n for n, item in enumerate(items) if not item.outputs and given[n].tasks and n not in copies)
    found = ((number, doer(number)) for number in idle)
    return {number: other for number, other in found if other is not None}
