"""The generated product of a few float32 rows with a right matrix whose columns lie one after the other.

Each column is read once, from its first number to its last: several at a time, and in each lane of a vector a sum of its own.
Lanes are added after every block of k; the sums of columns then wait in memory, beside the sums of their squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.native.emit.float_panels import parts
from qrun.native.emit.kernel import Value, emitter, names
from qrun.native.emit.rounding import RoundingEmitter
from qrun.native.emit.spec import DOT_BLOCK
from qrun.native.emit.widen import first_lanes, folded

NAMES = names("""
    a* b* addend* y* numbers* batches* a_row b_row b_column addend_row y_row
    rows columns taps depth panels panel_block squares_at sums_at ahead tiles recheck*
""")
"""As in floats.py, with one tap. The thread's memory begins with the lengths of rows; a panel is one vector of columns.

b_column    bytes from one column of b to the next
squares_at  where the thread's memory has the squares of a panel's columns, then their lengths; sums_at: sums [rows][columns]
ahead       how many bytes on each column is fetched
"""


@emitter("float_dot")
class FloatDotEmitter(RoundingEmitter):
    """`unroll` columns are read at a time."""

    names = NAMES

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        batch, block = divmod(tile, parts(a.panels, a.panel_block))
        self.first, self.lengths = w.value("i64", 0), self.scratch
        self.squares, self.sums = self.scratch + a.squares_at, self.scratch + a.sums_at
        self.take_batch(batch)
        self.right_column = self.row_starts[1]
        self.odd_rows.store(w.value("i64", 0), 8)
        with w.loop(0, a.rows, 1) as row:
            self._measure(row.index)
        with w.part(block, a.panel_block, a.panels) as panel:
            self._panel(panel)
        self.doubts.end()

    def _measure(self, row: Value) -> None:
        """Find the reach of a row."""
        w, depth = self.w, self.a.depth
        source, carried, done = self.row_part(row, row), [w.zero(self.kind)], w.value("i64", 0)
        for whole in (True, False):
            with w.loop(done, self._whole(depth) if whole else depth, self.lanes, carried) as k:
                mask = None if whole else first_lanes(depth - k.index, self.lanes)
                x = self.numbers_at(source + k.index * 4, mask)
                k.next(x.fma(x, k.carried[0]))
            carried, done = k.carried, k.index
        self.measured(row, folded(carried[0]))

    def _whole(self, end: Value) -> Value:
        """Where the last vector begins that ends before `end`, plus one."""
        return end - (self.lanes - 1)

    def _panel(self, panel: Value) -> None:
        w, a, count = self.w, self.a, self.spec.unroll
        self.left, self.column = a.columns - panel * self.width, panel * (4 * self.width)
        for row in range(self.spec.rows + 1):
            self._total(row, 0).store(w.zero(self.kind), 8)
        with w.loop(0, a.depth, DOT_BLOCK) as block, w.loop(0, self.width, count) as part:
            end = (block.index + DOT_BLOCK).least(a.depth)
            self._columns(panel * self.width + part.index, part.index, block.index, end)
        lengths = self._total(self.spec.rows, 0).load(self.kind, 8).sqrt()
        self.squares.store(lengths, 8)
        odd = lengths.test("olt", math.inf).bits().test("ne", (1 << self.lanes) - 1)
        self.odd_panel.store(odd.zext("i64"), 8)
        sums = [self._total(row, 0).load(self.kind, 8) for row in range(self.spec.rows)]
        self.round_strip(self.first, self.sums, sums)

    def _total(self, row: int, column: Value | int) -> Value:
        """Where the sum of this row and a panel's column is; after the last row, its sum of squares."""
        start = self.squares if row == self.spec.rows else self.sums + row * (8 * self.width)
        return start + column * 8

    def _columns(self, first: Value, place: Value, start: Value, end: Value) -> None:
        """Add a block of k to the sums of `unroll` columns, the first of which has this place in its panel. Those after the
        last one of all are that again."""
        w, a, rows, count = self.w, self.a, self.spec.rows, self.spec.unroll
        last = a.columns - 1
        columns = [self.right_column + (first + n).least(last) * a.b_column for n in range(count)]
        carried, done = [w.zero(self.kind)] * ((rows + 1) * count), start
        for whole in (True, False):
            with w.loop(done, self._whole(end) if whole else end, self.lanes, carried) as k:
                if whole:
                    for c in columns:
                        w.prefetch(c + k.index * 4 + a.ahead)
                mask = None if whole else first_lanes(end - k.index, self.lanes)
                x = [
                    self.numbers_at(self.row_part(k.index.like(row), k.index) + k.index * 4, mask)
                    for row in range(rows)
                ]
                k.next(*self._added(x, [self.numbers_at(c + k.index * 4, mask) for c in columns], k.carried))
            carried, done = k.carried, k.index
        for number, value in enumerate(carried):
            row, column = divmod(number, count)
            target = self._total(row, place + column)
            target.store(target.load("double", 8) + folded(value), 8)

    def _added(self, rows: Sequence[Value], columns: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        """[rows][columns] of sums, then of squares, with another vector of k."""
        count = len(columns)
        made = [x.fma(b, sums[i * count + j]) for i, x in enumerate(rows) for j, b in enumerate(columns)]
        return made + [b.fma(b, square) for b, square in zip(columns, sums[-count:], strict=True)]

    def row_part(self, row: Value, tap: Value) -> Value:
        return self.row_starts[0] + row * self.a.a_row

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        a, first = self.a, self.column.lshr(2) + vector * self.lanes
        left = (part + k * 4).load("float", 4).double().splat(self.lanes)
        right = self.w.value(self.narrow, "poison")
        for lane in range(self.lanes):
            column = self.right_column + (first + lane).least(a.columns - 1) * a.b_column
            right = right.insert((column + k * 4).load("float", 4), lane)
        return left, right.double()

    def strip_reaches(self, row: Value) -> list[Value]:
        return [self.reach_at(row + i, row, row) for i in range(self.spec.rows)]

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        return (self.lengths + row * 8).load("double", 8).splat(self.lanes) * self.squares.load(self.kind, 8)
