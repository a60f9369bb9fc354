"""The generated walk of a recurrent operator along its sequences: in each step a product of float32 for each gate, then the cell.

A tile is a direction and some sequences, for all steps. The product is that of floats.py: of the states before the step
with a gate's part of R, which lies panel after panel and is converted as it is read, plus what the inputs give to the gate.
States lie twice in memory, so that those before a step stay until all of those after it are known.
"""

from __future__ import annotations

from qrun.native.emit.cells import GATES, STATES, RecurrentCell
from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.values import ZERO

NAMES = names("""
    a* b* addend* y* numbers* batches* a_row b_row addend_row y_row rows columns taps depth
    tap_step depth_step row_block panels slot right_at squares_at lengths_at sums_at
    known* known_odd tiles recheck* initial_h* initial_c* lengths* walk*
""")
"""As in floats.py, with one tap. There is a product for each direction, step and gate, in this order.

a, y       the results: Y, states and sums of the gates; addend: what the inputs give to the gates
columns    units of the cell; row_block: sequences of a tile, of which `rows` has a whole number
recheck    also makes states that nothing else decides
initial_h, initial_c  float32 [directions][rows][columns], in the order that `walk` tells
lengths    int32, of each sequence
walk       int64: HEADER words, then WORDS for each direction and step, then float32 [directions][columns]: what is added
           to the product of the gate h (linear)
"""
STEPS, GATE_STEP, Y_ROW, FIRST_DIRECTION, FIRST_ROW, BOUND = range(0, 48, 8)
HEADER = 6
"""Words: steps; bytes from one gate's sums to the next one's, from one sequence's Y to the next one's, and from direction
to direction, and sequence to sequence, of initial states; the bits of what activations are clipped to."""
OLD, NEW, Y, AT, SUMS, INPUTS = 0, 16, 32, 40, 48, 56
WORDS = 8
"""Bytes from the start of the results to H and C before the step, H and C after it, and Y; the element of the sequences;
bytes to the sums of the first gate, and to what the inputs give to it."""
LENGTH = -1
"""The row that says that a length is wrong; states are rows from -2 on downwards."""


@emitter("recurrent")
class RecurrentEmitter(FloatProductEmitter):
    """operands: ``rows``, the cell, how many of its units are made at once, its activations, joined by commas, and ``clip``."""

    names = NAMES
    gate: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        _, self.cell, lanes, functions, *clip = spec.operands.split("-")
        self.ordered, self.packed, self.known, self.at_once = True, False, True, int(lanes)
        self.functions, self.clip = functions.split(","), bool(clip)
        self.units, self.states = f"<{lanes} x float>", STATES[self.cell]

    @property
    def addend_row(self) -> Value:
        if self.cell != "linear":
            return self.a.addend_row
        return self.gate.test("eq", GATES[self.cell] - 1).select(0, self.a.addend_row)

    def addends(self, batch: Value) -> Value:
        if self.cell != "linear":
            return self.a.addend
        return self.gate.test("eq", GATES[self.cell] - 1).select(self.a.walk, self.a.addend)

    def fetch(self, coming: Value, strip: Value, strips: Value) -> None:
        """The same weights are read in each step: they are near."""

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        direction, block = divmod(tile, a.rows // a.row_block)
        self.first, self.count = block * a.row_block, a.row_block
        steps = self._header(STEPS)
        start = a.walk + (8 * HEADER + direction * steps * (8 * WORDS))
        self._begin(direction, start, steps)
        with w.loop(0, steps, 1) as step:
            number = direction * steps + step.index
            walk = start + step.index * (8 * WORDS)
            with w.loop(0, GATES[self.cell], 1) as gate:
                self.gate = gate.index
                if self.cell == "gru":
                    with w.when(gate.index.test("eq", GATES[self.cell] - 1)):
                        self._units(walk, number, resets=True)
                self.product(number * GATES[self.cell] + gate.index, w.value("i64", 0), a.panels)
            self._units(walk, number, resets=False)

    def _header(self, place: int) -> Value:
        return (self.a.walk + place).load("i64", 8)

    def _begin(self, direction: Value, walk: Value, steps: Value) -> None:
        """Check the lengths, and put the initial states in their place."""
        w, a = self.w, self.a
        with w.loop(self.first, self.first + self.count, 1) as row:
            length = (a.lengths + row.index * 4).load("i32", 4).sext("i64")
            with w.when(length.test("ugt", steps)):
                self.doubts.add(w.value("i64", LENGTH), w.value("i64", 0))
            source = direction * self._header(FIRST_DIRECTION) + row.index * self._header(FIRST_ROW)
            for state, initial in zip(range(self.states), (a.initial_h, a.initial_c), strict=False):
                target = self._state(walk, OLD, state, row.index)
                with w.loop(0, a.columns * 4, 4 * self.at_once) as unit:
                    place = unit.index.least((a.columns - self.at_once) * 4)
                    (target + place).store((initial + source + place).load(self.units, 4), 4)
        self.doubts.end()

    def _state(self, walk: Value, which: int, state: int, row: Value) -> Value:
        """Where a state of a sequence is, before the step or after it."""
        return self.a.y + (walk + (which + 8 * state)).load("i64", 8) + row * self.a.a_row

    def _units(self, walk: Value, number: Value, *, resets: bool) -> None:
        """The states of all rows after this step; or, of a GRU, what its last product is made of."""
        w, a = self.w, self.a
        at = (walk + AT).load("i64", 8)
        with w.loop(self.first, self.first + self.count, 1) as row:
            length = (a.lengths + row.index * 4).load("i32", 4).sext("i64")
            w.blocks += 1
            n = w.blocks
            for runs in w.either(at.test("slt", length), f"runs{n}", f"ended{n}", f"row{n}"):
                with w.loop(0, a.columns, self.at_once) as unit:
                    place = unit.index.least(a.columns - self.at_once)
                    if not runs:
                        self._kept(walk, row.index, place * 4, resets)
                        continue
                    cell = RecurrentCell(w, self.at_once, self.functions, self._bound())
                    if resets:
                        self._reset(cell, walk, row.index, place * 4)
                    else:
                        self._stepped(cell, walk, row.index, place * 4)
                    with w.when(cell.doubtful.any()):
                        entry = (number * a.rows + row.index) * 2 + int(resets)
                        self.doubts.add(w.value("i64", LENGTH - 1) - entry, place)
        self.doubts.end()

    def _bound(self) -> Value | None:
        if not self.clip:
            return None
        return (self.a.walk + BOUND).load("float", 8).splat(self.at_once)

    def _gate_sums(self, walk: Value, gate: int, row: Value) -> Value:
        """Where the sums of a sequence's gate are."""
        start = self.a.y + (walk + SUMS).load("i64", 8)
        return start + self._header(GATE_STEP) * gate + row * self.a.y_row

    def _stepped(self, cell: RecurrentCell, walk: Value, row: Value, place: Value) -> None:
        gates = [(self._gate_sums(walk, n, row) + place).load(self.units, 4) for n in range(GATES[self.cell])]
        if self.cell == "linear":
            start = self.a.addend + (walk + INPUTS).load("i64", 8) + row * self.a.addend_row
            gates.append((start + self.a.columns * (4 * (GATES[self.cell] - 1)) + place).load(self.units, 4))
        states = [(self._state(walk, OLD, n, row) + place).load(self.units, 4) for n in range(self.states)]
        made = getattr(cell, self.cell)(gates, states)
        for number, state in enumerate(made):
            (self._state(walk, NEW, number, row) + place).store(state, 4)
        self._told(walk, row, place, made[0])

    def _reset(self, cell: RecurrentCell, walk: Value, row: Value, place: Value) -> None:
        gate = (self._gate_sums(walk, 1, row) + place).load(self.units, 4)
        state = (self._state(walk, OLD, 0, row) + place).load(self.units, 4)
        (self._gate_sums(walk, GATES[self.cell], row) + place).store(cell.reset(gate, state), 4)

    def _kept(self, walk: Value, row: Value, place: Value, resets: bool) -> None:
        """Beyond the end of a sequence."""
        if resets:
            (self._gate_sums(walk, GATES[self.cell], row) + place).store(self.w.value(self.units, ZERO), 4)
            return
        for number in range(self.states):
            state = (self._state(walk, OLD, number, row) + place).load(self.units, 4)
            (self._state(walk, NEW, number, row) + place).store(state, 4)
        self._told(walk, row, place, self.w.value(self.units, ZERO))

    def _told(self, walk: Value, row: Value, place: Value, state: Value) -> None:
        y = self.a.y + (walk + Y).load("i64", 8) + row * self._header(Y_ROW)
        (y + place).store(state, 4)
