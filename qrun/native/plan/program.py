"""A schedule that runs, walked without Python between the calls: arrays in, kernels called, arrays out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import numpy as np

from qrun.memory import Budget
from qrun.native.emit.spec import DOUBT, ENTRY, SKIP, STATE, STRUCT
from qrun.native.errors import Unplanned
from qrun.native.machine.call import scratch
from qrun.native.machine.compile import address_of
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import address, aligned, forget
from qrun.native.machine.operation import Operand
from qrun.native.plan.alone import Alone
from qrun.native.plan.placement import Item, Key, PythonStep, Storage
from qrun.native.plan.schedule import Schedule
from qrun.native.plan.stamps import Segment, Stamp, StampedResult

Array = np.ndarray[Any, Any]
Elsewhere = Callable[[int, list[Array]], Sequence[Array]]

_PATIENCE = 20000
"""Turns of the waiting loop (tens of nanoseconds each) after which a helper goes back to sleep."""
_WORTH = 32
"""Tiles, of some microseconds at least, from which on it is worth to wake helpers after other steps."""
_OPEN, _INSIDE, _RANGE, _GONE = range(0, STATE // 8, 8)


class Instance:
    """Memory for one run at a time: arena, argument structs, plan, state shared with helpers."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.memory = aligned(schedule.arena, np.uint8, 0)
        calls = schedule.calls
        self.structs = aligned((len(calls), STRUCT // 8), np.int64, 0)
        self.plan = aligned((len(calls), ENTRY // 8), np.int64, 0)
        self.state = aligned(STATE // 8, np.int64, 0)
        self.times = np.zeros((schedule.engine.threads, len(calls) + 1, 2), np.int64)
        self.starts = address(self.plan), address(self.state), address(self.times)
        self.lead = schedule.engine.runner.lead
        self.rows: dict[int, int] = {}
        self.patches: dict[Key, list[tuple[int, int, int]]] = {}
        self.generation, self.sent = 0, 0
        self.alone = Alone([call.section.tiles for call in calls], schedule.barriers)
        self.unshared = frozenset[int]()
        self.lock = threading.Lock()
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
            mark, since = schedule.barriers[number], schedule.since[number]
            self.plan[number, :5] = (
                address_of(section.kernel), address(self.structs[number]), section.tiles, mark, since
            )  # fmt: skip
        self.forget()
        self.views: dict[Key, Array] = {}
        for key, forms in schedule.placement.forms.items():
            if forms[0].shown and forms[0].root.key is None:
                self.views[key] = self._view(forms[0])
        self.kept = [self._point(key, array) for key, array in schedule.fixed.items() if key in self.patches]

    def forget(self) -> None:
        """Keep nothing in the arena but what is filled once."""
        forget(self.memory)
        for border in self.schedule.placement.borders:
            self._bytes(border)[...] = border.operand.fill

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
        operand, room = self.schedule.given[key], self.schedule.room.get(key, 0)
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

    def run(self, arrays: Mapping[Any, Array], elsewhere: Elsewhere, budget: Budget) -> StampedResult:
        schedule = self.schedule
        values, held, stamps = {**schedule.fixed}, {}, []

        def take(key: Key, array: Array) -> None:
            values[key], held[key] = array, self._point(key, array)
            if held[key] is not array:
                budget.hold(held[key], str(key))

        for key, array in arrays.items():
            take(key, array)
        for segment in schedule.segments:
            begin = perf_counter_ns()
            if segment.item < 0:
                if (not segment.first or segment.tiles >= _WORTH) and segment.first not in self.unshared:
                    self._call_helpers()
                self._lead(segment)
            else:
                item = schedule.items[segment.item]
                assert isinstance(item, PythonStep)
                made = elsewhere(segment.item, [self._value(key, values) for key in item.inputs])
                for key, array in zip(item.outputs, made, strict=True):
                    own = array.copy() if np.may_share_memory(array, self.memory) else array
                    budget.hold_made(own, str(key))
                    take(key, own)
            ticks = self.times[:, segment.first : segment.end + 1].copy()
            stamps.append(Stamp(segment, begin, perf_counter_ns(), ticks))
            for key in segment.frees:
                array, pointed = values.pop(key), held.pop(key)
                budget.release(array)
                if pointed is not array:
                    budget.release(pointed)
        if schedule.engine.threads > 1 and not self.alone.known:
            self._measure(stamps)
        return StampedResult({key: self._copy(key, values, budget) for key in schedule.wanted}, tuple(stamps))

    def _measure(self, stamps: Sequence[Stamp]) -> None:
        """Note what the calls of a run cost. After some runs helpers leave small ones to the leader: no helper is inside now,
        and where all of a segment are small none is called."""
        self.alone.measure(stamps)
        if self.alone.known:
            self.plan[:, 5] = flags = self.alone.flags()
            segments = (segment for segment in self.schedule.segments if segment.item < 0)
            self.unshared = frozenset(s.first for s in segments if (flags[s.first : s.end] & SKIP).all())

    def _value(self, key: Key, values: Mapping[Any, Array]) -> Array:
        """A value as an array: a view of the arena, of another array, or that array."""
        if key in self.views:
            return self.views[key]
        if key in values:
            return values[key]
        storage = self.schedule.placement.forms[key][0]
        stored = values[storage.root.key].reshape(storage.operand.stored(storage.order))
        return np.moveaxis(stored, -1, 1) if storage.order == "channels" else stored

    def _copy(self, key: Key, values: Mapping[Any, Array], budget: Budget) -> Array:
        value = self._value(key, values)
        if value is values.get(key) and key not in self.schedule.fixed and value.flags.c_contiguous:
            return value
        budget.reserve(value.nbytes, str(key))
        return np.array(value, order="C")

    def _lead(self, segment: Segment) -> None:
        self.generation += 1
        plan, state, times = self.starts
        own = scratch(self.schedule.scratch) if self.schedule.scratch else 0
        self.lead(plan, segment.first, segment.end, state, self.generation, times, own)
        doubtful = [number for number in self.schedule.doubtful if self.structs[number, DOUBT // 8]]
        if doubtful:
            self.structs[doubtful, DOUBT // 8] = 0
            raise self.schedule.calls[doubtful[0]].section.undecided()

    def _call_helpers(self) -> None:
        """Wake the helpers that are not waiting already."""
        pool = self.schedule.engine.pool
        if pool is None:
            return
        present = self.sent - int(self.state[_GONE])
        for _ in range(self.schedule.helpers - present):
            self.sent += 1
            pool.submit(_follow, self)


def _follow(instance: Instance) -> None:
    engine = instance.schedule.engine
    own = scratch(instance.schedule.scratch)
    with instance.lock:
        row = instance.rows.setdefault(get_ident(), len(instance.rows) + 1)
    times = address(instance.times[row:])
    engine.runner.follow(address(instance.plan), address(instance.state), _PATIENCE, times, own)


class Program(Schedule):
    """A schedule and the memory of its runs.

    `run` may be called from several threads at once; each run has memory of its own, kept for the next one.
    """

    def __init__(
        self,
        engine: Engine,
        items: Sequence[Item],
        given: Mapping[Any, Operand],
        fixed: Mapping[Any, Array],
        wanted: Sequence[Key],
    ) -> None:
        super().__init__(engine, items, given, fixed, wanted)
        self._free: list[Instance] = []
        self._lock = threading.Lock()

    def run(self, arrays: Mapping[Any, Array], elsewhere: Elsewhere, budget: Budget) -> StampedResult:
        """arrays: the values that come from outside, counted already. elsewhere: item number and its inputs to its outputs.

        Raises Unplanned if an array has not the type and shape of its operand, Undecided if a kernel could not decide.
        """
        with self._lock:
            instance = self._free.pop() if self._free else None
        if instance is None:
            budget.reserve(self.nbytes, "native program")
            instance = Instance(self)
        else:
            budget.reserve(self.nbytes, "native program", there=True)
        try:
            return instance.run(arrays, elsewhere, budget)
        finally:
            with self._lock:
                self._free.append(instance)
