"""Generated copies of strided elements: whole runs, transposed blocks, or one element after another."""

from __future__ import annotations

from qrun.native._flow import interleaved, joined, sixteens
from qrun.native._strided import Strided, outer_names
from qrun.native._values import Value

_OUTER = outer_names(("x", "y"))
RUNS = (*_OUTER, "rows", "x_row", "y_row", "bytes")
ELEMENTS = (*_OUTER, "rows", "x_row", "y_row", "columns", "x_column", "y_column")
BLOCKS = (*_OUTER, "a", "a_block", "a_x", "a_y", "b", "b_block", "b_x", "b_y", "x_step", "y_step")
"""The words of outer axes, and those of the kernel's two own ones; strides in bytes.

a, b         the own axes of a transposition, in the order of its loops: lengths; elements per block; strides
x_step, y_step    from one row of a block to the next
"""

_WIDE = 32


class Runs(Strided):
    """Rows of contiguous bytes. `vectors` vectors of `unroll` bytes at a time, the last of a row overlapping."""

    names = RUNS

    def _chunk(self, first: Value, end: Value) -> None:
        w, a, spec = self.w, self.a, self.spec
        block = spec.vectors * spec.unroll
        last = a.bytes - block
        with w.loop(first, end.least(a.rows), 1) as row:
            x = self.starts["x"] + row.index * a.x_row
            y = self.starts["y"] + row.index * a.y_row
            with w.loop(0, last, block) as turn:
                self._move(x + turn.index, y + turn.index)
            self._move(x + last, y + last)

    def _move(self, x: Value, y: Value) -> None:
        size = self.spec.unroll
        kind = f"<{size} x i8>" if size >= 16 else f"i{8 * size}"
        values = [(x + size * i).load(kind) for i in range(self.spec.vectors)]
        for i, value in enumerate(values):
            (y + size * i).store(value)


class Elements(Strided):
    """Elements of `unroll` bytes, one by one."""

    names = ELEMENTS

    def _chunk(self, first: Value, end: Value) -> None:
        w, a, kind = self.w, self.a, f"i{8 * self.spec.unroll}"
        with w.loop(first, end.least(a.rows), 1) as row:
            x = self.starts["x"] + row.index * a.x_row
            y = self.starts["y"] + row.index * a.y_row
            with w.loop(0, a.columns, 1) as column:
                value = (x + column.index * a.x_column).load(kind)
                (y + column.index * a.y_column).store(value)


class Blocks(Strided):
    """Transposed blocks: `rows` rows of `vectors` contiguous elements of `unroll` bytes become columns.

    form ``dense``: the rows of the result follow each other without gaps; else each is stored by itself.
    """

    names = BLOCKS

    def _chunk(self, first: Value, end: Value) -> None:
        w, a = self.w, self.a
        last_a = a.a - a.a_block
        last_b = a.b - a.b_block
        end = end.least(a.a)
        with w.loop(0, a.b, a.b_block) as outer:
            b = outer.index.least(last_b)
            x, y = self.starts["x"] + b * a.b_x, self.starts["y"] + b * a.b_y
            with w.loop(first, end, a.a_block) as inner:
                place = inner.index.least(last_a)
                self._block(x + place * a.a_x, y + place * a.a_y)

    def _block(self, x: Value, y: Value) -> None:
        spec, rows = self.spec, []
        for row in range(spec.rows):
            x = x + self.a.x_step if row else x
            rows.append(x.load(f"<{spec.vectors} x i{8 * spec.unroll}>"))
        pieces, size = interleaved(rows), spec.vectors * spec.unroll
        if spec.form == "dense":
            for number, piece in enumerate(joined(pieces) if size == _WIDE else pieces):
                (y + number * size).store(piece)
            return
        if size == _WIDE:
            pieces = sixteens(pieces)
        self._store_rows(pieces, spec.rows * spec.vectors // len(pieces), y)

    def _store_rows(self, pieces: list[Value], count: int, y: Value) -> None:
        """Store vectors of `count` elements, each one row of the result or several."""
        whole, bits = count // self.spec.rows, f"i{8 * self.spec.rows * self.spec.unroll}"
        for number, piece in enumerate(pieces):
            parts = piece if whole == 1 else piece.bitcast(f"<{whole} x {bits}>")
            for part in range(whole):
                y = y + self.a.y_step if number or part else y
                y.store(piece if whole == 1 else parts.extract(part))
