"""Kernels that walk their operands with strides: the common base, copies, transpositions and triangles.

A tile is some units; a unit is an index of three outer axes and a chunk of the kernel's own axis."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.bytes import interleave, regroup_halves, sixteens
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.spec import OUTER


def outer_names(operands: Sequence[str]) -> tuple[str, ...]:
    """The names of the words for the outer axes, 8 bytes each.

    NAME*, NAME_0 to NAME_2  each operand's address, and its strides in bytes along the outer axes
    n1, n2                   lengths of the second and third outer axis
    chunks, chunk            the number of parts of the kernel's first own axis, and elements per part
    units                    outer indices times chunks; a tile is `share` of them
    """
    strides = (f"{name}_{axis}" for name in operands for axis in range(OUTER))
    return (*(f"{name}*" for name in operands), "n1", "n2", *strides, "chunks", "chunk", "units", "share", "tiles")


class StridedEmitter(KernelEmitter):
    """Base of the kernels. operands: their names in the struct. starts: their addresses for the current unit."""

    operands: tuple[str, ...] = ("x", "y")

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.starts: dict[str, Value] = {}

    def write_tile(self, tile: Value) -> None:
        """Make one tile: for each of its units, set `starts` to the unit's outer index, and make its chunk."""
        w, a = self.w, self.a
        start, end = tile.part(a.share, a.units)
        rest, chunk = divmod(start, a.chunks)
        rest, i2 = divmod(rest, a.n2)
        i0, i1 = divmod(rest, a.n1)
        with w.loop(start, end, 1, [chunk, i2, i1, i0]) as unit:
            chunk, i2, i1, i0 = unit.carried
            for name in self.operands:
                pointer = a[name]
                for axis, index in enumerate((i0, i1, i2)):
                    pointer = pointer + self.offset(name, axis, index)
                self.starts[name] = pointer
            first = chunk * a.chunk
            self._chunk(first, first + a.chunk)
            unit.next(*self._next_unit(unit.carried))
        self.end()

    def offset(self, name: str, axis: int, index: Value) -> Value:
        """Bytes from an outer axis's first index to this one."""
        return index * self.stride(name, axis)

    def stride(self, name: str, axis: int) -> Value:
        """Bytes from one index of an outer axis to the next."""
        return self.a[f"{name}_{axis}"]

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the code for this part of the kernel's first own axis. `end` may lie beyond the axis."""
        raise NotImplementedError

    def end(self) -> None:
        """Write code for the end of a tile. The default writes none."""

    def _next_unit(self, counters: list[Value]) -> list[Value]:
        """The chunk and outer indices of the next unit: the chunk plus one, with carry into the outer indices."""
        carry, following = self.w.value("i64", 1), []
        for counter, length in zip(counters, (self.a.chunks, self.a.n2, self.a.n1), strict=False):
            more = counter + carry
            full = more.test("eq", length)
            following.append(full.select(0, more))
            carry = full.zext("i64")
        return [*following, counters[3] + carry]


_OUTER = outer_names(("x", "y"))
RUNS = (*_OUTER, "rows", "x_row", "y_row", "bytes")
ELEMENTS = (*_OUTER, "rows", "x_row", "y_row", "columns", "x_column", "y_column")
BLOCKS = (*_OUTER, "a", "a_block", "a_x", "a_y", "b", "b_block", "b_x", "b_y", "x_step", "y_step")
"""The words for the outer axes, and for the kernel's own two axes; strides in bytes.

a, b         the own axes of a transposition, in the order of its loops: lengths; elements per block; strides
x_step, y_step    from one row of a block to the next
"""

_WIDE = 32


def copy_block(emitter: KernelEmitter, x: Value, y: Value) -> None:
    """Copy `vectors` vectors of `unroll` bytes."""
    size = emitter.spec.unroll
    kind = f"<{size} x i8>" if size >= 16 else f"i{8 * size}"
    values = [(x + size * i).load(kind) for i in range(emitter.spec.vectors)]
    for i, value in enumerate(values):
        (y + size * i).store(value)


def copy_run(emitter: KernelEmitter, x: Value, y: Value, last: Value) -> None:
    """Copy a run of bytes block by block. last: where its last block starts, which overlaps the one before."""
    with emitter.w.loop(0, last, emitter.spec.vectors * emitter.spec.unroll) as turn:
        copy_block(emitter, x + turn.index, y + turn.index)
    copy_block(emitter, x + last, y + last)


@emitter("runs")
class RunsEmitter(StridedEmitter):
    """Copies rows of contiguous bytes, `vectors` vectors of `unroll` bytes at a time; the last block of a row overlaps
    the one before."""

    names = RUNS
    frozen = True

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the copy of the rows `first` to `end`, each one run of bytes."""
        w, a, spec = self.w, self.a, self.spec
        last = a.bytes - spec.vectors * spec.unroll
        with w.loop(first, end.least(a.rows), 1) as row:
            x = self.starts["x"] + row.index * a.x_row
            y = self.starts["y"] + row.index * a.y_row
            copy_run(self, x, y, last)


@emitter("elements")
class ElementsEmitter(StridedEmitter):
    """Copies elements of `unroll` bytes one by one."""

    names = ELEMENTS

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the copy of the rows `first` to `end`, element by element."""
        w, a, kind = self.w, self.a, f"i{8 * self.spec.unroll}"
        with w.loop(first, end.least(a.rows), 1) as row:
            x = self.starts["x"] + row.index * a.x_row
            y = self.starts["y"] + row.index * a.y_row
            with w.loop(0, a.columns, 1) as column:
                value = (x + column.index * a.x_column).load(kind)
                (y + column.index * a.y_column).store(value)


@emitter("blocks")
class BlocksEmitter(StridedEmitter):
    """Transposes blocks: `rows` rows of `vectors` contiguous elements of `unroll` bytes become columns.

    form ``dense``: the rows of the result are contiguous; else each is stored separately.
    """

    names = BLOCKS

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the copy of the blocks `first` to `end` of a transposed matrix."""
        w, a = self.w, self.a
        last_a = a.a - a.a_block
        last_b = a.b - a.b_block
        end = end.least(a.a)
        with w.loop(0, a.b, a.b_block) as outer:
            b = outer.index.least(last_b)
            x, y = self.starts["x"] + b * a.b_x, self.starts["y"] + b * a.b_y
            with w.loop(first, end, a.a_block) as inner:
                position = inner.index.least(last_a)
                self._block(x + position * a.a_x, y + position * a.a_y)

    def _block(self, x: Value, y: Value) -> None:
        """Write the transposed copy of one block from x to y."""
        spec, rows = self.spec, []
        for row in range(spec.rows):
            x = x + self.a.x_step if row else x
            rows.append(x.load(f"<{spec.vectors} x i{8 * spec.unroll}>"))
        pieces, size = interleave(rows), spec.vectors * spec.unroll
        if spec.form == "dense":
            for number, piece in enumerate(regroup_halves(pieces) if size == _WIDE else pieces):
                (y + number * size).store(piece)
            return
        if size == _WIDE:
            pieces = sixteens(pieces)
        self._store_rows(pieces, spec.rows * spec.vectors // len(pieces), y)

    def _store_rows(self, pieces: list[Value], count: int, y: Value) -> None:
        """Store vectors of `count` elements, each of which is one or more rows of the result."""
        whole, bits = count // self.spec.rows, f"i{8 * self.spec.rows * self.spec.unroll}"
        for number, piece in enumerate(pieces):
            parts = piece if whole == 1 else piece.bitcast(f"<{whole} x {bits}>")
            for part in range(whole):
                y = y + self.a.y_step if number or part else y
                y.store(piece if whole == 1 else parts.extract(part))


TRIANGLE = names("x* y* rows chunk tiles lines columns diagonal")
"""The argument words, 8 bytes each.

rows, chunk     rows of all matrices, and rows of a tile
lines, columns  rows of a matrix, and elements of a row
diagonal        the column of a matrix's first row at which the upper part begins; in each further row one later
"""


@emitter("triangle")
class TriangleEmitter(KernelEmitter):
    """Copies a triangle of matrices with elements of `unroll` bytes, `rows` of them at once, and zeros elsewhere. form:
    ``upper`` keeps the elements from column `diagonal` on, ``lower`` those before."""

    names = TRIANGLE
    frozen = True

    def write_tile(self, tile: Value) -> None:
        w, a, size = self.w, self.a, self.spec.unroll
        upper = self.spec.form == "upper"
        with w.part(tile, a.chunk, a.rows) as row:
            x, y = (start + row * a.columns * size for start in (a.x, a.y))
            split = (row % a.lines + a.diagonal).intrinsic("smax", 0).least(a.columns)
            for first, end, kept in ((w.value("i64", 0), split, not upper), (split, a.columns, upper)):
                for at, n in w.runs(first, end, (self.spec.rows, 1)):
                    kind = f"<{n} x i{8 * size}>"
                    (y + at * size).store((x + at * size).load(kind, size) if kept else w.zero(kind), size)
