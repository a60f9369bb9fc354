"""The generated walks of recurrent operators along their sequences:
in each step a product for each gate, then the cell.

The product is that of floats.py: of the states before the step with the gates' parts of R, which lie panel after panel
and are converted as they are read, plus what the inputs give to the gates.
"""

from __future__ import annotations

from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.walking import GATES, WalkEmitter

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
walk       int64: HEADER words, then WORDS for each direction and step, then float32 [directions][columns]: what is
           added to the product of the gate h (linear)
"""
_AHEAD = 8
"""Rows of a matrix by which it is fetched."""


@emitter("recurrent")
class RecurrentEmitter(WalkEmitter, FloatProductEmitter):
    """operands: ``rows``, the cell, how many of its units are made at once, its activations, joined by commas,
    and ``clip``."""

    names = NAMES
    gate: Value
    opening_gate: Value
    first_gate: Value
    gate_panels: tuple[Value, Value]

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

    @property
    def ahead(self) -> int:
        return _AHEAD * 4 * self.width

    def fetch(self, coming: Value, strip: Value, strips: Value) -> None:
        """The same weights are read in each step: they are no farther than the next cache; `ahead` fetches from it."""

    def step(self, direction: Value, number: Value, walk: Value) -> None:
        gates = GATES[self.cell]
        if self.cell == "gru":
            self._gates(number, 0, gates - 1)
            self.cells_of(walk, number, resets=True)
            self._gates(number, gates - 1, gates)
        else:
            self._gates(number, 0, gates)
        self.cells_of(walk, number, resets=False)

    def _gates(self, number: Value, first: int, end: int) -> None:
        """The sums of some gates, whose panels are one after another those of one product: H is converted once."""
        self.first_gate = number * GATES[self.cell] + first
        self.gate = self.opening_gate = self.w.value("i64", first)
        opening, closing = (unit // self.width for unit in (self.own_units[0], self.own_units[1] + (self.width - 1)))
        self.gate_panels = opening, closing - opening
        self.product(self.first_gate, self.w.value("i64", 0), (closing - opening) * (end - first))

    def take_panel(self, panel: Value, place: Value) -> None:
        opening, count = self.gate_panels
        gate, own = divmod(panel, count)
        self.gate = self.opening_gate + gate
        self.take_product(self.first_gate + gate)
        super().take_panel(opening + own, place)
