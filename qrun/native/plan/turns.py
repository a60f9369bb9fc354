"""Loops and branches as one kernel call (emit/turns.py): a program runs turn after turn (a turn is one iteration), and
moves carry values between turns. The call stands alone or replaces a node with graphs in another program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from time import perf_counter_ns
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.memory import Budget
from qrun.native.emit.spec import MOVE, NEXT, STRUCT, TURNS, KernelSpec
from qrun.native.errors import Declined
from qrun.native.machine.call import KernelCall, scratch
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array, address, align_up, aligned, fresh
from qrun.native.machine.operation import Operand, Operation, size
from qrun.native.plan.instance import Instance
from qrun.native.plan.items import Key
from qrun.native.plan.listing import Listing

ENDLESS = 1 << 62
"""More turns than any run makes."""
MOVED = 1 << 21
"""The most bytes of values that turns may carry: moving more takes longer than turns from Python, which move
nothing."""
_TRUE = np.ones(1, np.bool_)
_FLAG = Operand((), _TRUE.dtype)
_OPERANDS = 27
"""The most operands and results of a call in a program."""
_NONE = np.empty((0, 3), np.int64)
Move = tuple[int, int, int, int, int, int, int]
"""The words of a copy: spec.MOVE."""
Watch = Callable[["LoopMemory", float], None]
Place = tuple[int, int]
"""The byte of a struct where an address is, 0 for none, and the offset that is added to this address."""


class LoopBody:
    """A program as the body of a loop, and the role of each of its values, by key. Raises Declined where a turn needs
    Python, and where carried values are large or change their shape or type between turns.

    number, true: inputs that hold the number of the turn, and true in each turn; "" where there are none.
    carried: pairs of a result of one turn and the input as which the next turn reads it.
    scanned: inputs that take one element of a larger value in each turn; stacked: results kept from every turn.
    until: the result that is false after the last turn, "" for none. known: results that are constants.
    read: values from outside: those that stay the same, initial values of carried ones, and scanned ones.
    """

    def __init__(
        self,
        listing: Listing,
        begins: tuple[Key, Key],
        until: Key,
        carried: Sequence[tuple[Key, Key]],
        scanned: Sequence[Key],
        stacked: Sequence[Key],
        known: Mapping[Any, Array],
    ) -> None:
        self.listing, (self.number, self.true), self.until = listing, begins, until
        self.carried, self.scanned, self.stacked = tuple(carried), tuple(scanned), tuple(stacked)
        given, reads = listing.given, [read for _, read in carried]
        if listing.steps or listing.loose or any(form.dtype.hasobject for form in given.values()):
            raise Declined("Python has a part in a turn")
        self.constants = {key: np.asarray(a, order="C") for key, a in {**listing.fixed, **known}.items()}
        self.buffers = {key: given[key] for key in (*begins, *reads, *scanned) if key != ""}
        self.read = {key: form for key, form in given.items() if key not in {*listing.fixed, *begins}}
        self.results = [self.form(key) for key in (*reads, *stacked)]
        self.sizes = {k: align_up(max(o.nbytes, listing.room.get(k, 0), 8)) for k, o in self.buffers.items()}
        self.passed = [read for made, read in carried if self.place(made)[0] in {*self.sizes} - {read}]
        self.room = sum(self.sizes.values()) + sum(self.sizes[key] for key in self.passed)
        if any(self.form(made) != given[read] for made, read in carried) or self.room > MOVED:
            raise Declined("a carried value changes its shape or type, or is large")
        form, root = (_FLAG, None) if until == "" else (self.form(until), self.place(until)[0])
        if (form.dtype, size(form.shape)) != (_FLAG.dtype, 1) or (root in self.read and root not in self.buffers):
            raise Declined("the condition is not one bool that a turn makes")
        for key in stacked:
            self.place(key)
        self.element = sum(form.nbytes for form in self.results[len(carried) :])
        self.nbytes = listing.nbytes + self.room + sum(nbytes for _, nbytes in listing.returned.values())
        self._free: deque[LoopMemory] = deque()

    def form(self, key: Key) -> Operand:
        """Shape and type of a value that a turn reads or computes."""
        form: Any = self.constants.get(key, self.listing.given.get(key))
        form = self.listing.views[key] if form is None else form
        return Operand(form.shape, form.dtype)

    def place(self, key: Key) -> tuple[Key | None, int]:
        """The key of the array that holds a value, None for the arena, and the byte where the value begins in it."""
        if key in self.constants or key in self.listing.given:
            return key, 0
        view = self.listing.views[key]
        step = view.dtype.itemsize
        for count, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
            if count > 1 and stride != step:
                raise Declined("what a turn makes has gaps")
            step *= count
        return view.key, view.start

    def run(
        self, values: Mapping[Any, Array], start: int, most: int, budget: Budget, like: Instance, watch: Watch | None
    ) -> tuple[int, bool, list[Array]]:
        """Run up to `most` turns, numbered from `start`; none if a kernel cannot decide a result of the first. Returns
        the number of turns run, whether another would follow, and the arrays: carried values, then stacked results.

        values: the values that turns read; a scanned one has an element for each turn along its first axis. like: an
        instance that tells which calls threads share. watch: called afterwards with the memory of the turns and the ns
        of a tick. Raises Unplanned for arrays of other shapes, MemoryLimitError.
        """
        copies = [values[key].nbytes for key in self.read if not values[key].flags.c_contiguous]
        budget.claim((self.nbytes + most * self.element + sum(copies),), 1, "turns of a loop")
        try:
            held = self._free.pop()
        except IndexError:
            held = self._hold_alone(like)
        try:
            carried = len(self.carried)
            forms = [((most,) * (n >= carried) + form.shape, form.dtype) for n, form in enumerate(self.results)]
            results = [fresh(*form) for form in forms]
            read = [held.instance.point(k, values[k]) if k not in self.buffers else values[k] for k in self.read]
            arrays = [*map(np.ascontiguousarray, read), *results]
            held.table[1:] = [address(array) for array in arrays]
            for one in (held, *held.within) if watch is not None else ():
                one.spans[...] = one.words[TURNS.index("total")] = 0
            begin = perf_counter_ns()
            held.run(start, most)
            count, goes = held.word("done"), bool(held.word("goes"))
            for one in held.within if held.word("failed") else ():
                one.words[TURNS.index("total")] = one.word("kept")
            if watch is not None:
                watch(held, (perf_counter_ns() - begin) / max(held.word("ticks"), 1))
        finally:
            self._free.append(held)
        blocks = [b[:count] if 2 * count > most else b[:count].copy() for b in results[carried:]]
        return count, goes, [*results[:carried], *blocks]

    def _hold_alone(self, like: Instance) -> LoopMemory:
        operands = {key: n for n, key in enumerate(self.read)}
        places = [(8 * (1 + len(operands) + n), 0) for n in range(len(self.results))]
        held = LoopMemory(LoopCall(self, operands, places, {}))
        if like.listing is self.listing:
            calls = len(self.listing.counts)
            held.instance.plan[:calls, 5] = like.plan[:calls, 5]
        held.instance.helped = frozenset((0,) if like.helped else ())
        return held


@frozen
class LoopCall:
    """Turns as one call. operands: the number of the operand that holds each key's value; places: where each result
    goes, None for an unused one; words: the words of the memory (emit/turns.py) that do not follow from the turns."""

    turns: LoopBody
    operands: Mapping[Key, int]
    places: Sequence[Place | None]
    words: Mapping[str, int]

    def hold(self) -> LoopMemory:
        return LoopMemory(self)


class LoopMemory:
    """The memory that turns use in one run: an instance of the program, and the words that the kernel reads. table: the
    addresses of operands and results, in place of a struct, for turns that stand alone."""

    def __init__(self, inner: LoopCall) -> None:
        turns = self.turns = inner.turns
        listing, engine = turns.listing, turns.listing.engine
        self.instance = instance = Instance(listing)
        self._returned = instance.results(Budget())
        self._memory, offset = aligned(turns.room + 64, np.uint8, 0), 64
        self.starts: dict[Key, int] = {"": address(self._memory)}
        for key, nbytes in turns.sizes.items():
            self.starts[key] = address(self._memory) + offset
            instance.move(key, self.starts[key])
            offset += nbytes
        self._inner, self._passing = inner, address(self._memory) + offset
        if turns.true != "":
            self._memory[self.starts[turns.true] - address(self._memory)] = 1
        self.spans = np.zeros(max(len(listing.counts), 1), np.int64)
        self.words = np.zeros(len(TURNS), np.int64)
        self.within = [one for held in instance.held.values() for one in (held, *held.within)]
        until = address(_TRUE) if turns.until == "" else self._source(turns.until)[1]
        self._doubtful = instance.doubtful
        words = {"lead*": engine.runner.leads, "state*": instance.start, "calls": len(listing.counts)}
        words |= {"plan*": address(instance.plan), "doubtful*": address(self._doubtful), "doubts": len(self._doubtful)}
        words |= {"number*": self.starts[turns.number], "until*": until, "spans*": address(self.spans), "sense": 1}
        words |= {"count_at": self.word_at("most"), "going_at": address(_TRUE), "most": ENDLESS, **inner.words}
        self._moves = {name: self._rows(rows) for name, rows in self._all_moves().items()}
        for name, rows in self._moves.items():
            words |= {f"{name}*": address(rows), f"{name}s": len(rows)}
        for name, word in words.items():
            self.words[TURNS.index(name)] = word
        self._kernel, self._struct = engine.kernels.get(_spec(engine)), aligned(STRUCT // 8, np.int64, 0)
        for name, word in (("held*", address(self.words)), ("tiles", 1)):
            self._struct[self._kernel.word(name)] = word
        self.table = np.zeros(1 + len(inner.operands) + len(turns.results), np.int64)

    def word_at(self, name: str) -> int:
        """The address of a word."""
        return address(self.words) + 8 * TURNS.index(name)

    def word(self, name: str) -> int:
        """A word's value."""
        return int(self.words[TURNS.index(name)])

    def _rows(self, rows: Sequence[Move]) -> Array:
        """Moves as rows of int64."""
        return np.array(rows, np.int64).reshape(-1, MOVE // 8)

    def _source(self, key: Key) -> Place:
        """The place of a value that a turn computed or read."""
        turns = self.turns
        root, start = turns.place(key)
        if root in self.starts:
            return 0, start + self.starts[root]
        if root in self._inner.operands:
            return 8 * (1 + self._inner.operands[root]), start
        array = self.instance.memory if root is None else {**turns.constants, **self._returned}[root]
        return 0, start + address(array)

    def _all_moves(self) -> dict[str, list[Move]]:
        """The copies around the turns, by when they are made: ``first`` before all turns, ``before`` and ``after`` each
        one, ``last`` after all. A carried value that another one reads goes through a buffer."""
        turns, operands = self.turns, self._inner.operands
        structs, passing = address(self.instance.structs), self._passing
        made: dict[str, list[Move]] = {name: [] for name in ("first", "before", "after", "last")}
        direct: list[Move] = []
        late: list[Move] = []

        def move(when: list[Move], source: Place, target: Place, key: Key, ahead: int = 0, along: int = 0) -> None:
            if nbytes := turns.form(key).nbytes:
                when.append((*source, *target, nbytes, ahead * nbytes, along * nbytes))

        for key, n in operands.items():
            if key in turns.buffers:
                scanned = key in turns.scanned
                move(
                    made["before" if scanned else "first"], (8 * (1 + n), 0), (0, self.starts[key]), key, ahead=scanned
                )
                continue
            for call, word, start in turns.listing.pointers.get(key, _NONE).tolist():
                made["first"].append((8 * (1 + n), start, 0, structs + STRUCT * call + 8 * word, 0, 0, 0))
        for key, destination in zip(turns.stacked, self._inner.places[len(turns.carried) :], strict=True):
            if destination is not None:
                move(made["after"], self._source(key), destination, key, along=1)
        for (key, read), destination in zip(turns.carried, self._inner.places, strict=False):
            own = 0, self.starts[read]
            if read in turns.passed:
                move(made["after"], self._source(key), (0, passing), read)
                move(late, (0, passing), own, read)
                passing += turns.sizes[read]
            elif self._source(key) != own:
                move(direct, self._source(key), own, read)
            if destination is not None:
                move(made["last"], own, destination, read)
        made["after"] += [*direct, *late]
        if not self._inner.words:
            made["before"] += [(0, h.word_at("total"), 0, h.word_at("kept"), 8, 0, 0) for h in self.within]
        return made

    def run(self, start: int, most: int) -> None:
        """Run turns that stand alone, on the operands in the table."""
        for name, word in (("start", start), ("most", most), ("base*", address(self.table))):
            self.words[TURNS.index(name)] = word
        if self.instance.helped:
            self.instance.call_helpers()
        at, nbytes, self._struct[NEXT // 8] = address(self._struct), self.turns.listing.scratch, 0
        self._kernel(at, at + NEXT, scratch(nbytes) if nbytes else None)


def _spec(engine: Engine) -> KernelSpec:
    """The spec of the kernel that runs the turns."""
    return KernelSpec("turns", engine.isa.name, 0, 0, 0, "", "bytes", False)


class Part(Operation):
    """One of several arrays that lie one after another in a block of bytes, as a view of the block."""

    view = True

    def __init__(self, block: Operand, operand: Operand, start: int) -> None:
        self.operands, self.start = (block, operand), start

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        raise AssertionError("a view")


class LoopOperation(Operation):
    """Computes a node with graphs: its only result, or a block of bytes with all results one after another; `outputs`
    are the parts of this block. branches: one for each graph; the places of their results are indices into `made`."""

    gaps = False

    def __init__(
        self, engine: Engine, branches: Sequence[LoopCall], operands: Sequence[Operand], made: Sequence[Operand]
    ) -> None:
        if len(operands) >= _OPERANDS or not made:
            raise Declined("many operands, or no result")
        self.engine, self.made = engine, tuple(made)
        *self.starts, nbytes = accumulate((align_up(form.nbytes) for form in made), initial=0)
        self.operands = (*operands, made[0] if len(made) == 1 else Operand((nbytes,), np.dtype(np.uint8)))
        result = 8 * len(self.operands)
        self.branches = [
            replace(b, places=[None if p is None else (result, self.starts[p[0]]) for p in b.places]) for b in branches
        ]

    @property
    def outputs(self) -> list[Part]:
        """The outputs, as parts of one block of memory."""
        return [Part(self.result, form, start) for form, start in zip(self.made, self.starts, strict=True)]

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        engine, names = self.engine, [f"operand{n}*" for n in range(len(self.operands))]
        made = []
        for branch in self.branches:
            extents, room = self.whole, branch.turns.listing.room
            for key, n in branch.operands.items():
                extents[n] = max(extents[n], room.get(key, 0) * (key not in branch.turns.buffers))
            nbytes = branch.turns.listing.scratch
            made.append(engine.kernels.call(_spec(engine), names, {"tiles": 1}, extents, sparse=True, scratch=nbytes,
                                            decides=False, held=branch))  # fmt: skip
        return tuple(made)
