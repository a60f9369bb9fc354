"""What the walks of recurrent operators share: initial states, the cells of a step, and what lies where.

States lie twice in memory, so that those before a step stay until all of those after it are known. Every function of a
cell is an operation of its own, rounded to float32 as the operator of that name rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qrun.native.emit.float_panels import parts
from qrun.native.emit.flow import Flow
from qrun.native.emit.functions import CLOSE, SINGLE, FunctionCall, reach, rounded_close
from qrun.native.emit.isa import PAUSE
from qrun.native.emit.kernel import KernelEmitter, Value
from qrun.native.emit.numbers import RecheckEmitter
from qrun.native.emit.quick import QUICK
from qrun.native.emit.requantize import clipped
from qrun.native.emit.values import ZERO

GATES = {"lstm": 4, "gru": 3, "linear": 3, "rnn": 1}
"""Products of a step, by cell; ``linear`` is a GRU that resets the product, not the state."""
HALVES = ("lstm", "linear")
"""Cells in which functions are applied to results of other functions. The inner functions of all units are made first,
so that many independent functions stand side by side."""
STATES = {"lstm": 2, "gru": 1, "linear": 1, "rnn": 1}
FUNCTIONS = ("sigmoid", "tanh", "relu")
"""Activations that cells know."""
STEPS, GATE_STEP, Y_ROW, FIRST_DIRECTION, FIRST_ROW, BOUND, UNITS, PARTS, AHEAD = range(0, 72, 8)
HEADER = 9
"""Words: steps; bytes from one gate's sums to the next one's, from one sequence's Y to the next one's, and from
direction to direction, and sequence to sequence, of initial states; the bits of what activations are clipped to; units
of a part; parts, which are tiles of a round; whether each round is a step, and the first one before all of them:
else one goes through all."""
OLD, NEW, Y, AT, SUMS, INPUTS = 0, 16, 32, 40, 48, 56
WORDS = 8
"""Bytes from the start of the results to H and C before the step, H and C after it, and Y; the element of the
sequences; bytes to the sums of the first gate, and to what the inputs give to it."""
MOST_ROWS = 4
"""Sequences whose codes are multiplied at a time."""
LENGTH = -1
"""In a list of doubts, the row number of a wrong length; row numbers from -2 downwards stand for states."""


class RecurrentCell:
    """Some units of one row: vectors of float32.

    functions: the activations, as the operator orders them. bound: what they are given is clipped to, or None. quick:
    whether activations are those of `QUICK`. doubtful: i1 lanes in any order, some true if a state is not decided.
    """

    def __init__(self, w: Flow, lanes: int, functions: Sequence[str], bound: Value | None, quick: bool) -> None:
        self.w, self.lanes, self.functions, self.bound, self.quick = w, lanes, functions, bound, quick
        self.doubtful = w.zero(f"<{lanes} x i1>")

    def activated(self, place: int, x: Value) -> Value:
        """What the activation of this number makes of x."""
        if self.bound is not None:
            x = clipped(x, -self.bound, self.bound)
        name = self.functions[place]
        call = FunctionCall(self.lanes, "f", [])
        if name in SINGLE:
            return SINGLE[name](call, [x])
        made, unsure = QUICK[name](x) if self.quick else self._settled(call, name, x.double())
        self.doubtful = self.doubtful | unsure
        return made

    def _settled(self, call: FunctionCall, name: str, x: Value) -> tuple[Value, Value]:
        return rounded_close(CLOSE[name](call, [x]), reach(name, x))

    def lstm(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        """H and C; gates: i, o, f, c."""
        c = self.lstm_inner(gates, states)
        return [self.lstm_outer(gates, states, c), c]

    def lstm_inner(self, gates: Sequence[Value], states: Sequence[Value]) -> Value:
        i, _, f, g = gates
        i, f, g = self.activated(0, i), self.activated(0, f), self.activated(1, g)
        return f * states[1] + i * g

    def lstm_outer(self, gates: Sequence[Value], states: Sequence[Value], c: Value) -> Value:
        return self.activated(0, gates[1]) * self.activated(2, c)

    def reset(self, gate: Value, state: Value) -> Value:
        """What a GRU multiplies with R of the gate h."""
        return self.activated(0, gate) * state

    def gru(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        """H; gates: z, r, h, the last one of what was reset."""
        return [self._mixed(gates[0], self.activated(1, gates[2]), states[0])]

    def linear(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        """H; gates: z, r, h, and what the inputs give to h."""
        return [self.linear_outer(gates, states, self.linear_inner(gates, states))]

    def linear_inner(self, gates: Sequence[Value], states: Sequence[Value]) -> Value:
        _, r, h, x = gates
        return self.activated(0, r) * h + x

    def linear_outer(self, gates: Sequence[Value], states: Sequence[Value], new: Value) -> Value:
        return self._mixed(gates[0], self.activated(1, new), states[0])

    def rnn(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        return [self.activated(0, gates[0])]

    def _mixed(self, gate: Value, new: Value, old: Value) -> Value:
        z = self.activated(0, gate)
        return (1.0 - z) * new + z * old


class WalkEmitter(KernelEmitter):
    """Arguments: y, addend, initial_h, initial_c, lengths, walk, rows, columns, a_row, y_row, addend_row,
    row_block; recheck.

    A tile is some sequences and units of a direction: one step of them, or, if no other tile needs what it makes, all
    steps. first, count: these sequences; own_units: the first and the end of these units.
    cell: its kind; at_once: how many of its units are made at once.
    """

    doubts: RecheckEmitter
    first: Value
    count: Value
    own_units: tuple[Value, Value]

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

    def take_cell(self, kind: str, lanes: str, functions: str, *clip: str) -> None:
        """What `operands` say of the cell."""
        self.cell, self.at_once, self.functions, self.clip = kind, int(lanes), functions.split(","), bool(clip)
        self.units, self.states = f"<{lanes} x float>", STATES[kind]

    def header(self, place: int) -> Value:
        return (self.a.walk + place).load("i64", 8)

    def begin(self, direction: Value, walk: Value, steps: Value) -> None:
        """Check the lengths, and put the initial states in their place."""
        w, a = self.w, self.a
        with w.loop(self.first, self.first + self.count, 1) as row:
            length = (a.lengths + row.index * 4).load("i32", 4).sext("i64")
            with w.when(length.test("ugt", steps)):
                self.doubts.add(w.value("i64", LENGTH), w.value("i64", 0))
            source = direction * self.header(FIRST_DIRECTION) + row.index * self.header(FIRST_ROW)
            for state, initial in zip(range(self.states), (a.initial_h, a.initial_c), strict=False):
                target = self.state_at(walk, OLD, state, row.index)
                with self._units() as unit:
                    place = unit * 4
                    (target + place).store((initial + source + place).load(self.units, 4), 4)
        self.doubts.end()

    @contextmanager
    def _units(self) -> Iterator[Value]:
        """The body for each vector of the part's units; the last one may begin among those of the one before."""
        first, end = self.own_units
        with self.w.loop(first, end, self.at_once) as unit:
            yield unit.index.least(end - self.at_once)

    def state_at(self, walk: Value, which: int, state: int, row: Value) -> Value:
        """Where a state of a sequence is, before the step or after it."""
        return self.a.y + (walk + (which + 8 * state)).load("i64", 8) + row * self.a.a_row

    def inputs_at(self, walk: Value, row: Value) -> Value:
        """Where what the inputs give to a sequence's first gate is."""
        return self.a.addend + (walk + INPUTS).load("i64", 8) + row * self.a.addend_row

    def cells_of(self, walk: Value, number: Value, *, resets: bool) -> None:
        """The states of all rows after this step; or, of a GRU, what its last product is made of."""
        w, a = self.w, self.a
        at = (walk + AT).load("i64", 8)
        with w.loop(self.first, self.first + self.count, 1) as row:
            length = (a.lengths + row.index * 4).load("i32", 4).sext("i64")
            for runs in w.either(at.test("slt", length)):
                if runs and not resets and self.cell in HALVES:
                    with self._units() as place:
                        self._begun(walk, row.index, place * 4)
                with self._units() as place:
                    if not runs:
                        self._kept(walk, row.index, place * 4, resets)
                        continue
                    entry = (number * a.rows + row.index) * 2 + int(resets)
                    made = walk, row.index, place * 4, resets
                    with w.when(self._made(*made, quick=True)), w.when(self._made(*made, quick=False)):
                        self.doubts.add(w.value("i64", LENGTH - 1) - entry, place)
        self.doubts.end()

    def _bound(self) -> Value | None:
        if not self.clip:
            return None
        return (self.a.walk + BOUND).load("float", 8).splat(self.at_once)

    def gate_sums(self, walk: Value, gate: Value | int, row: Value) -> Value:
        """Where the sums of a sequence's gate are."""
        start = self.a.y + (walk + SUMS).load("i64", 8)
        return start + self.header(GATE_STEP) * gate + row * self.a.y_row

    def _made(self, walk: Value, row: Value, place: Value, resets: bool, quick: bool) -> Value:
        """Make a vector of units. Returns whether some are not decided."""
        cell = RecurrentCell(self.w, self.at_once, self.functions, self._bound(), quick)
        make = self._reset if resets else self._finished if quick and self.cell in HALVES else self._stepped
        make(cell, walk, row, place)
        return cell.doubtful.any()

    def _given(self, walk: Value, row: Value, place: Value) -> tuple[list[Value], list[Value]]:
        """What a cell is given of the gates, and the states before the step."""
        gates = [(self.gate_sums(walk, n, row) + place).load(self.units, 4) for n in range(GATES[self.cell])]
        if self.cell == "linear":
            gates.append(
                (self.inputs_at(walk, row) + self.a.columns * (4 * (GATES[self.cell] - 1)) + place).load(self.units, 4)
            )
        return gates, [(self.state_at(walk, OLD, n, row) + place).load(self.units, 4) for n in range(self.states)]

    def _inner_at(self, walk: Value, row: Value, place: Value) -> Value:
        """Where the inner half of a cell lies: C itself, or behind the sums of a GRU, where they have room."""
        if self.cell == "lstm":
            return self.state_at(walk, NEW, 1, row) + place
        return self.gate_sums(walk, GATES[self.cell], row) + place

    def _begun(self, walk: Value, row: Value, place: Value) -> None:
        """Make the inner half of a vector of units: NaN, if one is not decided."""
        cell = RecurrentCell(self.w, self.at_once, self.functions, self._bound(), True)
        made = getattr(cell, f"{self.cell}_inner")(*self._given(walk, row, place))
        self._inner_at(walk, row, place).store(cell.doubtful.any().select(made.like(math.nan), made), 4)

    def _finished(self, cell: RecurrentCell, walk: Value, row: Value, place: Value) -> None:
        """Make the outer half of a vector of units; if one is NaN, all are made again as whole cells."""
        inner = self._inner_at(walk, row, place).load(self.units, 4)
        made = getattr(cell, f"{self.cell}_outer")(*self._given(walk, row, place), inner)
        cell.doubtful = cell.doubtful | inner.test("uno", inner) | made.test("uno", made)
        (self.state_at(walk, NEW, 0, row) + place).store(made, 4)
        self._told(walk, row, place, made)

    def _stepped(self, cell: RecurrentCell, walk: Value, row: Value, place: Value) -> None:
        gates, states = self._given(walk, row, place)
        made = getattr(cell, self.cell)(gates, states)
        if not cell.quick:
            made = [state.test("uno", state).select(math.nan, state) for state in made]
        elif not QUICK.keys() >= set(self.functions):  # else what makes NaN was beyond a function's numbers
            cell.doubtful = cell.doubtful | made[0].test("uno", made[0])
        for number, state in enumerate(made):
            (self.state_at(walk, NEW, number, row) + place).store(state, 4)
        self._told(walk, row, place, made[0])

    def _reset(self, cell: RecurrentCell, walk: Value, row: Value, place: Value) -> None:
        gate = (self.gate_sums(walk, 1, row) + place).load(self.units, 4)
        state = (self.state_at(walk, OLD, 0, row) + place).load(self.units, 4)
        (self.gate_sums(walk, GATES[self.cell], row) + place).store(cell.reset(gate, state), 4)

    def _kept(self, walk: Value, row: Value, place: Value, resets: bool) -> None:
        """Make a vector of units beyond the end of a sequence: states stay as they are; Y, or a reset state, is 0."""
        if resets:
            (self.gate_sums(walk, GATES[self.cell], row) + place).store(self.w.value(self.units, ZERO), 4)
            return
        for number in range(self.states):
            state = (self.state_at(walk, OLD, number, row) + place).load(self.units, 4)
            (self.state_at(walk, NEW, number, row) + place).store(state, 4)
        self._told(walk, row, place, self.w.value(self.units, ZERO))

    def _told(self, walk: Value, row: Value, place: Value, state: Value) -> None:
        y = self.a.y + (walk + Y).load("i64", 8) + row * self.header(Y_ROW)
        (y + place).store(state, 4)
