"""Memory for one run of a program at a time, and the run: arrays in, kernels called, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.memory import Budget
from qrun.native._runner import DOUBT, ENTRY, STATE, STRUCT
from qrun.native.compile import address_of
from qrun.native.engine import address
from qrun.native.errors import Unplanned
from qrun.native.fold import aligned, forget
from qrun.native.placement import Foreign, Key, Storage
from qrun.native.section import scratch
from qrun.native.stamps import Ran, Stamp, Stretch

if TYPE_CHECKING:
    from qrun.native.program import Program

Array = np.ndarray[Any, Any]
Elsewhere = Callable[[int, list[Array]], Sequence[Array]]

_PATIENCE = 20000
"""Turns of the waiting loop (tens of nanoseconds each) after which a helper goes back to sleep."""
_WORTH = 32
"""Tiles, of some microseconds at least, from which on it is worth to wake helpers after other steps."""
_OPEN, _INSIDE, _RANGE, _GONE = range(0, STATE // 8, 8)


class Instance:
    """Memory for one run at a time: arena, argument structs, plan, state shared with helpers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = aligned(program.arena, np.uint8, 0)
        calls = program.calls
        self.structs = aligned((len(calls), STRUCT // 8), np.int64, 0)
        self.plan = aligned((len(calls), ENTRY // 8), np.int64, 0)
        self.state = aligned(STATE // 8, np.int64, 0)
        self.times = np.zeros((program.engine.threads, len(calls) + 1, 2), np.int64)
        self.starts = address(self.plan), address(self.state), address(self.times)
        self.lead = program.engine.runner.lead
        self.rows: dict[int, int] = {}
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
        self.forget()
        self.views: dict[Key, Array] = {}
        for key, forms in program.placement.forms.items():
            if forms[0].shown and forms[0].root.key is None:
                self.views[key] = self._view(forms[0])
        self.kept = [self._point(key, array) for key, array in program.fixed.items() if key in self.patches]

    def forget(self) -> None:
        """Keep nothing in the arena but what is filled once."""
        forget(self.memory)
        for border in self.program.placement.borders:
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
            if held[key] is not array:
                budget.hold(held[key], str(key))

        for key, array in arrays.items():
            take(key, array)
        for stretch in program.stretches:
            begin = perf_counter_ns()
            if stretch.item < 0:
                if not stretch.first or stretch.tiles >= _WORTH:
                    self._call_helpers()
                self._lead(stretch)
            else:
                item = program.items[stretch.item]
                assert isinstance(item, Foreign)
                made = elsewhere(stretch.item, [self._value(key, values) for key in item.inputs])
                for key, array in zip(item.outputs, made, strict=True):
                    own = array.copy() if np.may_share_memory(array, self.memory) else array
                    budget.hold_made(own, str(key))
                    take(key, own)
            ticks = self.times[:, stretch.first : stretch.end + 1].copy()
            stamps.append(Stamp(stretch, begin, perf_counter_ns(), ticks))
            for key in stretch.frees:
                array, pointed = values.pop(key), held.pop(key)
                budget.release(array)
                if pointed is not array:
                    budget.release(pointed)
        return Ran({key: self._copy(key, values, budget) for key in program.wanted}, tuple(stamps))

    def _value(self, key: Key, values: Mapping[Any, Array]) -> Array:
        """A value as an array: a view of the arena, of another array, or that array."""
        if key in self.views:
            return self.views[key]
        if key in values:
            return values[key]
        storage = self.program.placement.forms[key][0]
        stored = values[storage.root.key].reshape(storage.operand.stored(storage.order))
        return np.moveaxis(stored, -1, 1) if storage.order == "channels" else stored

    def _copy(self, key: Key, values: Mapping[Any, Array], budget: Budget) -> Array:
        value = self._value(key, values)
        if value is values.get(key) and key not in self.program.fixed and value.flags.c_contiguous:
            return value
        budget.reserve(value.nbytes, str(key))
        return np.array(value, order="C")

    def _lead(self, stretch: Stretch) -> None:
        self.generation += 1
        plan, state, times = self.starts
        own = scratch(self.program.scratch) if self.program.scratch else 0
        self.lead(plan, stretch.first, stretch.end, state, self.generation, times, own)
        doubtful = [number for number in self.program.doubtful if self.structs[number, DOUBT // 8]]
        if doubtful:
            self.structs[doubtful, DOUBT // 8] = 0
            raise self.program.calls[doubtful[0]].section.undecided()

    def _call_helpers(self) -> None:
        """Wake the helpers that are not waiting already."""
        pool = self.program.engine.pool
        if pool is None:
            return
        present = self.sent - int(self.state[_GONE])
        for _ in range(self.program.helpers - present):
            self.sent += 1
            pool.submit(_follow, self)


def _follow(instance: Instance) -> None:
    engine = instance.program.engine
    own = scratch(instance.program.scratch)
    with instance.program.lock:
        row = instance.rows.setdefault(get_ident(), len(instance.rows) + 1)
    times = address(instance.times[row:])
    engine.runner.follow(address(instance.plan), address(instance.state), _PATIENCE, times, own)
