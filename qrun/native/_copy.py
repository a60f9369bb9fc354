"""Generated copies of strided elements: whole runs, transposed blocks, or one element after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qrun.native._flow import Flow, interleaved, joined, sixteens
from qrun.native._ir import argument_loader
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

_OUTER = ("x*", "y*", "n1", "n2", "x0", "x1", "x2", "y0", "y1", "y2", "chunks", "chunk", "units", "share", "tiles")
RUNS = (*_OUTER, "rows", "x_row", "y_row", "bytes")
ELEMENTS = (*_OUTER, "rows", "x_row", "y_row", "columns", "x_column", "y_column")
BLOCKS = (*_OUTER, "a", "a_block", "a_x", "a_y", "b", "b_block", "b_x", "b_y", "x_step", "y_step")
"""One 8-byte word each. Three outer axes and two of the kernel's own; strides in bytes.

n1, n2       lengths of the second and third outer axis; x0 to x2, y0 to y2: strides of all three
units        outer indices times chunks; a tile is `share` of them
chunks, chunk     parts of the kernel's first own axis, and its elements in each
a, b         the own axes of a transposition, in the order of its loops: lengths; elements per block; strides
x_step, y_step    from one row of a block to the next
"""

_WIDE = 32


class _Copy:
    names: tuple[str, ...]

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow()
        self.w.label("entry")
        self.a = argument_loader(self.w, self.names)
        self.x = self.y = ""

    def text(self) -> str:
        with self._unit() as chunk:
            first = self.w.mul(chunk, self.a["chunk"])
            self._chunk(first, self.w.add(first, self.a["chunk"]))
        return self.w.kernel()

    def _chunk(self, first: str, end: str) -> None:
        """Copy this part of the first own axis; `end` may lie beyond it."""
        raise NotImplementedError

    @contextmanager
    def _unit(self) -> Iterator[str]:
        """Point x and y at the outer index of each unit; yields its chunk."""
        w, a = self.w, self.a
        with w.tiles(a["tiles"]) as tile:
            start = w.mul(tile, a["share"])
            end = w.least(w.add(start, a["share"]), a["units"])
            rest, chunk = w.split(start, a["chunks"])
            rest, i2 = w.split(rest, a["n2"])
            i0, i1 = w.split(rest, a["n1"])
            with w.loop(start, end, 1, [("i64", i) for i in (chunk, i2, i1, i0)]) as unit:
                chunk, i2, i1, i0 = unit.carried
                for name in ("x", "y"):
                    pointer = a[name]
                    for axis, index in enumerate((i0, i1, i2)):
                        pointer = w.at(pointer, w.mul(index, a[f"{name}{axis}"]))
                    setattr(self, name, pointer)
                yield chunk
                unit.next(self._following(unit.carried))

    def _following(self, counters: list[str]) -> list[str]:
        """Chunk and outer indices of the next unit."""
        w, carry, ends = self.w, "1", []
        for counter, length in zip(counters, ("chunks", "n2", "n1"), strict=False):
            more = w.add(counter, carry)
            full = w.let(f"icmp eq i64 {more}, {self.a[length]}")
            ends.append(w.let(f"select i1 {full}, i64 0, i64 {more}"))
            carry = w.let(f"zext i1 {full} to i64")
        return [*ends, w.add(counters[3], carry)]


class Runs(_Copy):
    """Rows of contiguous bytes. `vectors` vectors of `unroll` bytes at a time, the last of a row overlapping."""

    names = RUNS

    def _chunk(self, first: str, end: str) -> None:
        w, a, spec = self.w, self.a, self.spec
        block = spec.vectors * spec.unroll
        last = w.let(f"sub i64 {a['bytes']}, {block}")
        with w.loop(first, w.least(end, a["rows"]), 1) as row:
            x = w.at(self.x, w.mul(row.index, a["x_row"]))
            y = w.at(self.y, w.mul(row.index, a["y_row"]))
            with w.loop("0", last, block) as turn:
                self._move(w.at(x, turn.index), w.at(y, turn.index))
            self._move(w.at(x, last), w.at(y, last))

    def _move(self, x: str, y: str) -> None:
        w, size = self.w, self.spec.unroll
        kind = f"<{size} x i8>" if size >= 16 else f"i{8 * size}"
        values = [w.load(kind, w.at(x, size * i)) for i in range(self.spec.vectors)]
        for i, value in enumerate(values):
            w.store(kind, value, w.at(y, size * i))


class Elements(_Copy):
    """Elements of `unroll` bytes, one by one."""

    names = ELEMENTS

    def _chunk(self, first: str, end: str) -> None:
        w, a, kind = self.w, self.a, f"i{8 * self.spec.unroll}"
        with w.loop(first, w.least(end, a["rows"]), 1) as row:
            x = w.at(self.x, w.mul(row.index, a["x_row"]))
            y = w.at(self.y, w.mul(row.index, a["y_row"]))
            with w.loop("0", a["columns"], 1) as column:
                value = w.load(kind, w.at(x, w.mul(column.index, a["x_column"])))
                w.store(kind, value, w.at(y, w.mul(column.index, a["y_column"])))


class Blocks(_Copy):
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
            x, y = w.at(self.x, w.mul(b, a["b_x"])), w.at(self.y, w.mul(b, a["b_y"]))
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
