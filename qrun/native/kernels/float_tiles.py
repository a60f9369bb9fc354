"""How products of floats are cut: rows of the left operand, strips that fit the registers, tiles of rows and panels, and what
lies where in the memory of a thread."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from qrun.declare.frozen import frozen
from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.floats import DEPTH, PITCH
from qrun.native.emit.isa import Isa
from qrun.native.machine.memory import Array, aligned_up

_ROW_BLOCK = 128
_SUMS = 1 << 18
"""Rows of a tile, and bytes of sums that wait between two blocks of k."""
_DIRECT = 8
"""Up to so many rows the right matrix is converted as it is read."""
_KNOWN = 64
"""The same if the lengths of its columns are known."""
_CONVERT, _PACK, _TAKE = 6.0, 3.0, 20000
"""What costs as much as so many products: a number of a tile's rows, one of its panels, taking a tile."""


@frozen
class LeftRows:
    """Where rows of a product's left operand are: k is a tap of the row and an element there.

    row: bytes from one row to the next. offsets: int32 [rows, taps], bytes from the product's start to each tap, -1 for
    zeros; None if each row has one tap. column: bytes from what `group` columns are made of to what the next ones are.
    whole: whether all blocks of k but the last have DEPTH elements. image: of one that is float64 already (widen.py), the channels
    and all numbers of a pixel, or of a line, if taps are parts of lines; line: its bytes then. links: how many roundings a sum may have one after the other, if it is not made block by block.
    """

    rows: int
    depth: int
    row: int
    taps: int = 1
    offsets: Array | None = None
    column: int = 0
    group: int = 1
    whole: bool = False
    image: tuple[int, int] | None = None
    line: int = 0
    links: float = 0

    @property
    def steps(self) -> tuple[int, int]:
        """Taps, and elements of each, of a block of k."""
        if self.whole:
            return 1, min(DEPTH, self.depth)
        if self.depth < DEPTH:
            return min(DEPTH // self.depth, self.taps), self.depth
        blocks = -(-self.depth // DEPTH)
        return 1, -(-self.depth // (blocks * UNROLL)) * UNROLL

    @property
    def chain(self) -> float:
        """How many additions may follow each other in a sum."""
        if self.links:
            return self.links
        if self.column:
            return self.taps * self.depth
        taps, depth = self.steps
        return min(taps * depth, self.taps * self.depth) + self.blocks

    @property
    def blocks(self) -> int:
        taps, depth = self.steps
        return -(-self.taps // taps) * -(-self.depth // depth)


def direct(rows: int, known: bool) -> bool:
    """Whether the right matrix is converted as it is read. known: the lengths of its columns are."""
    return rows <= (_KNOWN if known else _DIRECT)


def block(isa: Isa, rows: int, columns: int, known: bool, split: bool = False) -> tuple[int, int]:
    """Rows by vectors of a strip: what loads, empty columns and rows made twice cost together is least. known: the lengths
    of columns are, which else take the registers of one row more where there are few. split: vectors are added in halves."""
    need = -(-columns // (isa.lanes // 2))

    def cost(size: tuple[int, int]) -> float:
        high, vectors = size
        made = -(-need // vectors) * vectors * -(-rows // high) * high
        return made * (1 + 0.3 * (high + vectors) / (high * vectors))

    if rows <= _DIRECT:
        sums = max(r * v for v, r in isa.real_rows.items()) // (2 if split else 1)
        most = min(need, max(1, sums // (rows + (not known))))
        return min(((rows, vectors) for vectors in range(most, 0, -1)), key=cost)
    return min(((min(r - less, rows), v) for v, r in isa.real_rows.items() for less in (0, 1)), key=cost)


@frozen
class Cut:
    """How products are cut into tiles: rows and panels of each."""

    rows: int
    panels: int

    @classmethod
    def of(
        cls,
        number: int,
        size: tuple[int, int, int],
        strip: tuple[int, int],
        threads: int,
        ready: bool,
        depth: int = DEPTH,
    ) -> Cut:
        """The cut of products of this size (rows, columns, k) by which threads are done first: smaller tiles leave none
        without work, larger ones convert less twice. strip: its rows and columns; ready: whether rows need no conversion;
        depth: elements of a block of k.
        """
        rows, columns, k = size
        high, width = strip
        panels = -(-columns // width)

        def cost(cut: Cut) -> float:
            tiles = number * -(-rows // cut.rows) * -(-panels // cut.panels)
            wide = cut.panels * width
            work = cut.rows * wide * k * (1 + _PACK / cut.rows + (0 if ready else _CONVERT / wide)) + _TAKE
            return work * (max(tiles / threads + 0.5, 1.0) if threads > 1 else tiles)

        heights = {
            even(rows, most, high) for most in ((_ROW_BLOCK, 96, 64, 32, high) if threads > 1 else (_ROW_BLOCK,))
        }
        cuts = []
        for tall, parts in product(sorted(heights, reverse=True), (1, 2, 4, 8, panels) if threads > 1 else (1,)):
            most = max(1, _SUMS // (8 * tall * width)) if k > depth else panels
            cuts.append(cls(tall, even(panels, min(most, -(-panels // parts)), 1)))
        return min(cuts, key=cost)


def even(count: int, most: int, step: int) -> int:
    """About `most` or less, a multiple of `step`, so that parts of a number are alike."""
    parts = -(-count // max(most, step))
    return -(-count // (parts * step)) * step


def scratch_places(
    left: LeftRows, cut: Cut, strip: tuple[int, int], lanes: int, near: bool
) -> tuple[Mapping[str, int], int]:
    """Words that say what lies where in the thread's memory, and how many bytes it has. strip: its rows, and vectors of
    columns; near: the right matrix is converted as it is read."""
    width = strip[1] * lanes
    sizes = (
        0 if left.image else cut.rows * PITCH,
        0 if near else 8 * width * (DEPTH + UNROLL),
        0 if left.image else cut.rows * lanes * 8,
        8 * (cut.rows + cut.panels * width),
    )
    return laid_out(cut, (strip[0], width), left.blocks, sizes)


def laid_out(
    cut: Cut, strip: tuple[int, int], blocks: int, sizes: tuple[int, int, int, int]
) -> tuple[Mapping[str, int], int]:
    """As `scratch_places`. strip: its rows and columns; blocks: those of k; sizes: bytes of converted rows, of the converted part
    of the right matrix, of what is kept of each row, and of lengths, behind which the sums lie."""
    rows, width = strip
    left, right, squares, lengths = sizes
    slot = 8 * rows * width if blocks > 1 else 0
    lengths_at = aligned_up(left + right + squares)
    sums_at = aligned_up(lengths_at + lengths)
    places = {
        "slot": slot,
        "right_at": left,
        "squares_at": left + right,
        "lengths_at": lengths_at,
        "sums_at": sums_at,
    }
    return places, sums_at + max(slot * -(-cut.rows // rows) * cut.panels, 8 * rows * width)
