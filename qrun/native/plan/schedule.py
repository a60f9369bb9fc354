"""A whole model as one list of kernel calls in one block of memory: where operands lie, which calls wait for which."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.kernels.copy import Copy, arrange, shuffled
from qrun.native.kernels.strided import CopyAxis, coalesced
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, must_reach, size
from qrun.native.plan.placement import Chain, Item, Key, Placed, Placement, PythonStep, Storage, Task
from qrun.native.plan.spans import Span, Touched
from qrun.native.plan.stamps import Segment


def fused(engine: Engine, items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items. Chains of elementwise ones are joined; where three are a shuffle, the first and the last only hand the
    array on, channels-last."""
    made = list(items)
    uses = Counter([*wanted, *(key for item in items for key in item.inputs)])
    makers = {item.output: number for number, item in enumerate(items) if isinstance(item, Task)}
    for end in range(len(items)):
        places, copies = _trio(items, makers, end)
        outputs = [item.output for item in (items[place] for place in places[:2]) if isinstance(item, Task)]
        if len(copies) < 3 or any(uses[key] != 1 for key in outputs):
            continue
        x = copies[0].operands[0]
        groups = shuffle_groups(*copies)
        if groups:
            handed = arrange(engine, x, "channels", x, "channels", view=True)
            shuffle = shuffled(engine, x.shape, x.dtype, groups)
            for place, operation in zip(places, (handed, shuffle, handed), strict=True):
                item = made[place]
                assert isinstance(item, Task)
                made[place] = replace(item, operation=operation)
    return _chained(made, wanted)


def _chained(items: list[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items with chains of elementwise ones joined, if there are any such."""
    if not any(isinstance(item, Task) and item.operation.steps for item in items):
        return items
    from qrun.native.plan.chains import chained

    return chained(items, wanted)


def _tailed(items: Sequence[Item], wanted: Sequence[Key]) -> Sequence[Item]:
    """The items, those that follow integer sums made in the kernels of these."""
    if not any(isinstance(item, Chain) and item.tasks[-1].operation.leads for item in items):
        return items
    from qrun.native.plan.tails import tailed

    return tailed(items, wanted)


def _moved(items: Sequence[Item], wanted: Sequence[Key]) -> Sequence[Item]:
    """The items, with transposes left to operations that read and write there themselves."""
    operations = [item.operation for item in items if isinstance(item, Task)]
    if not any(o.moves for o in operations) or all(o.view for o in operations if isinstance(o, Copy)):
        return items
    from qrun.native.plan.moved import moved

    return moved(items, wanted)


def _trio(items: Sequence[Item], makers: dict[Key, int], end: int) -> tuple[list[int], list[Copy]]:
    """The copies that end with item `end`, each reading what the one before made, at most three: numbers and operations."""
    places: list[int] = []
    copies: list[Copy] = []
    while end >= 0 and len(places) < 3:
        item = items[end]
        if not isinstance(item, Task) or not isinstance(item.operation, Copy):
            break
        places.insert(0, end)
        copies.insert(0, item.operation)
        end = makers.get(item.inputs[0], -1)
    return places, copies


def shuffle_groups(first: Copy, middle: Copy, last: Copy) -> int:
    """How many groups of channels are shuffled by a view of [N, C, spatial...], a copy, and a view of the same shape;
    0 if that is no shuffle."""
    x, y = first.operands[0], last.result
    plain = ("plain", "plain")
    if x != y or len(x.shape) < 3 or not size(x.shape) or not first.view or not last.view or middle.view:
        return 0
    if not first.orders == middle.orders == last.orders == plain:
        return 0
    images, channels, pixels = x.shape[0], x.shape[1], size(x.shape[2:])
    axes = coalesced(middle.axes((0, 0)))
    step = x.dtype.itemsize
    for groups in {axis.count for axis in axes if channels % axis.count == 0}:
        each = channels // groups
        shuffle = [
            CopyAxis(images, channels * pixels * step, channels * pixels * step),
            CopyAxis(each, pixels * step, groups * pixels * step),
            CopyAxis(groups, each * pixels * step, pixels * step),
            CopyAxis(pixels, step, step),
        ]
        if coalesced(shuffle) == axes:
            return groups
    return 0


Array = np.ndarray[Any, Any]


@frozen
class PlannedCall:
    section: KernelCall
    placed: Placed


class Schedule:
    """Operations and steps that run elsewhere, in order, on values by key; `Program` runs it.

    items:  in an order in which they can run.
    given:  operands of the values that come as arrays: those fed, constants, and what runs elsewhere makes.
    fixed:  arrays that are the same in each run.
    wanted: keys of the values that a run returns.
    """

    def __init__(
        self,
        engine: Engine,
        items: Sequence[Item],
        given: Mapping[Any, Operand],
        fixed: Mapping[Any, Array],
        wanted: Sequence[Key],
    ) -> None:
        self.engine, self.items, self.wanted = (
            engine,
            tuple(fused(engine, _moved(_tailed(items, wanted), wanted), wanted)),
            tuple(wanted),
        )
        self.given, self.fixed = dict(given), dict(fixed)
        self.placement = Placement(self.items, self.given, wanted, partial(arrange, engine))
        self.calls = self._calls()
        self.barriers, self.since = self._barriers()
        self.segments = self._segments()
        self.room = self._room()
        self.doubtful = [number for number, call in enumerate(self.calls) if not call.section.decides]
        self.scratch = max((call.section.scratch for call in self.calls), default=0)
        self.helpers = min(engine.threads, max((call.section.tiles for call in self.calls), default=1)) - 1
        self.arena = max(self.placement.arena, self.room.pop(None, 0))

    def _calls(self) -> tuple[PlannedCall, ...]:
        calls = []
        for placed in self.placement.placed:
            whole = placed.storages[-1]
            parts = enumerate(placed.operation.parts)
            joined = (p for p, start in parts if _is_part(placed.storages[p], whole, start))
            strides = [storage.stride for storage in placed.storages]
            skip = frozenset(joined)
            made = placed.operation.sections(strides, skip) if skip else placed.operation.sections(strides)
            if not skip and not any(whole.operand.border):
                must_reach(made, Span.of(whole).end - whole.place)
            calls += [PlannedCall(section, placed) for section in made]
        return tuple(calls)

    def _barriers(self) -> tuple[list[bool], list[int]]:
        """After which calls all threads wait, and the first call since the wait before."""
        marks, since = [False] * len(self.calls), [0] * len(self.calls)
        first, before, reads, writes = 0, None, Touched(), Touched()
        for number, call in enumerate(self.calls):
            placed = call.placed
            if placed is not before:
                before = placed
                inputs = [Span.of(s) for s in placed.storages[:-1] if s.root.key is None]
                output = Span.of(placed.storages[-1])
                clash = any(map(writes.meets, (*inputs, output))) or reads.meets(output)
                if number and (clash or self._apart(number)):
                    marks[number - 1] = True
                    first, reads, writes = number, Touched(), Touched()
                for span in inputs:
                    reads.add(span)
                writes.add(output)
            since[number] = first
        if marks:
            marks[-1] = True
        return marks, since

    def _apart(self, number: int) -> bool:
        """Whether something runs elsewhere between this call and the one before."""
        start, end = self.calls[number - 1].placed.item, self.calls[number].placed.item
        return any(isinstance(item, PythonStep) and item.outputs for item in self.items[start + 1 : end])

    def _segments(self) -> tuple[Segment, ...]:
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
        return tuple(self._freeing(plain))

    def _freeing(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        """The segments with the arrays that are last needed in each."""
        ends = [s.item if s.item >= 0 else self.calls[s.end - 1].placed.item for s in segments]
        frees: dict[int, list[Key]] = {}
        wanted = set(self.wanted)
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
    """Whether a concatenation's operand was made in this place of its result."""
    return storage.parent is whole and storage.gaps and storage.start == start
