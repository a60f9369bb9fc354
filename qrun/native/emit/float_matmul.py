"""The generated products of a few float32 rows that read the right matrix once:
column after column, or row after row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.native.emit.float_panels import parts
from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.rounding import RoundingEmitter
from qrun.native.emit.spec import DOT_BLOCK
from qrun.native.emit.widen import first_lanes, folded, widened

DOT = names("""
    a* b* addend* y* numbers* batches* a_row b_row b_column addend_row y_row
    rows columns taps depth panels panel_block squares_at sums_at ahead tiles recheck*
""")
"""As in floats.py, with one tap. The thread's memory begins with the lengths of rows; a panel is one vector of columns.

b_column    bytes from one column of b to the next
squares_at  where the thread's memory has the squares of a panel's columns, then their lengths;
sums_at: sums [rows][columns]
ahead       how many bytes on each column is fetched
"""


@emitter("float_dot")
class FloatDotEmitter(RoundingEmitter):
    """`unroll` columns are read at a time."""

    names = DOT

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
        """The end of a loop over whole vectors: from every index below it a whole vector fits before `end`."""
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
        """Add a block of k to the sums of `unroll` columns, the first of which has this place in its panel. Those after
        the last one of all are that again."""
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


STREAM = names("""
    a* b* addend* y* numbers* batches* a_row b_row addend_row y_row
    rows columns taps depth row_block panels panel_block right_at squares_at lengths_at sums_at pitch known* known_odd tiles recheck*
""")
"""As in floats.py, with one tap, no packed panel and no squares. The thread's memory begins with the rows as float64,
`pitch` bytes each; sums lie there as [panels][rows][columns]."""


@emitter("float_stream")
class FloatStreamEmitter(FloatProductEmitter):
    """`unroll` rows of the right matrix are read at a time; the lengths of its columns are known.
    A tile has all `rows`."""

    names = STREAM

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.known = True

    def product(self, batch: Value, first: Value, end: Value) -> None:
        w, a = self.w, self.a
        self.take_product(batch)
        self.odd_rows.store(w.value("i64", 0), 8)
        self.odd_panel.store(a.known_odd, 8)
        with w.loop(0, a.rows, 1) as row:
            self._widen(row.index)
        with w.loop(0, (end - first) * self._slot, 8 * self.lanes) as place:
            (self.sums + place.index).store(w.zero(self.kind), 8)
        for k, count in w.runs(0, a.depth, (self.spec.unroll, 1)):
            with w.loop(first, end, 1) as panel:
                self.take_panel(panel.index, panel.index - first)
                self._add(k, count, self.sums + (panel.index - first) * self._slot)
        with w.loop(first, end, 1) as panel:
            self.take_panel(panel.index, panel.index - first)
            slot = self.sums + (panel.index - first) * self._slot
            places = range(0, self._slot, 8 * self.lanes)
            self.round_strip(w.value("i64", 0), slot, [(slot + place).load(self.kind, 8) for place in places])
        self.doubts.end()

    @property
    def _slot(self) -> int:
        """Bytes of a panel's sums."""
        return 8 * self.spec.rows * self.width

    def _widen(self, row: Value) -> None:
        """Convert a row to float64, and find its reach."""
        zeros = [self.w.zero(self.kind)] * 4
        source, target = self.row_part(row, row), self.scratch + row * self.a.pitch
        first, *more = widened(self.w, self.lanes, source, target, self.a.depth, zeros)
        self.measured(row, folded(sum(more, first)))

    def _add(self, k: Value, count: int, slot: Value) -> None:
        """Add `count` products of each column of a panel to its sums. They are first added up by themselves, from 0 on,
        so that fewer additions follow each other."""
        w, a, vectors = self.w, self.a, range(self.spec.vectors)
        rows = [self.scratch + a.pitch * i + k * 8 for i in range(self.spec.rows)]
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in vectors]
            sums, right = self.no_sums(), self.right_column + k * a.b_row
            for step in range(count):
                if count > 1:
                    for line in range(0, 4 * self.width, 64):
                        w.prefetch(right + a.b_row * count + line)
                self.multiply([row + 8 * step for row in rows], self.columns_at(right, masks), sums)
                right = right + a.b_row
            for place, more in enumerate(self.joined(sums)):
                target = slot + 8 * self.lanes * place
                target.store(target.load(self.kind, 8) + more, 8)
