"""A whole model as one list of kernel calls in one block of memory, walked without Python between the calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from qrun.memory import Budget
from qrun.native._runner import ENTRY, STATE, STRUCT
from qrun.native.compile import address_of
from qrun.native.copy import arrange
from qrun.native.engine import Engine, address
from qrun.native.fold import aligned
from qrun.native.operation import Operand, size
from qrun.native.placement import Foreign, Key, Placed, Placement, Storage, Task
from qrun.native.section import Section, scratch
from qrun.native.shuffles import fused
from qrun.native.thresholds import Ints

Array = np.ndarray[Any, Any]
Elsewhere = Callable[[int, list[Array]], Sequence[Array]]

_PATIENCE = 20000
"""Turns of the waiting loop (tens of nanoseconds each) after which a helper goes back to sleep."""
_OPEN, _INSIDE, _RANGE, _GONE = range(0, STATE // 8, 8)


class Unplanned(Exception):
    """An array that came from elsewhere has not the planned type or shape."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of the arena that a call touches; columns: of each row, where rows are `stride` bytes apart."""

    root: Storage
    first: int
    end: int
    stride: int
    columns: tuple[int, int]

    @classmethod
    def of(cls, storage: Storage) -> Span:
        row = storage.row_bytes
        rows = size(storage.operand.shape) * storage.operand.dtype.itemsize // max(row, 1)
        place, stride = storage.place, storage.stride
        column = (place - storage.root.place) % stride if stride else 0
        end = place + ((rows - 1) * stride + row if stride and rows else storage.nbytes)
        return cls(storage.root, place, end, stride, (column, column + row))

    def meets(self, other: Span) -> bool:
        if self.root is other.root and self.stride == other.stride > 0:
            return self.columns[0] < other.columns[1] and other.columns[0] < self.columns[1]
        return self.first < other.end and other.first < self.end


@dataclass(frozen=True, slots=True)
class Call:
    section: Section
    placed: Placed


@dataclass(frozen=True, slots=True)
class Stretch:
    """Calls first..end-1, or, where they are none, the item that runs elsewhere; arrays that are not needed after it."""

    first: int
    end: int
    item: int = -1
    frees: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a stretch began and ended (perf_counter_ns), and the processor's clock before each of its calls and after."""

    stretch: Stretch
    begin: int
    end: int
    ticks: Ints


@dataclass(frozen=True, slots=True)
class Ran:
    """Values asked for, and what the time was spent on."""

    values: dict[Any, Array]
    stamps: tuple[Stamp, ...]


class Program:
    """Operations and steps that run elsewhere, in order, on values by key.

    items:  in an order in which they can run.
    given:  operands of the values that come as arrays: those fed, constants, and what runs elsewhere makes.
    fixed:  arrays that are the same in each run.
    wanted: keys of the values that a run returns.

    `run` may be called from several threads at once; each run has memory of its own, kept for the next one.
    """

    def __init__(
        self,
        engine: Engine,
        items: Sequence[Task | Foreign],
        given: Mapping[Any, Operand],
        fixed: Mapping[Any, Array],
        wanted: Sequence[Key],
    ) -> None:
        self.engine, self.items, self.wanted = engine, tuple(fused(engine, items, wanted)), tuple(wanted)
        self.given, self.fixed = dict(given), dict(fixed)
        self.placement = Placement(self.items, self.given, wanted, partial(arrange, engine))
        self.calls = self._calls()
        self.item_of = [call.placed.item for call in self.calls]
        self.barriers, self.since = self._barriers()
        self.stretches = self._stretches()
        self.room = self._room()
        self.scratch = max((call.section.scratch for call in self.calls), default=0)
        self.arena = max(self.placement.arena, self.room.pop(None, 0))
        self._free: list[Instance] = []
        self._lock = threading.Lock()

    def _calls(self) -> tuple[Call, ...]:
        calls = []
        for placed in self.placement.placed:
            whole = placed.storages[-1]
            parts = enumerate(placed.operation.parts)
            joined = (p for p, start in parts if _is_part(placed.storages[p], whole, start))
            strides = [storage.stride for storage in placed.storages]
            skip = frozenset(joined)
            made = placed.operation.sections(strides, skip) if skip else placed.operation.sections(strides)
            calls += [Call(section, placed) for section in made]
        return tuple(calls)

    def _barriers(self) -> tuple[list[bool], list[int]]:
        """After which calls all threads wait, and the first call since the wait before."""
        marks, since = [False] * len(self.calls), [0] * len(self.calls)
        first, reads, writes = 0, list[tuple[Placed, Span]](), list[tuple[Placed, Span]]()
        for number, call in enumerate(self.calls):
            placed = call.placed
            inputs = [Span.of(s) for s in placed.storages[:-1] if s.root.key is None]
            output = Span.of(placed.storages[-1])
            elsewhere = [w for p, w in writes if p is not placed]
            clash = any(i.meets(w) for i in inputs for w in elsewhere) or any(output.meets(w) for w in elsewhere)
            clash = clash or any(output.meets(r) for p, r in reads if p is not placed)
            apart = number > 0 and self._apart(number)
            if number and (clash or apart):
                marks[number - 1] = True
                first, reads, writes = number, [], []
            since[number] = first
            reads += [(placed, span) for span in inputs]
            writes.append((placed, output))
        if marks:
            marks[-1] = True
        return marks, since

    def _apart(self, number: int) -> bool:
        """Whether something runs elsewhere between this call and the one before."""
        start, end = self.calls[number - 1].placed.item, self.calls[number].placed.item
        return any(isinstance(item, Foreign) and item.outputs for item in self.items[start + 1 : end])

    def _stretches(self) -> tuple[Stretch, ...]:
        plain: list[Stretch] = []
        number = 0
        foreign = [n for n, item in enumerate(self.items) if isinstance(item, Foreign) and item.outputs]
        for item in [*foreign, len(self.items)]:
            first = number
            while number < len(self.calls) and self.calls[number].placed.item < item:
                number += 1
            if number > first:
                plain.append(Stretch(first, number))
            if item < len(self.items):
                plain.append(Stretch(0, 0, item))
        return tuple(self._freeing(plain))

    def _freeing(self, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
        """The stretches with the arrays that are last needed in each."""
        ends = [s.item if s.item >= 0 else self.calls[s.end - 1].placed.item for s in stretches]
        frees: dict[int, list[Key]] = {}
        for key in self.given.keys() - self.fixed.keys():
            forms = self.placement.forms.get(key)
            if forms and key not in self.wanted:
                last = forms[0].lifetime()[1]
                where = next((n for n, end in enumerate(ends) if end >= last), None)
                if where is not None and last < len(self.items):
                    frees.setdefault(where, []).append(key)
        return (replace(stretch, frees=tuple(frees.get(n, ()))) for n, stretch in enumerate(stretches))

    def _room(self) -> dict[Key | None, int]:
        """How many bytes calls may touch of each array by key, and of the arena (None)."""
        room: dict[Key | None, int] = {}
        for call in self.calls:
            for storage, extent in zip(call.placed.storages, call.section.extents, strict=True):
                key = storage.root.key
                room[key] = max(room.get(key, 0), storage.place + extent)
        return room

    @property
    def nbytes(self) -> int:
        """Memory of one run."""
        return self.arena + len(self.calls) * (STRUCT + ENTRY) + self.engine.threads * self.scratch

    def times(self, ran: Ran) -> tuple[list[int], list[int]]:
        """For each item when it started (perf_counter_ns) and how many ns it took, 0 for what took no time."""
        starts, spans = [0] * len(self.items), [0] * len(self.items)
        for stamp in ran.stamps:
            stretch, ticks = stamp.stretch, stamp.ticks
            if stretch.item >= 0:
                starts[stretch.item], spans[stretch.item] = stamp.begin, stamp.end - stamp.begin
                continue
            scale = (stamp.end - stamp.begin) / max(int(ticks[-1] - ticks[0]), 1)
            ns = ((ticks - ticks[0]) * scale).astype(np.int64).tolist()
            for item, start, end in zip(self.item_of[stretch.first : stretch.end], ns[:-1], ns[1:], strict=True):
                starts[item] = starts[item] or stamp.begin + start
                spans[item] += end - start
        return starts, spans

    def run(self, arrays: Mapping[Any, Array], elsewhere: Elsewhere, budget: Budget) -> Ran:
        """arrays: the values that come from outside. elsewhere: item number and its inputs to its outputs.

        Raises Unplanned if an array has not the type and shape of its operand.
        """
        with self._lock:
            instance = self._free.pop() if self._free else None
        if instance is None:
            budget.claim((self.nbytes,), 1, "native program")
            instance = Instance(self)
        else:
            budget.count(self.nbytes)
        try:
            return instance.run(arrays, elsewhere, budget)
        finally:
            with self._lock:
                self._free.append(instance)


def _is_part(storage: Storage, whole: Storage, start: int) -> bool:
    """Whether a concatenation's operand was made in this place of its result."""
    return storage.parent is whole and storage.gaps and storage.start == start


class Instance:
    """Memory for one run at a time: arena, argument structs, plan, state shared with helpers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = aligned(program.arena, np.uint8)
        calls = program.calls
        self.structs = aligned((len(calls), STRUCT // 8), np.int64, 0)
        self.plan = aligned((len(calls), ENTRY // 8), np.int64, 0)
        self.state = aligned(STATE // 8, np.int64, 0)
        self.times = np.zeros((2, len(calls) + 1), np.int64)
        self.patches: dict[Key, list[tuple[int, int, int]]] = {}
        self.generation, self.sent = 0, 0
        base = address(self.memory)
        for number, call in enumerate(calls):
            section = call.section
            self.structs[number, : len(section.arguments)] = section.arguments
            for word, operand in section.pointers:
                storage = call.placed.storages[operand]
                start = int(section.arguments[word]) + storage.place
                self.structs[number, word] = start + base
                if storage.root.key is not None:
                    self.patches.setdefault(storage.root.key, []).append((number, word, start))
            mark, since = program.barriers[number], program.since[number]
            self.plan[number, :5] = (
                address_of(section.kernel), address(self.structs[number]), section.tiles, mark, since
            )  # fmt: skip
        for border in program.placement.borders:
            self._bytes(border)[...] = border.operand.fill
        self.views: dict[Key, Array] = {}
        for key, forms in program.placement.forms.items():
            if forms[0].shown and forms[0].root.key is None:
                self.views[key] = self._view(forms[0])
        for key, array in program.fixed.items():
            if key in self.patches:
                self._point(key, array)

    def _bytes(self, storage: Storage) -> Array:
        return self.memory[storage.place : storage.place + storage.nbytes].view(storage.operand.dtype)

    def _view(self, storage: Storage) -> Array:
        """The value as an array with its own shape."""
        operand = storage.operand
        stored, itemsize = operand.stored(storage.order), operand.dtype.itemsize
        steps = [itemsize]
        for axis in range(len(stored) - 1, 0, -1):
            packed = steps[0] * stored[axis]
            steps.insert(0, storage.stride if storage.stride and axis == len(stored) - 1 else packed)
        flat = self.memory[storage.place :]
        array = np.ndarray(stored, operand.dtype, flat.data if flat.size else b"", 0, tuple(steps[: len(stored)]))
        return np.moveaxis(array, -1, 1) if storage.order == "channels" else array

    def _point(self, key: Key, array: Array) -> Array:
        """Let the calls that read this value read the array; returns what must live until they have."""
        operand, room = self.program.given[key], self.program.room.get(key, 0)
        if array.shape != operand.shape or array.dtype != operand.dtype:
            raise Unplanned(f"{array.dtype}{list(array.shape)} instead of {operand.dtype}{list(operand.shape)}")
        if not array.flags.c_contiguous or array.nbytes < room:
            held = aligned(max(array.nbytes, room), np.uint8)
            held[array.nbytes :] = 0
            held[: array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
            array = held
        start = address(array)
        for number, word, offset in self.patches.get(key, ()):
            self.structs[number, word] = start + offset
        return array

    def run(self, arrays: Mapping[Any, Array], elsewhere: Elsewhere, budget: Budget) -> Ran:
        program = self.program
        values, held, stamps = {**program.fixed}, {}, []

        def take(key: Key, array: Array) -> None:
            values[key], held[key] = array, self._point(key, array)
            budget.hold(array)

        for key, array in arrays.items():
            take(key, array)
        self._call_helpers()
        for stretch in program.stretches:
            begin = perf_counter_ns()
            if stretch.item < 0:
                self._lead(stretch)
            else:
                item = program.items[stretch.item]
                made = elsewhere(stretch.item, [self._value(key, values) for key in item.inputs])
                for key, array in zip(_outputs(item), made, strict=True):
                    take(key, array.copy() if np.may_share_memory(array, self.memory) else array)
            ticks = self.times[0, stretch.first : stretch.end + 1].copy()
            stamps.append(Stamp(stretch, begin, perf_counter_ns(), ticks))
            for key in stretch.frees:
                budget.release(values.pop(key))
                held.pop(key)
        return Ran({key: self._copy(key, values) for key in program.wanted}, tuple(stamps))

    def _value(self, key: Key, values: Mapping[Any, Array]) -> Array:
        """A value as an array: a view of the arena, of another array, or that array."""
        if key in self.views:
            return self.views[key]
        if key in values:
            return values[key]
        storage = self.program.placement.forms[key][0]
        stored = values[storage.root.key].reshape(storage.operand.stored(storage.order))
        return np.moveaxis(stored, -1, 1) if storage.order == "channels" else stored

    def _copy(self, key: Key, values: Mapping[Any, Array]) -> Array:
        value = self._value(key, values)
        return np.ascontiguousarray(value) if value is values.get(key) else np.array(value, order="C")

    def _lead(self, stretch: Stretch) -> None:
        self.generation += 1
        self.program.engine.runner.lead(
            address(self.plan),
            stretch.first,
            stretch.end,
            address(self.state),
            self.generation,
            address(self.times),
            scratch(self.program.scratch),
        )

    def _call_helpers(self) -> None:
        """Wake the helpers that are not waiting already."""
        pool, wanted = self.program.engine.pool, self.program.engine.threads - 1
        if pool is None or not self.program.calls:
            return
        present = self.sent - int(self.state[_GONE])
        for _ in range(wanted - present):
            self.sent += 1
            pool.submit(_follow, self)


def _outputs(item: Task | Foreign) -> tuple[Key, ...]:
    return item.outputs if isinstance(item, Foreign) else (item.output,)


def _follow(instance: Instance) -> None:
    engine = instance.program.engine
    own = scratch(instance.program.scratch)
    engine.runner.follow(address(instance.plan), address(instance.state), _PATIENCE, address(instance.times[1:]), own)
