"""The loops of elementwise kernels on bytes: tiles of images, the rows of each, vectors of each row's columns."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.bytes import Bytes
from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import KernelEmitter
from qrun.native.emit.spec import PIECE, KernelSpec, masks
from qrun.native.emit.values import Value

_GRID = ("columns", "rows", "chunk", "chunks", "part", "parts", "tiles", "last", "mask")
_TOGETHER = 8
"""How many single bytes a turn of the loop makes and stores together."""


def struct_names(operands: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    """One 8-byte word each; `own` are those of the kernel's form.

    columns, rows     of an image
    chunk, chunks     rows of a tile, and tiles that share an image's rows; part, parts: the same for columns
    last              where the last vector of a row starts: it overlaps the one before rather than run over
    mask              its bytes that exist, should rows be shorter than a vector (where stores can be masked)
    """
    steps = [f"{name}_{step}" for name in operands for step in ("image", "row")]
    return (*(f"{name}*" for name in operands), *steps, *_GRID, *own)


class RowsEmitter(KernelEmitter):
    """Writes a kernel: one result byte for the bytes at its place in one or two operands.

    It handles as many pieces of 16 bytes at once as `vectors` says, or with 0 one byte.
    """

    operands: tuple[str, ...] = ("x", "y")

    def __init__(self, spec: KernelSpec, isa: Isa, own: Sequence[str]) -> None:
        self.names = struct_names(self.operands, own)
        super().__init__(spec, isa)
        self.bytes = Bytes(self.w, isa, 4 * spec.vectors)
        self.width = PIECE * spec.vectors
        self.kind = self.bytes.kind if spec.vectors else "i8"

    def value(self, operands: list[Value], column: Value, start: Value) -> Value:
        """The results of the vectors at a column. start: the loop's index, beyond the column where that was cut."""
        raise NotImplementedError

    def entry(self, operands: list[Value], column: Value, offset: int) -> Value:
        """The result of single bytes, which lie `offset` bytes after this column."""
        raise NotImplementedError

    def text(self) -> str:
        if masks(self.spec.vectors):
            self.on, self.whole = self.a.mask.bitcast("<64 x i1>"), self.a.mask.test("eq", -1)
        return super().text()

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        rest, part = divmod(tile, a.parts)
        image, chunk = divmod(rest, a.chunks)
        row, column = chunk * a.chunk, part * a.part
        row_end = (row + a.chunk).least(a.rows)
        column_end = (column + a.part).least(a.columns)
        images = [(name, a[name] + image * a[f"{name}_image"]) for name in self.operands]
        with w.loop(row, row_end, 1) as at_row:
            lines = [start + at_row.index * a[f"{name}_row"] for name, start in images]
            (self._vectors if self.spec.vectors else self._entries)(lines, column, column_end)

    def _vectors(self, lines: list[Value], column: Value, end: Value) -> None:
        with self.w.loop(column, end, self.width) as at:
            place = at.index.least(self.a.last)
            *sources, target = [line + place for line in lines]
            self._store(self.value([self._load(source) for source in sources], place, at.index), target)

    def _entries(self, lines: list[Value], column: Value, end: Value) -> None:
        """Make the bytes of these rows one by one."""
        for first, count in self.w.runs(column, end, (_TOGETHER, 1)):
            *sources, target = [line + first for line in lines]
            together = self.w.value(f"<{count} x i8>", "poison")
            for i in range(count):
                together = together.insert(self.entry([(source + i).load("i8") for source in sources], first, i), i)
            target.store(together)

    def splat(self, name: str) -> Value:
        """A float argument, in every lane."""
        return self.a[name].bitcast("float").splat(self.bytes.lanes)

    def added(self) -> Value:
        """The argument `add` in every 16-bit lane."""
        return self.a.add.trunc("i16").splat(2 * self.bytes.lanes)

    def _load(self, pointer: Value) -> Value:
        return pointer.masked_load(self.kind, self.on) if masks(self.spec.vectors) else pointer.load(self.kind)

    def _store(self, value: Value, pointer: Value) -> None:
        if not masks(self.spec.vectors):
            pointer.store(value)
            return
        for whole in self.w.either(self.whole, "store_whole", "store_cut", "stored"):
            if whole:
                pointer.store(value)
            else:
                pointer.masked_store(value, self.on)
