"""The generated convolution of float32 with groups narrower than a vector, sums in float64 as in floats.py.

A group has as many channels of the image as of the result, so that these lie at the same places: a vector holds whole
groups of both. Each channel of a group is spread over the group's lanes, where it meets its weights:

    x         a0 a1 | b0 b1                   two groups of two channels
    spread    a0 a0 | b0 b0   a1 a1 | b1 b1
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


@emitter("float_grouped")
class FloatGroupedEmitter(RoundingEmitter):
    """`rows` pixels by `vectors` of channels at once, `unroll` channels of each group; arguments as in floats.py. The lengths of
    the weights are `known`."""

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
        """The sums of a strip; what bounds the products' magnitudes are the lengths of pixels and weights."""
        w, a, lanes, rows, vectors = self.w, self.a, self.lanes, self.spec.rows, self.spec.vectors
        count, ends = rows * vectors, []
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(vectors)]
            with w.loop(0, a.taps, 1, [*[w.zero(self.kind)] * (2 * count), self.right_column]) as tap:
                *carried, weights = tap.carried
                x = []
                for i in range(rows):
                    part = self.row_part(self.first + row + i, tap.index) + self.column
                    x += [self.numbers_at(part + 4 * lanes * j, mask) for j, mask in enumerate(masks)]
                squares = [value.fma(value, total) for value, total in zip(x, carried[count:], strict=True)]
                sums = carried[:count]
                for k in range(self.spec.unroll):
                    for j, mask in enumerate(masks):
                        b = self.numbers_at(weights + 4 * lanes * j, mask)
                        for place in range(j, count, vectors):
                            sums[place] = x[place].shuffled(self._spread(k)).fma(b, sums[place])
                    weights = weights + a.b_row
                tap.next(*sums, *squares, weights)
            ends.append((tap.carried[:-1], w.here))
        made = [w.phi(*((values[place], label) for values, label in ends)) for place in range(2 * count)]
        self.sizes = [self._size(squares, place % vectors) for place, squares in enumerate(made[count:])]
        return made[:count]

    def _spread(self, number: int) -> list[int]:
        """Each lane's channel with this number in its group."""
        each = self.spec.unroll
        return [lane // each * each + number for lane in range(self.lanes)]

    def _size(self, squares: Value, vector: int) -> Value:
        """The length of each lane's group of a pixel, times that of the weights it meets."""
        group = reduce(Value.__add__, (squares.shuffled(self._spread(k)) for k in range(self.spec.unroll)))
        lengths = (self.a.known + self.column * 2 + 8 * self.lanes * vector).load(self.kind, 8)
        return group.sqrt() * lengths

    def row_part(self, row: Value, tap: Value) -> Value:
        a = self.a
        return row_at(self.row_starts[0], a.offsets + row * a.a_row + tap * 4, a.padding)

    def strip_reaches(self, row: Value) -> list[Value]:
        reach = self.number(REACH)
        return [reach * size for size in self.sizes]

    def keep(self, slot: Value, sums: Sequence[Value]) -> None:
        super().keep(slot, [*sums, *self.sizes])

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        sizes = slot + 8 * self.lanes * self.spec.rows * self.spec.vectors
        return self.number(REACH) * sizes.load(self.kind, 8)

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        x = self.numbers_at(part + self.column + vector * (4 * self.lanes), mask)
        left = x.shuffled(self._spread(0))
        for number in range(1, self.spec.unroll):
            left = k.test("eq", number).select(x.shuffled(self._spread(number)), left)
        return left, self.numbers_at(start + k * self.a.b_row, mask)
