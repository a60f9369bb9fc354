"""Many runs of a program in a row, without Python between them: what one makes goes to where the next one reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from time import perf_counter_ns
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.memory import Budget, Deadline
from qrun.native.emit.spec import AFTER, BEFORE, DOUBTFUL, DOUBTS, GOING, MOST, MOVE, MOVES, SPANS, TICKS, TURNS
from qrun.native.errors import Declined
from qrun.native.machine.memory import Array, address, aligned, forget
from qrun.native.plan.instance import Instance
from qrun.native.plan.items import Key
from qrun.native.plan.program import Program

_FIRST, _SHORT, _LONG = 8, 5_000_000, 50_000_000
"""Turns that are first made without coming back to Python, where interrupts are seen; it comes back so seldom that as many
turns take longer than the first of these times (ns), if it can be, and not longer than the other."""
_LINE = 64

Move = tuple[int, int, int, int, int]
Place = tuple[Key | None, int]


@frozen
class Turned:
    """What some turns made.

    count:   how many there were.
    carried: what goes around, after the last one. stacked: what each of them made, along a first axis.
    spans:   ns, by item. met: in how many of them each guard was true.
    """

    count: int
    carried: tuple[Array, ...]
    stacked: tuple[Array, ...]
    spans: tuple[int, ...]
    met: Mapping[Key, int] = field(default_factory=dict)


class Turning:
    """What goes around in a program. Raises Declined where Python has to do it.

    carried: what a turn makes, and as what the next one reads it. scanned: of what a turn reads one element.
    stacked: what is kept of each turn. known: values that are constants, and not of the program.
    until:   whether the first of the carried values is a condition, one byte, which ends the turns.
    """

    def __init__(
        self,
        program: Program,
        carried: Sequence[tuple[Key, Key]],
        scanned: Sequence[Key],
        stacked: Sequence[Key],
        known: Mapping[Any, Array],
        until: bool,
    ) -> None:
        self.program, self.listing, self.until = program, program.listing, until
        self.guards = tuple(dict.fromkeys(self.listing.guards.values()))
        self.carried, self.scanned, self.stacked = tuple(carried), tuple(scanned), (*stacked, *self.guards)
        if len(self.listing.segments) != 1 or self.listing.segments[0].item >= 0:
            raise Declined("a step of the program runs elsewhere")
        self._constants = {key: np.asarray(a, order="C") for key, a in {**self.listing.fixed, **known}.items()}
        given = self.listing.given
        self._read = {key: given[key] for key in (*(read for _, read in carried), *scanned)}
        for made, read in self.carried[until:]:
            if self._form(made) != (given[read].shape, given[read].dtype):
                raise Declined("what goes around changes its shape or type")
        if until and any(dtype != np.bool_ for dtype in (given[carried[0][1]].dtype, self._form(carried[0][0])[1])):
            raise Declined("the condition is no bool")
        self.places = {key: self._place(key) for key in (*(made for made, _ in carried), *self.stacked)}
        self.forms = [self._form(key) for key in self.stacked]
        self.element = sum(_nbytes(shape, dtype) for shape, dtype in self.forms)
        self._sizes = {key: _lined(max(_nbytes(o.shape, o.dtype), self._room(key))) for key, o in self._read.items()}
        self._passing = {read: _lined(_nbytes(given[read].shape, given[read].dtype)) for read in self._exchanged()}

    def _form(self, key: Key) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        found = self._constants.get(key, self.listing.given.get(key))
        form = self.listing.views[key] if found is None else found
        return form.shape, form.dtype

    def _room(self, key: Key) -> int:
        return self.listing.room.get(key, 0)

    def _place(self, key: Key) -> Place:
        """Of which array the value is a part, None for the arena, and where it begins there."""
        if key in self._constants or key in self.listing.given:
            return key, 0
        view = self.listing.views[key]
        step = view.dtype.itemsize
        for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
            if size > 1 and stride != step:
                raise Declined("what goes around has gaps")
            step *= size
        return view.key, view.start

    def _exchanged(self) -> Iterator[Key]:
        """What is read as something that another value is made of: it passes through memory of its own."""
        read = {key for _, key in self.carried}
        for made, key in self.carried:
            place = self.places[made]
            if place[0] in read and place != (key, 0):
                yield key

    def run(self, values: Mapping[Any, Array], most: int, room: int, budget: Budget) -> Turned:
        """Some turns, at most so many, of which what is stacked takes no more than so many bytes.

        values: what is carried at first; what is scanned, contiguous, an element of each turn along a first axis; and all
        else that the program reads. None is made where a kernel cannot decide what the first one gives, and until it is known
        which calls threads are to share. It ends when the budget allows no more time. Raises MemoryLimitError.
        """
        most = min(most, max(room // max(self.element, 1), 1))
        memory = sum(self._sizes.values()) + sum(self._passing.values())
        instance = self.program.take(budget)
        try:
            if instance.measuring:
                return Turned(0, (), (), ())
            budget.claim((memory + most * self.element,), 1, "turns of a loop")
            stacked = tuple(_block((most, *shape), dtype) for shape, dtype in self.forms)
            buffers = self._buffers(values, aligned(memory, np.uint8, 0))
            held = {key: instance.point(key, array) for key, array in values.items() if key not in self._read}
            for key in self._read:
                instance.move(key, address(buffers[key]))
            made = instance.results(budget)
            moves, before = self._moves(instance, {**values, **held, **made}, buffers, stacked)
            count, spans = self._repeat(instance, moves, before, most, buffers, budget.deadline)
        finally:
            self.program.give(instance)
        carried = tuple(
            buffers[key].view(self._read[key].dtype).reshape(self._read[key].shape).copy() for _, key in self.carried
        )
        kept = len(stacked) - len(self.guards)
        met = {key: int(np.count_nonzero(b[:count])) for key, b in zip(self.guards, stacked[kept:], strict=True)}
        return Turned(count, carried, tuple(block[:count] for block in stacked[:kept]), spans, met)

    def _buffers(self, values: Mapping[Key, Array], memory: Array) -> dict[Key, Array]:
        """Where each value lies that a turn reads, of its own size; what is carried is there."""
        buffers, place = {}, 0
        for key, size in self._sizes.items():
            operand = self._read[key]
            buffers[key] = memory[place : place + _nbytes(operand.shape, operand.dtype)]
            place += size
        for key, size in self._passing.items():
            buffers["passing", key] = memory[place : place + size]
            place += size
        for _, key in self.carried:
            buffers[key][...] = np.ascontiguousarray(values[key]).reshape(-1).view(np.uint8)
        return buffers

    def _moves(
        self, instance: Instance, values: Mapping[Key, Array], buffers: Mapping[Key, Array], stacked: Sequence[Array]
    ) -> tuple[Array, int]:
        """The moves before and after a turn, and how many come before."""
        arena = address(instance.memory)

        def start(key: Key) -> int:
            root, offset = self.places[key]
            if root is None:
                return arena + offset
            if root in buffers:
                return address(buffers[root]) + offset
            return address(values[root] if root in values else self._constants[root]) + offset

        before: list[Move] = []
        for key in self.scanned:
            size = buffers[key].nbytes
            before.append((address(values[key]), address(buffers[key]), size, size, 0))
        after: list[Move] = []
        for key, block in zip(self.stacked, stacked, strict=True):
            size = block.nbytes // len(block)
            after.append((start(key), address(block), size, 0, size))
        late: list[Move] = []
        for made, key in self.carried:
            size, to = buffers[key].nbytes, address(buffers[key])
            if key in self._passing:
                passing = address(buffers["passing", key])
                after.append((start(made), passing, size, 0, 0))
                late.append((passing, to, size, 0, 0))
            elif self.places[made] != (key, 0):
                late.append((start(made), to, size, 0, 0))
        rows = [*before, *after, *late]
        return np.array(rows, np.int64).reshape(-1, MOVE // 8), len(before)

    def _repeat(
        self,
        instance: Instance,
        moves: Array,
        before: int,
        most: int,
        buffers: Mapping[Key, Array],
        deadline: Deadline | None,
    ) -> tuple[int, tuple[int, ...]]:
        """How many turns were made, and the ns that they took by item."""
        going = buffers[self.carried[0][1]] if self.until else None
        spans, turns = np.zeros(len(self.listing.counts), np.int64), np.zeros(TURNS // 8, np.int64)
        words = {MOVES: address(moves), BEFORE: before, AFTER: len(moves) - before, SPANS: address(spans)}
        words |= {DOUBTFUL: address(instance.doubtful), DOUBTS: len(instance.doubtful)}
        words[GOING] = 0 if going is None else address(going)
        for word, value in words.items():
            turns[word // 8] = value
        done, size, spent, ticks = 0, _FIRST, 0, 0
        while done < most and not (deadline is not None and deadline.passed):
            turns[MOST // 8] = asked = min(size, most - done)
            begin = perf_counter_ns()
            made = instance.repeat(self.listing.segments[0], asked, turns)
            took = perf_counter_ns() - begin
            done, spent, ticks = done + made, spent + took, ticks + int(turns[TICKS // 8])
            if made < asked or (going is not None and not going[0]):
                break
            size = size * 8 if took < _SHORT else max(size // 4, 1) if took > _LONG else size
        by_item = np.bincount(self.listing.counts[:, 3], spans, self.listing.items) * (spent / max(ticks, 1))
        return done, tuple(by_item.astype(np.int64).tolist())


def _block(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    made: Array = np.empty(shape, dtype)
    forget(made)
    return made


def _nbytes(shape: Sequence[int], dtype: np.dtype[np.generic]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _lined(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE
