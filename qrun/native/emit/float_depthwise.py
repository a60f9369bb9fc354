"""The generated depthwise convolution of float32: each channel by its own weights, sums in float64 as in floats.py.

How far a sum is off follows from the sizes of its own products, which are added beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import and_

from qrun.native.emit.float_panels import parts
from qrun.native.emit.floats import BATCH, NAMES
from qrun.native.emit.kernel import emitter, row_at
from qrun.native.emit.rounding import REACH, RoundingEmitter
from qrun.native.emit.values import Value


@emitter("float_depthwise")
class FloatDepthwiseEmitter(RoundingEmitter):
    """`rows` pixels by `vectors` of channels at once; arguments as in floats.py, depth 1."""

    names = NAMES
    sizes: list[Value]

    def tile(self, tile: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        self.batch, block = divmod(tile, parts(a.rows, a.row_block))
        starts = a.batches + self.batch * BATCH
        x, b, addend, y = (start + (starts + 8 * n).load("i64", 8) for n, start in enumerate((a.a, a.b, a.addend, a.y)))
        self.row_starts = x, b, addend, y
        self.first = (block * a.row_block).least(a.rows - rows)
        count = a.row_block.least(a.rows - self.first)
        self.odd_rows.store(w.value("i64", 0), 8)
        with w.loop(0, count, rows) as strip, w.loop(0, a.panels, 1) as panel:
            row = strip.index.least(count - rows)
            self.left, self.column = a.columns - panel.index * self.width, panel.index * (4 * self.width)
            self.right_column = b + self.column
            sums = self._sums(row)
            finite = reduce(and_, (size.test("olt", math.inf) for size in self.sizes))
            self.odd_panel.store(finite.bits().test("ne", (1 << self.lanes) - 1).zext("i64"), 8)
            self.round_strip(row, self.scratch, sums)
        self.doubts.end()

    def _sums(self, row: Value) -> list[Value]:
        """The sums of a strip, and beside them those of the products' magnitudes."""
        w, a, lanes, vectors = self.w, self.a, self.lanes, self.spec.vectors
        count = self.spec.rows * vectors
        ends = []
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(vectors)]
            start = [w.zero(self.kind)] * (2 * count)
            with w.loop(0, a.taps, 1, [*start, self.right_column]) as tap:
                *carried, weights = tap.carried
                b = [self.numbers_at(weights + 4 * lanes * j, mask) for j, mask in enumerate(masks)]
                sizes = [abs(value) for value in b]
                for i in range(self.spec.rows):
                    part = self.row_part(self.first + row + i, tap.index) + self.column
                    for j, mask in enumerate(masks):
                        x, place = self.numbers_at(part + 4 * lanes * j, mask), i * vectors + j
                        carried[place] = x.fma(b[j], carried[place])
                        carried[count + place] = abs(x).fma(sizes[j], carried[count + place])
                tap.next(*carried, weights + a.b_row)
            ends.append((tap.carried[:-1], w.here))
        made = [w.phi(*((values[place], label) for values, label in ends)) for place in range(2 * count)]
        self.sizes = made[count:]
        return made[:count]

    def row_part(self, row: Value, tap: Value) -> Value:
        a = self.a
        return row_at(self.row_starts[0], a.offsets + row * a.a_row + tap * 4, a.padding)

    def strip_lengths(self, row: Value) -> list[tuple[Value, Value]]:
        reach = self.number(REACH)
        return [(reach, size) for size in self.sizes]

    def keep(self, slot: Value, sums: Sequence[Value]) -> None:
        super().keep(slot, [*sums, *self.sizes])

    def lengths_at(self, row: Value, vector: Value, slot: Value) -> tuple[Value, Value]:
        sizes = slot + 8 * self.lanes * self.spec.rows * self.spec.vectors
        return self.number(REACH), sizes.load(self.kind, 8)

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        return self.numbers_at(part + self.column + vector * (4 * self.lanes), mask), self.numbers_at(start, mask)
