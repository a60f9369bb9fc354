"""The loops of elementwise kernels on bytes: tiles of images, the rows of each, vectors of each row's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrun.native._bytes import PIECE, Bytes
from qrun.native._flow import Flow
from qrun.native._ir import argument_loader
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

_GRID = ("columns", "rows", "chunk", "chunks", "part", "parts", "tiles", "last", "mask")
_TOGETHER = 8
"""Single bytes of a turn, stored at once."""


def struct_names(operands: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    """One 8-byte word each; `own` are those of the kernel's form.

    columns, rows     of an image
    chunk, chunks     rows of a tile, and tiles that share an image's rows; part, parts: the same for columns
    last              where the last vector of a row starts: it overlaps the one before rather than run over
    mask              its bytes that exist, should rows be shorter than a vector (where stores can be masked)
    """
    steps = [f"{name}_{step}" for name in operands for step in ("image", "row")]
    return (*(f"{name}*" for name in operands), *steps, *_GRID, *own)


def widest(isa: Isa) -> int:
    """Pieces in the vectors of an instruction set."""
    return 4 * isa.lanes // PIECE


def masks(pieces: int) -> bool:
    """Whether rows may be shorter than a vector of so many pieces."""
    return pieces == 4


class Rows:
    """Writes a kernel: one result byte for the bytes at its place in one or two operands.

    It handles as many pieces of 16 bytes at once as `vectors` says, or with 0 one byte.
    """

    operands: tuple[str, ...] = ("x", "y")

    def __init__(self, spec: KernelSpec, isa: Isa, own: Sequence[str]) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow()
        self.bytes = Bytes(self.w, isa, 4 * spec.vectors)
        self.width = PIECE * spec.vectors
        self.kind = self.bytes.kind if spec.vectors else "i8"
        self.w.label("entry")
        self.a = argument_loader(self.w, struct_names(self.operands, own))

    def value(self, operands: list[str], column: str, start: str) -> str:
        """The result of vectors that start at this column, the first of its turn being number `start`."""
        raise NotImplementedError

    def entry(self, operands: list[str], column: str, offset: int) -> str:
        """The result of single bytes, so many after this column."""
        raise NotImplementedError

    def text(self) -> str:
        w, a = self.w, self.a
        if masks(self.spec.vectors):
            bits = w.let(f"bitcast i64 {a['mask']} to <64 x i1>")
            whole = w.let(f"icmp eq i64 {a['mask']}, -1")
        else:
            bits = whole = ""
        with w.tiles(a["tiles"]) as tile:
            rest, part = w.split(tile, a["parts"])
            image, chunk = w.split(rest, a["chunks"])
            row, column = w.mul(chunk, a["chunk"]), w.mul(part, a["part"])
            row_end = w.least(w.add(row, a["chunk"]), a["rows"])
            column_end = w.least(w.add(column, a["part"]), a["columns"])
            images = {name: w.at(a[name], w.mul(image, a[f"{name}_image"])) for name in self.operands}
            with w.loop(row, row_end, 1) as at_row:
                lines = {name: w.at(images[name], w.mul(at_row.index, a[f"{name}_row"])) for name in self.operands}
                if self.spec.vectors:
                    self._vectors(lines, column, column_end, bits, whole)
                else:
                    self._entries(lines, column, column_end)
        return w.kernel()

    def _vectors(self, lines: Mapping[str, str], column: str, end: str, bits: str, whole: str) -> None:
        w = self.w
        with w.loop(column, end, self.width) as at:
            place = w.least(at.index, self.a["last"])
            pointers = [w.at(lines[name], place) for name in self.operands]
            result = self.value([self._load(p, bits) for p in pointers[:-1]], place, at.index)
            self._store(result, pointers[-1], bits, whole)

    def _entries(self, lines: Mapping[str, str], column: str, end: str) -> None:
        """Single bytes of rows."""
        w = self.w
        for first, count in w.runs(column, end, (_TOGETHER, 1)):
            *sources, target = [w.at(lines[name], first) for name in self.operands]
            kind, together = f"<{count} x i8>", "poison"
            for i in range(count):
                entry = self.entry([w.load("i8", w.at(source, i)) for source in sources], first, i)
                together = w.let(f"insertelement {kind} {together}, i8 {entry}, i32 {i}")
            w.store(kind, together, target)

    def splat(self, name: str) -> str:
        """A float argument in every lane."""
        one = self.w.let(f"bitcast i32 {self.a[name]} to float")
        return self.w.splat(self.bytes.lanes, "float", one)

    def added(self) -> str:
        """The argument `add` in every 16-bit lane."""
        return self.w.splat(2 * self.bytes.lanes, "i16", self.w.let(f"trunc i32 {self.a['add']} to i16"))

    def _load(self, pointer: str, bits: str) -> str:
        if not bits:
            return self.w.load(self.kind, pointer)
        rest = (("i32", "1"), ("<64 x i1>", bits), (self.kind, "zeroinitializer"))
        return self.w.call(self.kind, "llvm.masked.load.v64i8.p0", ("ptr", pointer), *rest)

    def _store(self, value: str, pointer: str, bits: str, whole: str) -> None:
        w = self.w
        if not bits:
            w.store(self.kind, value, pointer)
            return
        w.do(f"br i1 {whole}, label %store_whole, label %store_cut")
        w.label("store_whole")
        w.store(self.kind, value, pointer)
        w.jump("stored")
        w.label("store_cut")
        mask = (("ptr", pointer), ("i32", "1"), ("<64 x i1>", bits))
        w.call("void", "llvm.masked.store.v64i8.p0", (self.kind, value), *mask)
        w.jump("stored")
        w.label("stored")
