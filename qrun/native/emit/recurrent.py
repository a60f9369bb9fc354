"""Generated kernels of recurrent operators (LSTM, GRU, RNN): they walk along the sequences, one step after the other.
This module has the common base, and the kernel with float32 products.

Memory has two copies of the states, so that the old states stay until all new ones are known. Every function of a cell
is an operation of its own, rounded to float32 as the operator of that name rounds.

With float32 products, a lane is one unit of one sequence. The sums of all its gates are chains of fused multiply-adds
in registers, in the order of numerics.md, F1. Gates and cells are computed in registers too, so that a step stores
only states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from qrun.native.emit.fma_product import BLOCK, add_products, parts
from qrun.native.emit.functions import one_nan, sigmoid, tanh
from qrun.native.emit.isa import PAUSE
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.requantize import clip, rectify
from qrun.native.emit.values import ZERO

GATES = {"lstm": 4, "gru": 3, "linear": 3, "rnn": 1}
"""The number of gates, by cell; ``linear`` is a GRU that resets the product (linear_before_reset), not the state."""
STATES = {"lstm": 2, "gru": 1, "linear": 1, "rnn": 1}
FUNCTIONS: dict[str, Callable[[Value], Value]] = {"sigmoid": sigmoid, "tanh": tanh, "relu": rectify}
"""The activations that cells may use."""
STEPS, Y_ROW, FIRST_DIRECTION, FIRST_ROW, BOUND, UNITS, PARTS, AHEAD = range(0, 64, 8)
HEADER = 8
"""Words of the walk's header: steps; bytes from one sequence's Y to the next one's; bytes of the initial states from
direction to direction, and from sequence to sequence; the bits of the clip bound; units of a part; parts, which are the
tiles of a round; 1 if each round is one step and a first round prepares, 0 if a single round makes all steps."""
OLD, NEW, Y, AT, INPUTS = 0, 16, 32, 40, 48
WORDS = 7
"""Words of a step: bytes from the start of the results to H and C before the step, to H and C after it, and to Y; the
place in the sequences; bytes to the inputs' contribution to the first gate."""
MOST_ROWS = 4
"""The most sequences whose codes are multiplied at a time."""

NAMES = names("""
    weights* bias* addend* y* initial_h* initial_c* lengths* walk* addend_row rows columns row_block tiles
""")
"""As in `WalkEmitter`, and

weights    float32 [directions], and in each, for the gates that are computed together, [panels][columns][gates][width]:
           the gates' rows of R, transposed. The last panel ends with the last unit.
bias       float32 [directions][columns]: the start value of the product of gate h (linear)
"""


def half_strip(rows: int) -> int:
    """The rows of a strip that computes two gates of a GRU, if a strip for the last gate has `rows`: both then have
    about as many chains in registers."""
    return -(-rows // 2)


class Cells:
    """Computes the cells of vectors of units, in float32. functions: the activations, in the operator's order. bound:
    their arguments are clipped to [-bound, bound]; None for no clipping."""

    def __init__(self, kind: str, functions: Sequence[str], bound: Value | None) -> None:
        self.kind, self.functions, self.bound = kind, functions, bound

    def activate(self, index: int, x: Value) -> Value:
        """The activation number `index` of x, which is clipped first."""
        if self.bound is not None:
            x = clip(x, -self.bound, self.bound)
        return FUNCTIONS[self.functions[index]](x)

    def next_states(self, gates: Sequence[Sequence[Value]], states: Sequence[Sequence[Value]]) -> Iterator[list[Value]]:
        """Yield the states after a step. gates, for each vector of units: i, o, f, c of an LSTM; z, already activated,
        and h of a GRU; z, r, h, and the inputs' contribution to h (linear).

        The inner functions of all vectors come first, so that independent functions stand side by side.
        """
        inner = [self._inner_value(own, old) for own, old in zip(gates, states, strict=True)]
        for own, old, x in zip(gates, states, inner, strict=True):
            if self.kind == "lstm":
                yield [self.activate(0, own[1]) * self.activate(2, x), x]
            elif self.kind == "rnn":
                yield [self.activate(0, x)]
            else:
                z = own[0] if self.kind == "gru" else self.activate(0, own[0])
                yield [(1.0 - z) * self.activate(1, x) + z * old[0]]

    def _inner_value(self, gates: Sequence[Value], states: Sequence[Value]) -> Value:
        """The new C of an LSTM; for other cells, the argument of the last activation."""
        if self.kind == "lstm":
            i, _, f, g = gates
            return self.activate(0, f) * states[1] + self.activate(0, i) * self.activate(1, g)
        if self.kind == "linear":
            return self.activate(0, gates[1]) * gates[2] + gates[3]
        return gates[-1]


class WalkEmitter(KernelEmitter):
    """Base of the recurrent kernels.

    operands: the cell; the number of units in a vector; its activations, joined by commas; ``clip``. Arguments:

    y          the results: Y and states
    addend     the inputs' contributions to the gates; addend_row: bytes from sequence to sequence
    rows, columns         sequences and units; row_block: sequences of a tile
    initial_h, initial_c  float32 [directions][rows][columns], with the strides in `walk`
    lengths    int32, of each sequence: a run with one that is negative or beyond the inputs ends undecided
    walk       int64: HEADER words, then WORDS for each direction and step

    A tile is some sequences and units of a direction, for one step, or for all steps if no other tile needs its
    results. first, count: its sequences; own_units: its first unit and the end of its units.
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
        """Write the kernel's LLVM IR."""
        with self.w.rounds(self.a.tiles, self.header(PARTS), PAUSE[self.isa.architecture]) as tile:
            self.write_tile(tile)
        return self.end_kernel()

    def write_tile(self, tile: Value) -> None:
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
        """Write one step of the tile. number: the step's, counted over all directions; walk: the step's words."""
        raise NotImplementedError

    def header(self, byte: int) -> Value:
        """An int64 of the walk's header."""
        return (self.a.walk + byte).load("i64", 8)

    def begin(self, direction: Value, walk: Value, steps: Value) -> None:
        """Check the lengths, and copy the initial states to the place that the first step reads."""
        w, a = self.w, self.a
        with w.loop(self.first, self.first + self.count, 1) as row:
            with w.when((a.lengths + row.index * 4).load("i32", 4).sext("i64").test("ugt", steps)):
                w.mark_undecided()
            source = direction * self.header(FIRST_DIRECTION) + row.index * self.header(FIRST_ROW)
            for state, initial in zip(range(self.states), (a.initial_h, a.initial_c), strict=False):
                target = self.state_at(walk, OLD, state, row.index)
                with self.own_vectors() as unit:
                    address = unit * 4
                    (target + address).store((initial + source + address).load(self.units, 4), 4)

    @contextmanager
    def own_vectors(self) -> Iterator[Value]:
        """Write the body for each vector of the tile's units; the last vector may overlap the one before."""
        first, end = self.own_units
        with self.w.loop(first, end, self.at_once) as unit:
            yield unit.index.least(end - self.at_once)

    def state_at(self, walk: Value, which: int, state: int, row: Value) -> Value:
        """The address of a sequence's state. which: OLD or NEW, before or after the step; state: 0 for H, 1 for C."""
        return self.a.y + (walk + (which + 8 * state)).load("i64", 8) + row * self.a.columns * 4

    def inputs_at(self, walk: Value, row: Value) -> Value:
        """The address of the inputs' contribution to a sequence's first gate."""
        return self.a.addend + (walk + INPUTS).load("i64", 8) + row * self.a.addend_row

    def cells(self) -> Cells:
        """The writer of the cell's activations, with the clip bound if there is one."""
        bound = (self.a.walk + BOUND).load("float", 8).splat(self.at_once) if self.clip else None
        return Cells(self.cell, self.functions, bound)

    def make(self, walk: Value, places: Sequence[tuple[Value, Value]], gates: Sequence[Sequence[Value]]) -> None:
        """Compute and store the states after a step, and Y. places: the sequence and first unit of each vector; gates:
        as in `Cells.next_states`. Beyond the end of a sequence its states do not change, and Y is 0."""
        at, a = (walk + AT).load("i64", 8), self.a
        states = [
            [(self.state_at(walk, OLD, n, row) + unit * 4).load(self.units, 4) for n in range(self.states)]
            for row, unit in places
        ]
        made = [*self.cells().next_states(gates, states)]
        for (row, unit), old, new in zip(places, states, made, strict=True):
            runs = at.test("slt", (a.lengths + row * 4).load("i32", 4).sext("i64"))
            new = [one_nan(state) for state in new]
            for number, state in enumerate(new):
                (self.state_at(walk, NEW, number, row) + unit * 4).store(runs.select(state, old[number]), 4)
            y = a.y + (walk + Y).load("i64", 8) + row * self.header(Y_ROW)
            (y + unit * 4).store(runs.select(new[0], ZERO), 4)


@emitter("recurrent")
class RecurrentEmitter(WalkEmitter):
    """The kernel with float32 products. rows, vectors: the size of a strip, for each gate; a strip of two gates of a
    GRU has half the rows. operands: as for WalkEmitter. The thread's memory has z and r * H of a GRU,
    [2][row_block][columns]."""

    names = NAMES
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.width = spec.vectors * self.at_once

    def step(self, direction: Value, number: Value, walk: Value) -> None:
        """Write one step of the recurrence in float32: products with the state, then the gates."""
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
        """Compute some units of `high` sequences. row: the first sequence's number in the tile."""
        w, resets = self.w, self.cell == "gru" and len(gates) > 1
        rows = [self.first + row + i for i in range(high)]
        if self.cell == "gru" and not resets:
            lefts = [self._reset_address(1, row + i, w.value("i64", 0)) for i in range(high)]
        else:
            lefts = [self.state_at(walk, 0, 0, of_all) for of_all in rows]
        begun = [self._start_sums(direction, walk, of_all, unit, gate) for of_all in rows for gate in gates]
        sums = self._sums(lefts, weights, [vector for vectors in begun for vector in vectors])
        cells, places = [], []
        for i, of_all in enumerate(rows):
            for v in range(self.spec.vectors):
                position = unit + v * self.at_once
                own = [sums[(i * len(gates) + n) * self.spec.vectors + v] for n in range(len(gates))]
                if resets:
                    self._reset(walk, row + i, of_all, position, own)
                    continue
                if self.cell == "gru":
                    own = [self._reset_address(0, row + i, position).load(self.units, 4), *own]
                elif self.cell == "linear":
                    own.append(self._inputs(walk, of_all, position, gates[-1]))
                cells.append(own)
                places.append((of_all, position))
        if not resets:
            self.make(walk, places, cells)

    def _inputs(self, walk: Value, row: Value, unit: Value, gate: int) -> Value:
        """The inputs' contribution to a vector of a gate's units."""
        return (self.inputs_at(walk, row) + self.a.columns * (4 * gate) + unit * 4).load(self.units, 4)

    def _start_sums(self, direction: Value, walk: Value, row: Value, unit: Value, gate: int) -> list[Value]:
        """The start values of a gate's sums."""
        places = [unit + v * self.at_once for v in range(self.spec.vectors)]
        if self.cell == "linear" and gate == GATES[self.cell] - 1:
            bias = self.a.bias + direction * self.a.columns * 4
            return [(bias + position * 4).load(self.units, 4) for position in places]
        return [self._inputs(walk, row, position, gate) for position in places]

    def _sums(self, lefts: Sequence[Value], weights: Value, begun: Sequence[Value]) -> list[Value]:
        """The sums, [rows][gates][vectors]: the chains of all blocks, added to `begun`."""
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

    def _reset_address(self, which: int, row: Value, unit: Value) -> Value:
        """The address, in the thread's memory, of z (which: 0) or r * H (which: 1) of a GRU's row of the tile."""
        return self.scratch + ((row + self.a.row_block * which) * self.a.columns + unit) * 4

    def _reset(self, walk: Value, row: Value, of_all: Value, unit: Value, sums: Sequence[Value]) -> None:
        """Store the update gate, and the state times the reset gate, of a GRU."""
        state = (self.state_at(walk, 0, 0, of_all) + unit * 4).load(self.units, 4)
        cell = self.cells()
        self._reset_address(0, row, unit).store(cell.activate(0, sums[0]), 4)
        self._reset_address(1, row, unit).store(cell.activate(0, sums[1]) * state, 4)
