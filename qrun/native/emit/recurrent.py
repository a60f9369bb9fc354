"""The generated walks of recurrent operators along their sequences: what all of them share, and those whose cells take
products of float32.

States lie twice in memory, so that those before a step stay until all of those after it are known. Every function of a
cell is an operation of its own, rounded to float32 as the operator of that name rounds.

Where products are of float32, a lane is a unit of a sequence. The sums of all its gates are chains of fused
multiply-adds in registers, in the order of docs/numerics.md, F1; what becomes of them is made where they are, so that
of a step only states reach memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from qrun.native.emit.fma_product import BLOCK, add_products, parts
from qrun.native.emit.functions import one_nan, sigmoid, tanh
from qrun.native.emit.isa import PAUSE
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
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

NAMES = names("""
    weights* bias* addend* y* initial_h* initial_c* lengths* walk* addend_row rows columns row_block tiles
""")
"""As in `WalkEmitter`, and

weights    float32 [directions], and of each for the gates that are made together [panels][columns][gates][width]: the
           gates' rows of R, turned. The last panel ends with the last unit.
bias       float32 [directions][columns]: what the product of the gate h begins with (linear)
"""


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


@emitter("recurrent")
class RecurrentEmitter(WalkEmitter):
    """rows, vectors: of a strip, for each gate; two gates of a GRU have half the rows. operands: the cell, the lanes
    of a vector, the cell's activations, joined by commas, and ``clip``. The thread's memory has z and r * H of a GRU,
    [2][row_block][columns]."""

    names = NAMES
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.width = spec.vectors * self.at_once

    def step(self, direction: Value, number: Value, walk: Value) -> None:
        w, a, gates = self.w, self.a, GATES[self.cell]
        panels = parts(a.columns, w.value("i64", self.width))
        each = a.columns * (4 * self.width)
        first, end = (unit // self.width for unit in (self.own_units[0], self.own_units[1] + (self.width - 1)))
        matrix = a.weights + direction * panels * each * gates
        for gate, count in ((0, gates - 1), (gates - 1, 1)) if self.cell == "gru" else ((0, gates),):
            start = matrix + panels * each * gate
            high = half_strip(self.spec.rows) if count > 1 and self.cell == "gru" else self.spec.rows
            with w.loop(first, end, 1) as panel, w.loop(0, self.count, high) as strip:
                row = strip.index.least(self.count - high)
                unit = (panel.index * self.width).least(a.columns - self.width)
                own = start + panel.index * each * count
                self._strip(direction, walk, row, high, unit, own, range(gate, gate + count))

    def _strip(
        self, direction: Value, walk: Value, row: Value, high: int, unit: Value, weights: Value, gates: range
    ) -> None:
        """Make some units of `high` sequences; row: the number of the first one in the tile."""
        w, resets = self.w, self.cell == "gru" and len(gates) > 1
        rows = [self.first + row + i for i in range(high)]
        if self.cell == "gru" and not resets:
            lefts = [self._own(1, row + i, w.value("i64", 0)) for i in range(high)]
        else:
            lefts = [self.state_at(walk, 0, 0, of_all) for of_all in rows]
        begun = [self._begun(direction, walk, of_all, unit, gate) for of_all in rows for gate in gates]
        sums = self._sums(lefts, weights, [vector for vectors in begun for vector in vectors])
        cells, places = [], []
        for i, of_all in enumerate(rows):
            for v in range(self.spec.vectors):
                place = unit + v * self.at_once
                own = [sums[(i * len(gates) + n) * self.spec.vectors + v] for n in range(len(gates))]
                if resets:
                    self._reset(walk, row + i, of_all, place, own)
                    continue
                if self.cell == "gru":
                    own = [self._own(0, row + i, place).load(self.units, 4), *own]
                elif self.cell == "linear":
                    own.append(self._inputs(walk, of_all, place, gates[-1]))
                cells.append(own)
                places.append((of_all, place))
        if not resets:
            self.make(walk, places, cells)

    def _inputs(self, walk: Value, row: Value, unit: Value, gate: int) -> Value:
        """What the inputs give to a vector of a gate's units."""
        return (self.inputs_at(walk, row) + self.a.columns * (4 * gate) + unit * 4).load(self.units, 4)

    def _begun(self, direction: Value, walk: Value, row: Value, unit: Value, gate: int) -> list[Value]:
        """What the sums of a gate begin with."""
        places = [unit + v * self.at_once for v in range(self.spec.vectors)]
        if self.cell == "linear" and gate == GATES[self.cell] - 1:
            bias = self.a.bias + direction * self.a.columns * 4
            return [(bias + place * 4).load(self.units, 4) for place in places]
        return [self._inputs(walk, row, place, gate) for place in places]

    def _sums(self, lefts: Sequence[Value], weights: Value, begun: Sequence[Value]) -> list[Value]:
        """Chains of all blocks, added to what they begin with; [rows][gates][vectors]."""
        w, zeros = self.w, [self.w.zero(self.units)] * len(begun)
        wide = len(begun) // len(lefts)
        with w.loop(0, self.a.columns, BLOCK, begun) as block:
            sums, done, end = zeros, block.index, (block.index + BLOCK).least(self.a.columns)
            for count in (self.spec.unroll, 1) if self.spec.unroll > 1 else (1,):
                with w.loop(done, end - (count - 1), count, sums) as k:
                    made = list(k.carried)
                    for more in range(count):
                        right = weights + k.index * (4 * self.at_once * wide) + more * 4 * self.at_once * wide
                        vectors = ((right + 4 * self.at_once * j).load(self.units, 4) for j in range(wide))
                        elements = [left + k.index * 4 + 4 * more for left in lefts]
                        add_products(elements, vectors, made, self.at_once)
                    k.next(*made)
                sums, done = k.carried, k.index
            block.next(*(y + s for y, s in zip(block.carried, sums, strict=True)))
        return block.carried

    def _own(self, which: int, row: Value, unit: Value) -> Value:
        """Where z of a GRU's row of the tile is, or r * H."""
        return self.scratch + ((row + self.a.row_block * which) * self.a.columns + unit) * 4

    def _reset(self, walk: Value, row: Value, of_all: Value, unit: Value, sums: Sequence[Value]) -> None:
        state = (self.state_at(walk, 0, 0, of_all) + unit * 4).load(self.units, 4)
        cell = self.cells()
        self._own(0, row, unit).store(cell.activated(0, sums[0]), 4)
        self._own(1, row, unit).store(cell.activated(0, sums[1]) * state, 4)
