"""The generated walks of recurrent operators along their sequences, whose cells take products of float32.

A lane is a unit of a sequence. The sums of all its gates are chains of fused multiply-adds in registers, in the order
of docs/numerics.md, F1; what becomes of them is made where they are, so that of a step only states reach memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.fma_product import BLOCK, add_products, parts
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.walking import GATES, WalkEmitter, half_strip

NAMES = names("""
    weights* bias* addend* y* initial_h* initial_c* lengths* walk* addend_row rows columns row_block tiles
""")
"""As in walking.py, and

weights    float32 [directions], and of each for the gates that are made together [panels][columns][gates][width]: the
           gates' rows of R, turned. The last panel ends with the last unit.
bias       float32 [directions][columns]: what the product of the gate h begins with (linear)
"""


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
