"""The grids that elementwise kernels of bytes walk: images of rows of columns, with strides for each operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrun.declare.frozen import frozen, replace
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import PIECE, masks, vector_pieces
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, share, size

SINGLE = ("table", "tables")
"""The forms that look up one element after the other: in one table, and in one table per column."""
_TABLES = 128
"""Columns of a tile whose tables stay in the first-level cache."""


@frozen
class RowGrid:
    """The grid that one kernel call walks.

    image_steps, row_steps: bytes from one image, or row, to the next, for each operand; 0 if it repeats the same one.
    starts: the byte at which each operand's columns begin.
    """

    images: int
    rows: int
    columns: int
    image_steps: tuple[int, ...]
    row_steps: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(
        cls, shape: Sequence[int], columns: int, strides: Sequence[int], starts: Sequence[int] = (), flat: bool = True
    ) -> RowGrid:
        """Rows of `columns` bytes, `strides` apart, for operands of one shape.

        flat: as a single row if there are no gaps.
        """
        total = size(shape)
        starts = tuple(starts) or (0,) * len(strides)
        steps = tuple(stride or columns for stride in strides)
        if flat and all(step == columns for step in steps):
            return cls(1, 1, total, (0,) * len(steps), (total,) * len(steps), starts)
        return cls(1, total // max(columns, 1), columns, (0,) * len(steps), steps, starts)

    @property
    def bytes(self) -> int:
        """The bytes of the result."""
        return self.images * self.rows * self.columns

    def part(self, first: int, columns: int) -> RowGrid:
        """The grid of some of the columns."""
        return replace(self, columns=columns, starts=tuple(start + first for start in self.starts))

    def extents(self) -> tuple[int, ...]:
        """For each operand, bytes from its start to the last byte that is touched."""
        return tuple(
            start + (self.images - 1) * image + (self.rows - 1) * row + self.columns
            for start, image, row in zip(self.starts, self.image_steps, self.row_steps, strict=True)
        )

    def pieces(self, isa: Isa) -> int:
        """The pieces of 16 bytes that kernels can handle at once; 0 if rows are shorter than the smallest vector."""
        sizes = (vector_pieces(isa), 1)
        return next((pieces for pieces in sizes if masks(pieces) or self.columns >= PIECE * pieces), 0)


@frozen
class Kernel:
    """An elementwise kernel with its constants. words: numbers by name; arrays: the arrays to which words point."""

    kind: str
    form: str
    out: str
    signed: bool
    operands: tuple[str, ...]
    words: Mapping[str, int]
    arrays: Mapping[str, Array]

    def section(
        self, engine: Engine, grid: RowGrid, places: Sequence[int], count: int, shown: tuple[int, int]
    ) -> KernelCall:
        """The call on a grid that is not empty.

        places: for each operand of the kernel, its number among the operation's operands; count: how many those are.
        shown: the first channel of the result that it computes, and the number of channels.
        """
        pieces = 0 if self.form in SINGLE else grid.pieces(engine.isa)
        spec = KernelSpec(self.kind, engine.isa.name, 1, pieces, 1, self.form, self.out, self.signed)
        width = PIECE * pieces or 1
        whole = grid.columns >= width
        part, chunk = _tiles(grid, width, engine.threads, self.form == SINGLE[1])
        parts, chunks = -(-grid.columns // part), -(-grid.rows // chunk)
        words = dict(self.words) | {
            "columns": grid.columns,
            "rows": grid.rows,
            "chunk": chunk,
            "chunks": chunks,
            "part": part,
            "parts": parts,
            "tiles": grid.images * chunks * parts,
            "last": grid.columns - width if whole else 0,
            "mask": -1 if whole else (1 << grid.columns) - 1,
        }
        for name, start, image, row in zip(self.operands, grid.starts, grid.image_steps, grid.row_steps, strict=True):
            words |= {f"{name}*": start, f"{name}_image": image, f"{name}_row": row}
        extents = [0] * count
        for index, extent in zip(places, grid.extents(), strict=True):
            extents[index] = extent
        operands = dict(zip((f"{name}*" for name in self.operands), places, strict=True))
        first, channels = shown
        return engine.kernels.call(spec, operands, words, extents, self.arrays, first=first, channels=channels)


def _tiles(grid: RowGrid, width: int, threads: int, tables: bool) -> tuple[int, int]:
    """Columns and rows of a tile. tables: each column has a table of its own."""
    if grid.rows == 1 and grid.images == 1:
        return share(-(-grid.columns // width), width, threads) * width, 1
    columns = min(grid.columns, _TABLES) if tables else grid.columns
    return columns, min(share(grid.rows, columns, threads), grid.rows)
