"""What the walks of recurrent operators share: initial states, the cells of a step, and what lies where.

States lie twice in memory, so that those before a step stay until all of those after it are known. Every function of a
cell is an operation of its own, rounded to float32 as the operator of that name rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from qrun.native.emit.fma_product import parts
from qrun.native.emit.isa import PAUSE, Isa
from qrun.native.emit.kernel import KernelEmitter, KernelSpec, Value
from qrun.native.emit.polynomials import one_nan, sigmoid, tanh
from qrun.native.emit.requantize import clipped, rectified
from qrun.native.emit.values import ZERO

GATES = {"lstm": 4, "gru": 3, "linear": 3, "rnn": 1}
"""Products of a step, by cell; ``linear`` is a GRU that resets the product, not the state."""
STATES = {"lstm": 2, "gru": 1, "linear": 1, "rnn": 1}
FUNCTIONS: dict[str, Callable[[Value], Value]] = {"sigmoid": sigmoid, "tanh": tanh, "relu": rectified}
"""Activations that cells know."""
STEPS, Y_ROW, FIRST_DIRECTION, FIRST_ROW, BOUND, UNITS, PARTS, AHEAD = range(0, 64, 8)
HEADER = 8
"""Words: steps; bytes from one sequence's Y to the next one's, and from direction to direction, and sequence to
sequence, of initial states; the bits of what activations are clipped to; units of a part; parts, which are tiles of a
round; whether each round is a step, and the first one before all of them: else one goes through all."""
OLD, NEW, Y, AT, INPUTS = 0, 16, 32, 40, 48
WORDS = 7
"""Bytes from the start of the results to H and C before the step, H and C after it, and Y; the element of the
sequences; bytes to what the inputs give to the first gate."""
MOST_ROWS = 4
"""Sequences whose codes are multiplied at a time."""


def half_strip(rows: int) -> int:
    """The rows of a strip that makes two gates of a GRU, where one that makes its last gate has `rows`: as many chains
    fit the registers in both."""
    return -(-rows // 2)


class Cells:
    """Units of some rows, vectors of float32. functions: the activations, as the operator orders them. bound: what they
    are given is clipped to, or None."""

    def __init__(self, kind: str, functions: Sequence[str], bound: Value | None) -> None:
        self.kind, self.functions, self.bound = kind, functions, bound

    def activated(self, place: int, x: Value) -> Value:
        """What the activation of this number makes of x."""
        if self.bound is not None:
            x = clipped(x, -self.bound, self.bound)
        return FUNCTIONS[self.functions[place]](x)

    def made(self, gates: Sequence[Sequence[Value]], states: Sequence[Sequence[Value]]) -> Iterator[list[Value]]:
        """The states after a step. gates, of each vector of units: i, o, f, c of an LSTM; z, of which the activation is
        known, and h of a GRU; z, r, h, and what the inputs give to h (linear).

        What is inside other functions comes first, of all vectors, so that independent functions stand side by side.
        """
        inner = [self._inner(own, old) for own, old in zip(gates, states, strict=True)]
        for own, old, x in zip(gates, states, inner, strict=True):
            if self.kind == "lstm":
                yield [self.activated(0, own[1]) * self.activated(2, x), x]
            elif self.kind == "rnn":
                yield [self.activated(0, x)]
            else:
                z = own[0] if self.kind == "gru" else self.activated(0, own[0])
                yield [(1.0 - z) * self.activated(1, x) + z * old[0]]

    def _inner(self, gates: Sequence[Value], states: Sequence[Value]) -> Value:
        """C of an LSTM; what the activation of the new state is given of others."""
        if self.kind == "lstm":
            i, _, f, g = gates
            return self.activated(0, f) * states[1] + self.activated(0, i) * self.activated(1, g)
        if self.kind == "linear":
            return self.activated(0, gates[1]) * gates[2] + gates[3]
        return gates[-1]


class WalkEmitter(KernelEmitter):
    """operands: the cell; how many of its units are in a vector; its activations, joined by commas; ``clip``.

    Arguments:

    y          the results: Y and states
    addend     what the inputs give to the gates; addend_row: bytes from sequence to sequence
    rows, columns         sequences and units; row_block: sequences of a tile
    initial_h, initial_c  float32 [directions][rows][columns], in the order that `walk` tells
    lengths    int32, of each sequence: a run with one that is negative or beyond the inputs ends undecided
    walk       int64: HEADER words, then WORDS for each direction and step

    A tile is some sequences and units of a direction: one step of them, or, if no other tile needs what it makes, all
    steps. first, count: these sequences; own_units: the first and the end of these units.
    """

    first: Value
    count: Value
    own_units: tuple[Value, Value]

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.cell, lanes, functions, *clip = spec.operands.split("-")
        self.at_once, self.functions, self.clip = int(lanes), functions.split(","), bool(clip)
        self.units, self.states = f"<{lanes} x float>", STATES[self.cell]

    def text(self) -> str:
        with self.w.rounds(self.a.tiles, self.header(PARTS), PAUSE[self.isa.architecture]) as tile:
            self.tile(tile)
        return self.finished()

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        number, part = divmod(tile, self.header(PARTS))
        blocks, ahead, steps = parts(a.columns, self.header(UNITS)), self.header(AHEAD), self.header(STEPS)
        rest, block = divmod(part, blocks)
        direction, rows = divmod(rest, parts(a.rows, a.row_block))
        self.first = rows * a.row_block
        self.count = a.row_block.least(a.rows - self.first)
        self.own_units = block.part(self.header(UNITS), a.columns)
        start = a.walk + (8 * HEADER + direction * steps * (8 * WORDS))
        with w.when(number.test("eq", 0)):
            self.begin(direction, start, steps)
        first = number - ahead
        end = ahead.test("eq", 0).select(steps, number)
        with w.loop(first.where("sgt", 0), end, 1) as step:
            self.step(direction, direction * steps + step.index, start + step.index * (8 * WORDS))

    def step(self, direction: Value, number: Value, walk: Value) -> None:
        """Make a step of the tile's part; number: of all directions' steps; walk: its words."""
        raise NotImplementedError

    def header(self, place: int) -> Value:
        return (self.a.walk + place).load("i64", 8)

    def begin(self, direction: Value, walk: Value, steps: Value) -> None:
        """Check the lengths, and put the initial states in their place."""
        w, a = self.w, self.a
        with w.loop(self.first, self.first + self.count, 1) as row:
            with w.when((a.lengths + row.index * 4).load("i32", 4).sext("i64").test("ugt", steps)):
                w.undecided()
            source = direction * self.header(FIRST_DIRECTION) + row.index * self.header(FIRST_ROW)
            for state, initial in zip(range(self.states), (a.initial_h, a.initial_c), strict=False):
                target = self.state_at(walk, OLD, state, row.index)
                with self.own_vectors() as unit:
                    place = unit * 4
                    (target + place).store((initial + source + place).load(self.units, 4), 4)

    @contextmanager
    def own_vectors(self) -> Iterator[Value]:
        """The body for each vector of the part's units; the last one may begin among those of the one before."""
        first, end = self.own_units
        with self.w.loop(first, end, self.at_once) as unit:
            yield unit.index.least(end - self.at_once)

    def state_at(self, walk: Value, which: int, state: int, row: Value) -> Value:
        """Where a state of a sequence is, before the step or after it."""
        return self.a.y + (walk + (which + 8 * state)).load("i64", 8) + row * self.a.columns * 4

    def inputs_at(self, walk: Value, row: Value) -> Value:
        """Where what the inputs give to a sequence's first gate is."""
        return self.a.addend + (walk + INPUTS).load("i64", 8) + row * self.a.addend_row

    def cells(self) -> Cells:
        bound = (self.a.walk + BOUND).load("float", 8).splat(self.at_once) if self.clip else None
        return Cells(self.cell, self.functions, bound)

    def make(self, walk: Value, places: Sequence[tuple[Value, Value]], gates: Sequence[Sequence[Value]]) -> None:
        """Store the states after a step, and Y. places: sequences and units, of vectors; gates: what cells are given.
        Beyond the end of a sequence its states stay as they are, and Y is 0."""
        at, a = (walk + AT).load("i64", 8), self.a
        states = [
            [(self.state_at(walk, OLD, n, row) + unit * 4).load(self.units, 4) for n in range(self.states)]
            for row, unit in places
        ]
        made = [*self.cells().made(gates, states)]
        for (row, unit), old, new in zip(places, states, made, strict=True):
            runs = at.test("slt", (a.lengths + row * 4).load("i32", 4).sext("i64"))
            new = [one_nan(state) for state in new]
            for number, state in enumerate(new):
                (self.state_at(walk, NEW, number, row) + unit * 4).store(runs.select(state, old[number]), 4)
            y = a.y + (walk + Y).load("i64", 8) + row * self.header(Y_ROW)
            (y + unit * 4).store(runs.select(new[0], ZERO), 4)
