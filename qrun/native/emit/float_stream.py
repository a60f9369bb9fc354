"""The generated product of few float32 rows with a large right matrix, which is read once, from its first row to its last.

Memory gives most where it is read in long pieces. So some rows of the right matrix are gone through side by side, from a tile's
first column to its last, while what is added to the sums of all columns waits in memory that is near. Meanwhile the rows that
come next are fetched.
"""

from __future__ import annotations

from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import Value, emitter, names
from qrun.native.emit.widen import folded, widened

NAMES = names("""
    a* b* addend* y* numbers* batches* a_row b_row addend_row y_row
    rows columns taps depth row_block panels panel_block right_at squares_at lengths_at sums_at pitch known* known_odd tiles recheck*
""")
"""As in floats.py, with one tap, no packed panel and no squares. The thread's memory begins with the rows as float64, `pitch`
bytes each; sums lie there as [panels][rows][columns]."""


@emitter("float_stream")
class FloatStreamEmitter(FloatProductEmitter):
    """`unroll` rows of the right matrix are read at a time; the lengths of its columns are ``known``. A tile has all `rows`."""

    names = NAMES

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
        """Add `count` products of each column of a panel to its sums, which begin at 0, as it bounds how many additions follow each other."""
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
