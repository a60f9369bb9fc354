"""Generated copies of strided elements: whole runs, transposed blocks, or one element after another."""

from __future__ import annotations

from qrun.native._flow import interleaved, joined, sixteens
from qrun.native._strided import Strided, outer_names

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

    def _chunk(self, first: str, end: str) -> None:
        w, a, spec = self.w, self.a, self.spec
        block = spec.vectors * spec.unroll
        last = w.let(f"sub i64 {a['bytes']}, {block}")
        with w.loop(first, w.least(end, a["rows"]), 1) as row:
            x = w.at(self.starts["x"], w.mul(row.index, a["x_row"]))
            y = w.at(self.starts["y"], w.mul(row.index, a["y_row"]))
            with w.loop("0", last, block) as turn:
                self._move(w.at(x, turn.index), w.at(y, turn.index))
            self._move(w.at(x, last), w.at(y, last))

    def _move(self, x: str, y: str) -> None:
        w, size = self.w, self.spec.unroll
        kind = f"<{size} x i8>" if size >= 16 else f"i{8 * size}"
        values = [w.load(kind, w.at(x, size * i)) for i in range(self.spec.vectors)]
        for i, value in enumerate(values):
            w.store(kind, value, w.at(y, size * i))


class Elements(Strided):
    """Elements of `unroll` bytes, one by one."""

    names = ELEMENTS

    def _chunk(self, first: str, end: str) -> None:
        w, a, kind = self.w, self.a, f"i{8 * self.spec.unroll}"
        with w.loop(first, w.least(end, a["rows"]), 1) as row:
            x = w.at(self.starts["x"], w.mul(row.index, a["x_row"]))
            y = w.at(self.starts["y"], w.mul(row.index, a["y_row"]))
            with w.loop("0", a["columns"], 1) as column:
                value = w.load(kind, w.at(x, w.mul(column.index, a["x_column"])))
                w.store(kind, value, w.at(y, w.mul(column.index, a["y_column"])))


class Blocks(Strided):
    """Transposed blocks: `rows` rows of `vectors` contiguous elements of `unroll` bytes become columns.

    form ``dense``: the rows of the result follow each other without gaps; else each is stored by itself.
    """

    names = BLOCKS

    def _chunk(self, first: str, end: str) -> None:
        w, a = self.w, self.a
        last_a = w.let(f"sub i64 {a['a']}, {a['a_block']}")
        last_b = w.let(f"sub i64 {a['b']}, {a['b_block']}")
        end = w.least(end, a["a"])
        with w.loop("0", a["b"], a["b_block"]) as outer:
            b = w.least(outer.index, last_b)
            x, y = w.at(self.starts["x"], w.mul(b, a["b_x"])), w.at(self.starts["y"], w.mul(b, a["b_y"]))
            with w.loop(first, end, a["a_block"]) as inner:
                place = w.least(inner.index, last_a)
                self._block(w.at(x, w.mul(place, a["a_x"])), w.at(y, w.mul(place, a["a_y"])))

    def _block(self, x: str, y: str) -> None:
        w, spec = self.w, self.spec
        element, rows = f"i{8 * spec.unroll}", []
        for row in range(spec.rows):
            x = w.at(x, self.a["x_step"]) if row else x
            rows.append(w.load(f"<{spec.vectors} x {element}>", x))
        pieces, count = interleaved(w, element, spec.unroll, rows, spec.vectors), spec.vectors
        if spec.form == "dense":
            pieces = joined(w, element, pieces, count) if count * spec.unroll == _WIDE else pieces
            for number, piece in enumerate(pieces):
                w.store(f"<{count} x {element}>", piece, w.at(y, number * count * spec.unroll))
            return
        if count * spec.unroll == _WIDE:
            pieces = sixteens(w, element, pieces, count, spec.unroll)
        self._store_rows(pieces, spec.rows * count // len(pieces), y)

    def _store_rows(self, pieces: list[str], count: int, y: str) -> None:
        """Store vectors of `count` elements, each one row of the result or several."""
        w, rows, size = self.w, self.spec.rows, self.spec.unroll
        kind, bits, whole = f"<{count} x i{8 * size}>", f"i{8 * rows * size}", count // rows
        for number, piece in enumerate(pieces):
            parts = piece if whole == 1 else w.let(f"bitcast {kind} {piece} to <{whole} x {bits}>")
            for part in range(whole):
                y = w.at(y, self.a["y_step"]) if number or part else y
                if whole == 1:
                    w.store(kind, piece, y)
                else:
                    w.store(bits, w.let(f"extractelement <{whole} x {bits}> {parts}, i32 {part}"), y)
