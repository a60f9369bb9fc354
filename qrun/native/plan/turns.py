"""Many runs of a program in a row, without Python between them: what one makes goes to where the next one reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from time import perf_counter_ns
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.memory import Budget, Deadline
from qrun.native.emit.spec import (
    AFTER,
    BEFORE,
    DOUBTFUL,
    DOUBTS,
    GOING,
    LONG,
    MOST,
    MOVE,
    MOVES,
    SPANS,
    SPELL,
    TALLIES,
    TICKS,  # fmt: skip
    TURNS,
)
from qrun.native.errors import Declined, TooLong
from qrun.native.machine.memory import Array, Ints, address, aligned, aligned_up, forget
from qrun.native.plan.instance import Instance
from qrun.native.plan.items import Key
from qrun.native.plan.program import Program

_FIRST, _SHORT, _LONG = 8, 5_000_000, 50_000_000
"""Turns of the first native call, after which Python sees interrupts. After a call of less than _SHORT ns the next one
makes 8 times as many turns, and after one of more than _LONG ns a quarter."""

Move = tuple[int, int, int, int, int]
Place = tuple[Key | None, int]


@frozen
class Turned:
    """What some turns made.

    count:   how many there were.
    carried: what goes around, after the last one. stacked: what each of them made, along a first axis.
    spans:   ns, by item. met: in how many of them each guard was true.
    inside:  turns inside them, by item. late: whether some of these took too long.
    """

    count: int
    carried: tuple[Array, ...]
    stacked: tuple[Array, ...]
    spans: tuple[int, ...]
    met: Mapping[Key, int] = field(default_factory=dict)
    inside: Mapping[int, Turned] = field(default_factory=dict)
    late: bool = False


class Turning:
    """The values of a program that runs turn after turn. Raises Declined where Python has to run it.

    carried: keys of a value that a turn makes, and of the one as which the next turn reads it. scanned: keys of values
    of which each turn reads one element; stacked: of those kept from each turn. known: constants besides the program's.
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
        self.carried, self.scanned, self.stacked = tuple(carried), tuple(scanned), tuple(stacked)
        if len(self.listing.segments) != 1 or self.listing.segments[0].item >= 0:
            raise Declined("a step of the program runs elsewhere")
        self.constants = {key: np.asarray(a, order="C") for key, a in {**self.listing.fixed, **known}.items()}
        given = self.listing.given
        self.read = {key: given[key] for key in (*(read for _, read in carried), *scanned)}
        for made, read in self.carried[until:]:
            if self._form(made) != (given[read].shape, given[read].dtype):
                raise Declined("what goes around changes its shape or type")
        if until and any(dtype != np.bool_ for dtype in (given[carried[0][1]].dtype, self._form(carried[0][0])[1])):
            raise Declined("the condition is no bool")
        self.places = {key: self._place(key) for key in (*(made for made, _ in carried), *stacked, *self.guards)}
        self.forms = [self._form(key) for key in self.stacked]
        self.element = sum(_nbytes(shape, dtype) for shape, dtype in self.forms)
        self.sizes = {key: aligned_up(max(_nbytes(o.shape, o.dtype), self._room(key))) for key, o in self.read.items()}
        self.passing = {read: aligned_up(_nbytes(given[read].shape, given[read].dtype)) for read in self._exchanged()}
        self.memory = sum(self.sizes.values()) + sum(self.passing.values())

    def _form(self, key: Key) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        found = self.constants.get(key, self.listing.given.get(key))
        form = self.listing.views[key] if found is None else found
        return form.shape, form.dtype

    def _room(self, key: Key) -> int:
        return self.listing.room.get(key, 0)

    def _place(self, key: Key) -> Place:
        """The key of the array that holds the value, None for the arena, and the byte where the value begins in it."""
        if key in self.constants or key in self.listing.given:
            return key, 0
        view = self.listing.views[key]
        step = view.dtype.itemsize
        for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
            if size > 1 and stride != step:
                raise Declined("what goes around has gaps")
            step *= size
        return view.key, view.start

    def _exchanged(self) -> Iterator[Key]:
        """Keys of carried values whose next value lies in memory that is read: it is copied by way of a buffer."""
        read = {key for _, key in self.carried}
        for made, key in self.carried:
            place = self.places[made]
            if place[0] in read and place != (key, 0):
                yield key

    def run(self, values: Mapping[Any, Array], most: int, room: int, budget: Budget, timed: bool = True) -> Turned:
        """Make turns: at most `most`, and no more than `room` bytes of stacked results, but room for one turn.
        timed: whether to return spans.

        values: the first values of what is carried; what is scanned, contiguous, with an element for each turn along
        the first axis; and all else that the program reads. Makes no turn if a kernel cannot decide a result of the
        first one, or while the program still measures which calls threads share. Ends when the budget has no more time.
        Raises MemoryLimitError.
        """
        most = min(most, max(room // max(self.element, 1), 1))
        instance = self.program.take(budget)
        try:
            if instance.measuring:
                return Turned(0, (), (), ())
            budget.claim((self.memory + most * self.element,), 1, "turns of a loop")
            stacked = tuple([_block((most, *shape), dtype) for shape, dtype in self.forms])
            ready = self._ready(instance)
            for _, key in self.carried:
                ready.values[key][...] = values[key]
            known = {key: instance.point(key, array) for key, array in values.items() if key not in self.read}
            known |= {key: values[key] for key in self.scanned} | instance.results(budget)
            for key, start in ready.starts.items():
                instance.move(key, start)
            known |= ready.set_moves(known, stacked)  # copies live as long as `known`
            count, spans, late = self._repeat(instance, ready, most, budget.deadline, timed)
            carried = tuple([ready.values[key].copy() for _, key in self.carried])
            inside = instance.told(spans[1]) if timed else {}
        finally:
            self.program.give(instance)
        met = dict(zip(self.guards, ready.met.tolist(), strict=True))
        return Turned(count, carried, tuple([block[:count] for block in stacked]), spans[0], met, inside, late)

    def _ready(self, instance: Instance) -> TurnsMemory:
        """What turns with this memory need, made once."""
        found = instance.standing
        if not isinstance(found, TurnsMemory) or found.turning is not self:
            found = instance.standing = TurnsMemory(self, instance)
        return found

    def _repeat(
        self, instance: Instance, ready: TurnsMemory, most: int, deadline: Deadline | None, timed: bool
    ) -> tuple[int, tuple[tuple[int, ...], float], bool]:
        """How many turns were made, the ns that they took by item, and those of a tick,
        and whether turns in it took too long."""
        going, turns, segment = ready.going, ready.turns, self.listing.segments[0]
        done, size, spent, ticks = 0, _FIRST, 0, 0
        ready.tallied[...] = 0
        for held in instance.all_held:
            held.tallied[...] = 0
        failed: BaseException | None = None
        while done < most and not (deadline is not None and deadline.passed):
            turns[MOST // 8] = asked = min(size, most - done)
            begin = perf_counter_ns()
            made, failed = instance.repeat(segment, asked, turns)
            took = perf_counter_ns() - begin
            done, spent, ticks = done + made, spent + took, ticks + int(turns[TICKS // 8])
            if failed is not None or (going is not None and not going[0]):
                break
            size = size * 8 if took < _SHORT else max(size // 4, 1) if took > _LONG else size
        for held in instance.all_held if failed is not None else ():
            held.tallied[...] = held.aside
        tick, late = spent / max(ticks, 1), isinstance(failed, TooLong)
        return done, (self.by_item(ready.spans, tick) if timed else (), tick), late

    def by_item(self, spans: Ints, tick: float) -> tuple[int, ...]:
        """The ns that calls took, by item. spans: ticks, by call; tick: the ns of one."""
        found = np.bincount(self.listing.counts[:, 3], spans, self.listing.items) * tick
        return tuple(found.astype(np.int64).tolist())


class TurnsMemory:
    """What turns with the memory of one run need: buffers, and the moves between them.
    It is used again with that memory.

    values: what a turn reads, in its buffer, by key; starts: where that begins. going: the byte that ends the turns.
    tallied: how many turns there were, if they are a call; in how many each guard was true; the ticks that calls took.
    before: how many of the moves come before a turn.
    moves:  as emit/runner.py has them; loose: rows that read arrays of the run, their keys,
            and how many bytes from the start.
    """

    def __init__(self, turning: Turning, instance: Instance) -> None:
        self.turning = turning
        memory, place = aligned(turning.memory, np.uint8, 0), 0
        self.values: dict[Key, Array] = {}
        self.starts: dict[Key, int] = {}
        for key, size in turning.sizes.items():
            operand = turning.read[key]
            own = memory[place : place + _nbytes(operand.shape, operand.dtype)]
            self.values[key], self.starts[key] = own.view(operand.dtype).reshape(operand.shape), address(own)
            place += size
        passing = {}
        for key, size in turning.passing.items():
            passing[key] = address(memory[place : place + size])
            place += size
        self._memory = memory
        self.loose: list[tuple[int, Key, int]] = []
        guards = len(turning.guards)
        self.tallied = np.zeros(1 + guards + len(turning.listing.counts), np.int64)
        self.met, self.spans = self.tallied[1 : 1 + guards], self.tallied[1 + guards :]
        self.before = len(turning.scanned) + len(instance.all_held)
        self._rows = self._moves(instance, passing)
        self.moves = self._rows.copy()
        self.going = self.values[turning.carried[0][1]].reshape(-1) if turning.until else None
        self.turns = np.zeros(TURNS // 8, np.int64)
        words = {MOVES: address(self.moves), BEFORE: self.before, TALLIES: guards}
        words[AFTER] = len(self.moves) - self.before - guards
        words |= {SPANS: address(self.spans), DOUBTFUL: address(instance.doubtful), DOUBTS: len(instance.doubtful)}
        words[SPELL] = LONG[turning.program.listing.engine.isa.architecture]
        words[GOING] = 0 if self.going is None else address(self.going)
        for word, value in words.items():
            self.turns[word // 8] = value

    def _moves(self, instance: Instance, passing: Mapping[Key, int]) -> Ints:
        """The moves before and after a turn, without addresses of arrays of a run. Those before it also save the
        counts of inner turns, which are restored if this turn is not decided."""
        turning, arena = self.turning, address(instance.memory)
        rows: list[Move] = []

        def add(key: Key, to: int, nbytes: int, along: int = 0) -> None:
            root, start = turning.places[key]
            if root is None:
                start += arena
            elif root in self.starts:
                start += self.starts[root]
            elif root in turning.constants:
                start += address(turning.constants[root])
            else:
                self.loose.append((len(rows), root, start))
            rows.append((start, to, nbytes, 0, along))

        for key in turning.scanned:
            nbytes = self.values[key].nbytes
            self.loose.append((len(rows), key, 0))
            rows.append((0, self.starts[key], nbytes, nbytes, 0))
        rows += [(address(held.tallied), address(held.aside), held.aside.nbytes, 0, 0) for held in instance.all_held]
        for key, (shape, dtype) in zip(turning.stacked, turning.forms, strict=True):
            nbytes = _nbytes(shape, dtype)
            add(key, 0, nbytes, nbytes)
        late: list[Move] = []
        for made, key in turning.carried:
            nbytes, to = self.values[key].nbytes, self.starts[key]
            if key in passing:
                add(made, passing[key], nbytes)
                late.append((passing[key], to, nbytes, 0, 0))
        for made, key in turning.carried:
            if key not in passing and turning.places[made] != (key, 0):
                add(made, self.starts[key], self.values[key].nbytes)
        rows += late
        for number, key in enumerate(turning.guards):
            add(key, address(self.met) + 8 * number, 1)
        return np.array(rows, np.int64).reshape(-1, MOVE // 8)

    def set_moves(self, known: Mapping[Key, Array], stacked: Sequence[Array]) -> Mapping[Key, Array]:
        """Set the moves for turns that begin; returns the arrays that must live until they end. known: arrays by key;
        stacked: the arrays for stacked results."""
        self.moves[...] = self._rows
        sources = {key: np.ascontiguousarray(known[key]) for _, key, _ in self.loose}
        for row, key, start in self.loose:
            self.moves[row, 0] = address(sources[key]) + start
        for row, block in enumerate(stacked, self.before):
            self.moves[row, 1] = address(block)
        return sources


def _block(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    made: Array = np.empty(shape, dtype)
    forget(made)
    return made


def _nbytes(shape: Sequence[int], dtype: np.dtype[np.generic]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
