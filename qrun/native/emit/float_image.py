"""The generated product of an image that is float64 already, and whose pixels bring their sums of squares (widen.py).

Its rows are read where they lie, tap after tap: nothing of them is converted or copied for a tile.
"""

from __future__ import annotations

from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import emitter
from qrun.native.emit.values import Value


@emitter("float_image")
class FloatImageEmitter(FloatProductEmitter):
    """Arguments as in floats.py; offsets are those of float64 pixels, b lies panel after panel."""

    def before_blocks(self, starts: Value) -> None:
        """The lengths of the tile's rows."""
        w, place = self.w, (starts + 40).load("i64", 8)
        with w.loop(0, self.count, 1) as row:
            with w.loop(0, self.a.taps, 1, [w.value("double", 0.0)]) as tap:
                part = self.row_part(self.first + row.index, tap.index)
                tap.next(tap.carried[0] + (part + place).load("double", 8))
            self.measured(row.index, tap.carried[0])

    def convert(self, first: Value, opening: Value) -> None:
        """They are ready."""

    def strip_sums(self, row: Value) -> list[Value]:
        w, rows, vectors, lanes = self.w, self.spec.rows, self.spec.vectors, self.lanes
        right, each = (self.right, 8) if self.packed else (self.part(), 4)
        zeros = [w.zero(self.kind)] * (rows * vectors)
        with w.loop(0, self.tap_count, 1, [*zeros, right]) as tap:
            starts = [self.row_part(self.first + row + i, self.tap + tap.index) + self.start * 8 for i in range(rows)]
            carried, done = tap.carried, w.value("i64", 0)
            for count in (UNROLL, 1):
                with w.loop(done, self.size - (count - 1), count, carried) as turn:
                    *sums, right = turn.carried
                    for step in range(count):
                        places = [right + each * (step * self.width + j * lanes) for j in range(vectors)]
                        b = [x.load(self.kind, 8) if self.packed else self.numbers_at(x, None) for x in places]
                        for i, start in enumerate(starts):
                            x = (start + turn.index * 8 + 8 * step).load("double", 8).splat(lanes)
                            for j, vector in enumerate(b):
                                sums[i * vectors + j] = x.fma(vector, sums[i * vectors + j])
                    turn.next(*sums, right + each * count * self.width)
                carried, done = turn.carried, turn.index
            tap.next(*carried)
        return tap.carried[:-1]

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        left = (part + k * 8).load("double", 8).splat(self.lanes)
        return left, self.numbers_at(start + k * self.a.b_row, mask)
