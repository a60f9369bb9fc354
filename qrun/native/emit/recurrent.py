"""The generated walks of recurrent operators along their sequences:
in each step a product for each gate, then the cell.

Of float32, the product is that of floats.py: of the states before the step with the gates' parts of R, which lie panel
after panel and are converted as they are read, plus what the inputs give to the gates.

Of codes, in each step H is quantized, as all sequences together ask for. A sum of codes times both
scales, plus what the inputs give to the gate, is rounded once:
where float64 does not decide it, it is rounded to odd first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from qrun.native.emit.dot import activations, dot, int32s, weights
from qrun.native.emit.dynamic import parameters_of
from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.numbers import RecheckEmitter, beside_a_middle, differ, rounded_once
from qrun.native.emit.spec import MAGIC_BITS
from qrun.native.emit.values import MAGIC32
from qrun.native.emit.walking import GATES, LENGTH, WalkEmitter
from qrun.native.emit.widen import first_lanes, folded

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


CODED_NAMES = names("""
    weights* sums* addend* y* scales* recheck* initial_h* initial_c* lengths* walk*
    a_row y_row addend_row rows columns row_block depth vectors tiles
""")
"""As NAMES, and

weights  int8 [directions][gates][vectors][depth][lanes][4]: four k of each column, zeros beyond the last
sums     int32 [directions][gates][vectors * lanes]: of each column's weights; scales: float32, likewise
depth    of how many fours of k
"""
_AT_ONCE = {1: (8, 4, 2, 1), 2: (4, 2, 1), 4: (2, 1)}
"""Vectors of columns whose sums are in registers at a time, by how many rows they are of."""
_REACH = 2.0**-51
"""More than twice the relative error of a product and a sum in float64."""
_LEAST = 2.0**-125
"""Below this, float32 may have fewer bits."""


@emitter("quantized_recurrent")
class QuantizedRecurrentEmitter(WalkEmitter):
    """rows: up to how many are multiplied at a time. operands: as of RecurrentEmitter.
    The thread's memory has the codes of H, [rows][4 * depth]."""

    names = CODED_NAMES
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.take_cell(*spec.operands.split("-")[1:])
        w = self.w
        self.doubts = RecheckEmitter(w, self.a.recheck, self.struct.address(), 0)
        self.floats, self.gates = f"<{isa.lanes} x float>", GATES[self.cell]
        self.blocks = tuple(rows for rows in sorted(_AT_ONCE, reverse=True) if rows <= spec.rows)

    def step(self, direction: Value, number: Value, walk: Value) -> None:
        w = self.w
        scale, zero = self._quantized(self.state_at(walk, 0, 0, w.value("i64", 0)))
        for row, rows in w.runs(self.first, self.first + self.count, self.blocks):
            with w.loop(0, self.gates, 1) as gate:
                self._products(direction * self.gates + gate.index, walk, row, rows, gate.index, scale, zero)
        self.cells_of(walk, number, resets=False)

    def _quantized(self, h: Value) -> tuple[Value, Value]:
        """Make the codes of the tile's part of H. Returns their scale, float64, and their zero point, i32,
        both as they are multiplied."""
        w, a, lanes = self.w, self.a, self.isa.lanes
        zeros = [w.zero(self.floats)] * 3
        with w.loop(0, a.rows * a.columns, lanes, zeros) as turn:
            x = (h + turn.index * 4).masked_load(self.floats, self._mask(a.rows * a.columns, turn.index), 4)
            least, most, odd = turn.carried
            turn.next(x.where("olt", least), x.where("ogt", most), odd + (x - x))
        least, most, odd = turn.carried
        bottom = folded(least, lambda a, b: a.where("olt", b))
        top = folded(most, lambda a, b: a.where("ogt", b))
        with w.when(odd.test("uno", odd).any()):
            self.doubts.add(w.value("i64", LENGTH), w.value("i64", 0))
            self.doubts.end()
        scale, zero = parameters_of(bottom, top)
        shift = self.isa.shift(False)
        low, high = ((end - zero).sitofp("float").splat(lanes) for end in (0, 255))
        with w.loop(self.first, self.first + self.count, 1) as row, w.loop(0, a.columns, lanes) as unit:
            mask = self._mask(a.columns, unit.index)
            x = (h + row.index * a.a_row + unit.index * 4).masked_load(self.floats, mask, 4)
            raised = (x / scale.splat(lanes)).within(low, high) + MAGIC32
            code = raised.bitcast("i32") + (zero + (shift - MAGIC_BITS)).splat(lanes)
            (self.scratch + row.index * a.depth * 4 + unit.index).masked_store(code.trunc("i8"), mask)
        return scale.double(), zero + shift

    def _mask(self, count: Value, first: Value) -> Value:
        return first_lanes(count - first, self.isa.lanes)

    def _products(
        self, matrix: Value, walk: Value, first_row: Value, rows: int, gate: Value, scale: Value, zero: Value
    ) -> None:
        """A gate's sums of some sequences, as float32 plus what the inputs give."""
        w, a, lanes = self.w, self.a, self.isa.lanes
        codes, kind = self.scratch + first_row * a.depth * 4, int32s(self.isa)
        starts = [
            (self.inputs_at(walk, first_row + row) + gate * a.columns * 4, self.gate_sums(walk, gate, first_row + row))
            for row in range(rows)
        ]
        opening, closing = self.own_units[0] // lanes, (self.own_units[1] + (lanes - 1)) // lanes
        for first, count in w.runs(opening, closing, _AT_ONCE[rows]):
            place = matrix * a.vectors + first
            source = a.weights + place * a.depth * (4 * lanes)
            with w.loop(0, a.depth, 1, [w.zero(kind)] * (count * rows)) as k:
                words = [(codes + (a.depth * row + k.index) * 4).load("i32", 4) for row in range(rows)]
                left, made = [activations(self.isa, word.splat(lanes)) for word in words], []
                for number in range(count):
                    at = source + (a.depth * number + k.index) * (4 * lanes)
                    right, totals = weights(self.isa, at.load(kind, 4)), k.carried[number * rows : (number + 1) * rows]
                    made += [dot(self.isa, total, x, right) for total, x in zip(totals, left, strict=True)]
                k.next(*made)
            for number in range(count):
                column = (place + number) * (4 * lanes)
                less = (a.sums + column).load(kind, 4) * zero.splat(lanes)
                factor = (a.scales + column).load(self.floats, 4).double() * scale.splat(lanes)
                totals = k.carried[number * rows : (number + 1) * rows]
                self._scaled((first + number) * lanes, starts, [total - less for total in totals], factor)

    def _scaled(
        self, unit: Value, starts: Sequence[tuple[Value, Value]], totals: Sequence[Value], factor: Value
    ) -> None:
        """A vector of units: sums times their factor plus what the inputs give;
        starts: where that is, and where results go."""
        mask, doubtful, terms = self._mask(self.a.columns, unit), [], []
        for total, (inputs, sums) in zip(totals, starts, strict=True):
            added = (inputs + unit * 4).masked_load(self.floats, mask, 4).double()
            number, target = total.sitofp("double"), sums + unit * 4
            made, unsure = _once(number, factor, added)
            target.masked_store(made, mask)
            doubtful.append(unsure & mask)
            terms.append((number, added, target))
        with self.w.when(reduce(or_, doubtful).any()):
            for number, added, target in terms:
                product = number * factor
                bits = rounded_once(number, factor, self.w.zero(factor.kind), product, product + added, added)
                target.masked_store(bits.bitcast("float"), mask)


def _once(number: Value, factor: Value, added: Value) -> tuple[Value, Value]:
    """number * factor + added as float32; and i1: where that may differ from the real value
    rounded once, because float64 was rounded before."""
    if not number.w.fused:
        product = number * factor
        total, reach = product + added, (abs(product) + abs(added)) * _REACH
        made = (total - reach).single()
        return made, differ(made, (total + reach).single())
    total = number.fma(factor, added)
    return total.single(), beside_a_middle(total, 1) | abs(total).test("olt", _LEAST)
