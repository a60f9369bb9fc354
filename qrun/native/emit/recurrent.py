"""The generated walk of a recurrent operator along its sequences: in each step a product of float32 for each gate, then the cell.

A tile is a direction and some sequences, for all steps. The product is that of floats.py: of the states before the step
with a gate's part of R, which lies panel after panel and is converted as it is read, plus what the inputs give to the gate.
"""

from __future__ import annotations

from qrun.native.emit.cells import GATES
from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.walking import HEADER, STEPS, WORDS, WalkEmitter

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


@emitter("recurrent")
class RecurrentEmitter(WalkEmitter, FloatProductEmitter):
    """operands: ``rows``, the cell, how many of its units are made at once, its activations, joined by commas, and ``clip``."""

    names = NAMES
    gate: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.take_cell(*spec.operands.split("-")[1:])
        self.ordered, self.packed, self.known = True, False, True

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
        steps = self.header(STEPS)
        start = a.walk + (8 * HEADER + direction * steps * (8 * WORDS))
        self.begin(direction, start, steps)
        with w.loop(0, steps, 1) as step:
            number = direction * steps + step.index
            walk = start + step.index * (8 * WORDS)
            with w.loop(0, GATES[self.cell], 1) as gate:
                self.gate = gate.index
                if self.cell == "gru":
                    with w.when(gate.index.test("eq", GATES[self.cell] - 1)):
                        self.cells_of(walk, number, resets=True)
                self.product(number * GATES[self.cell] + gate.index, w.value("i64", 0), a.panels)
            self.cells_of(walk, number, resets=False)
