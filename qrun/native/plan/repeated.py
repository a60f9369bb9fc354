"""Turns of a program as an operation of another one, which no thread shares:
loops in loops without Python between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from qrun.declare.frozen import frozen
from qrun.memory import Budget
from qrun.native.emit.spec import HELD, MOVE, STRUCT, KernelSpec
from qrun.native.errors import Declined
from qrun.native.kernels.foreign import Part
from qrun.native.kernels.strided import SIZES
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Operation
from qrun.native.machine.memory import address, aligned_up
from qrun.native.plan.instance import Instance
from qrun.native.plan.items import Key
from qrun.native.plan.turns import Turned, Turning, TurnsMemory

_TRUE = np.ones(1, np.bool_)


@frozen
class RepeatedForm:
    """What the operands of turns are, by number, and which results are wanted.

    read:   keys of the values that turns read from outside, in the order of the operands. first: for the key of each
            carried value, the operand with its first value; a condition without an operand is true at first.
    elements: for the key of each scanned value, its operand; the number of the turn has none.
    count, going: the operands that say how many turns there are, and whether there are any; or None.
    length: the greatest number of turns, and the exact one where results are stacked.
    states: keys of the carried values whose last values are wanted.
    """

    read: tuple[Key, ...]
    first: Mapping[Key, int]
    elements: Mapping[Key, int]
    count: int | None
    going: int | None
    length: int
    states: tuple[Key, ...]


class Repeated(Operation):
    """What many turns make: the states that are wanted, then what is stacked, behind each other as bytes, of which
    `outputs` are the parts. Only a program can run it. Raises Declined where threads could share the work of a turn."""

    def __init__(self, engine: Engine, turning: Turning, form: RepeatedForm, operands: Sequence[Operand]) -> None:
        if turning.listing.helpers:
            raise Declined("threads can share what a turn does")
        self.engine, self.turning, self.form = engine, turning, form
        states = [turning.read[key] for key in form.states]
        stacks = [Operand((form.length, *shape), dtype) for shape, dtype in turning.forms]
        self.made = (*states, *stacks)
        if not self.made or len(operands) > 20:
            raise Declined("no result, or many operands")
        if any(operand.dtype.itemsize not in SIZES for operand in self.made):
            raise Declined("elements that are no numbers")
        *self.starts, nbytes = accumulate((aligned_up(o.nbytes) for o in self.made), initial=0)
        self.operands = (*operands, Operand((max(nbytes, 1),), np.dtype(np.uint8)))
        self.held_bytes = turning.listing.nbytes + turning.memory

    @property
    def outputs(self) -> list[Part]:
        """What takes each result out of all of them."""
        return [Part(self.engine, self.result, o, start) for o, start in zip(self.made, self.starts, strict=True)]

    def hold(self) -> HeldTurns:
        """The memory of turns."""
        return HeldTurns(self)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        form, listing, last = self.form, self.turning.listing, len(self.operands) - 1
        told = {"count": form.count, "going": form.going}
        flags = [name for name, operand in told.items() if operand is not None] + ["until"] * self.turning.until
        flags += ["all"] * bool(self.turning.forms)
        spec = KernelSpec("repeated", self.engine.isa.name, len(self.operands), 0, 0, " ".join(flags), "bytes", False)
        pointing = {f"operand{n}*": n for n in range(len(self.operands))}
        pointing |= {f"{name}*": operand for name, operand in told.items() if operand is not None}
        extents = [max(o.nbytes, listing.room.get(key, 0)) for o, key in zip(self.operands, form.read, strict=False)]
        extents.append(self.operands[last].nbytes)
        return (self.engine.kernels.call(spec, pointing, {"tiles": 1}, extents, sparse=True, scratch=listing.scratch,
                                         decides=False, held=self),)  # fmt: skip


@cache
def _numbers(bits: int) -> Array:
    """0 to 2**bits - 1, the numbers of turns. The arrays are kept, since structs point to them;
    as their sizes are powers of two, they are few."""
    return np.arange(1 << bits, dtype=np.int64)


class HeldTurns:
    """Memory of turns in one run of the program that they are a call of."""

    def __init__(self, operation: Repeated) -> None:
        turning, form, runner = operation.turning, operation.form, operation.engine.runner
        self._turning = turning
        instance = self._instance = Instance(turning.listing)
        ready = self._ready = TurnsMemory(turning, instance)
        returned = self._returned = instance.results(Budget())
        for key, start in ready.starts.items():
            instance.move(key, start)
        self._points = np.array([*self._pointing(operation, returned)], np.int64).reshape(-1, 3)
        self._first, self._last = self._around(operation)
        self.words = np.zeros(len(HELD), np.int64)
        words = {"repeat*": runner.repeated, "moved*": runner.moved, "plan*": address(instance.plan)}
        words |= {"calls": len(turning.listing.counts), "state*": instance.start}
        words |= {"turns*": address(ready.turns), "most": form.length, "count*": address(ready.tallied)}
        self.tallied, self.aside, self.within = ready.tallied, np.zeros_like(ready.tallied), instance.all_held
        for name, rows in (("point", self._points), ("first", self._first), ("last", self._last)):
            words |= {f"{name}*": address(rows), f"{name}s": len(rows)}
        for name, word in words.items():
            self.words[HELD.index(name)] = word

    def _pointing(self, operation: Repeated, returned: Mapping[Key, Array]) -> list[tuple[int, int, int]]:
        """Rows of addresses that are set before each first turn (`point` of spec.HELD): the byte of the kernel's struct
        with an address, where to store that, and what to add to it."""
        listing, form, ready = self._turning.listing, operation.form, self._ready
        kernel = operation.tight[0].kernel
        places = {key: 8 * number for number, key in enumerate(form.read)}
        structs, moves, rows = address(self._instance.structs), address(ready.moves), []
        for key, place in places.items():
            for call, word, start in listing.pointers.get(key, np.empty((0, 3), np.int64)).tolist():
                rows.append((place, structs + STRUCT * call + 8 * word, start))
        nothing = 8 * kernel.word("none")
        for row, key, start in ready.loose:
            base, more = nothing, start
            if key in form.elements:
                base = 8 * form.elements[key]
            elif key in self._turning.scanned:
                more += address(_numbers(form.length.bit_length()))
            elif key in places:
                base = places[key]
            else:
                more += address(returned[key])
            rows.append((base, moves + MOVE * row, more))
        result = 8 * (len(operation.operands) - 1)
        for number, start in enumerate(operation.starts[len(form.states) :], ready.before):
            rows.append((result, moves + MOVE * number + 8, start))
        return rows

    def _around(self, operation: Repeated) -> tuple[Array, Array]:
        """Moves before all turns, from operands to what the first one reads, and after them, to the result; those of
        their words that depend on where operands lie are set with the others."""
        form, ready = operation.form, self._ready
        first = np.zeros((len(self._turning.carried), MOVE // 8), np.int64)
        last = np.zeros((len(form.states), MOVE // 8), np.int64)
        points = []
        for row, (_, key) in enumerate(self._turning.carried):
            place = form.first.get(key)
            first[row, :3] = 0 if place is not None else address(_TRUE), ready.starts[key], ready.values[key].nbytes
            if place is not None:
                points.append((8 * place, address(first) + MOVE * row, 0))
        for row, (key, start) in enumerate(zip(form.states, operation.starts, strict=False)):
            last[row, 0], last[row, 2] = ready.starts[key], ready.values[key].nbytes
            points.append((8 * (len(operation.operands) - 1), address(last) + MOVE * row + 8, start))
        self._points = np.concatenate([self._points, np.array(points, np.int64).reshape(-1, 3)])
        return first, last

    def told(self, tick: float) -> Turned:
        """How many turns there were, and how long they took, since the numbers were 0."""
        ready = self._ready
        spans = self._turning.by_item(ready.spans, tick)
        met = dict(zip(self._turning.guards, ready.met.tolist(), strict=True))
        return Turned(int(ready.tallied[0]), (), (), spans, met, self._instance.told(tick))
