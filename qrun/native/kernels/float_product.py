"""Planned products of float32: how they are cut into tiles, and strips that fit the registers; what operations that
have some share; and the call of the kernel that serves all."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.floats import DEPTH, PITCH
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import NARROW
from qrun.native.kernels.floats import (
    ElementRecheck,
    Exact,
    FloatPanels,
    FloatStack,
    FloatTerms,
    LeftRows,
    narrower,
    stack_call,
)
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operation
from qrun.native.machine.memory import aligned_up

_ROW_BLOCK = 128
_SUMS = 1 << 18
"""Rows of a tile, and bytes of sums that wait between two blocks of k."""
_DIRECT = 8
"""Up to so many rows the right matrix is converted as it is read."""
_KNOWN = 64
"""The same if the lengths of its columns are known."""
_CONVERT, _PACK, _TAKE = 6.0, 3.0, 20000
"""What costs as much as so many products: a number of a tile's rows, one of its panels, taking a tile."""


def direct(rows: int, known: bool) -> bool:
    """Whether the right matrix is converted as it is read. known: the lengths of its columns are."""
    return rows <= (_KNOWN if known else _DIRECT)


def block(isa: Isa, rows: int, columns: int, known: bool, split: bool = False) -> tuple[int, int]:
    """Rows by vectors of a strip: what loads, empty columns and rows made twice cost together is least. known: the
    lengths of columns are, which else take the registers of one row more where there are few.
    split: vectors are added in halves."""
    need = -(-columns // (isa.lanes // 2))

    def cost(size: tuple[int, int]) -> float:
        return -(-need // size[1]) * size[1] * _row_cost(rows, *size)

    if rows <= _DIRECT:
        sums = max(r * v for v, r in isa.real_rows.items()) // (2 if split else 1)
        most = min(need, max(1, sums // (rows + (not known))))
        return min(((rows, vectors) for vectors in range(most, 0, -1)), key=cost)
    return min(((min(r - less, rows), v) for v, r in isa.real_rows.items() for less in (0, 1)), key=cost)


def _row_cost(rows: int, high: int, vectors: int) -> float:
    """What so many rows of a vector of columns cost in strips of `high` rows, in products and loads."""
    return -(-rows // high) * high * (1 + 0.3 * (high + vectors) / (high * vectors))


def block_of_one_width(isa: Isa, rows: int) -> tuple[int, int]:
    """As `block`, for five rows or more, with the same number of vectors for all of them: weights are laid out once."""
    vectors, most = max(isa.real_rows.items())
    heights = range(min(most, rows), most // 2 - 1, -1)
    return min(((high, vectors) for high in heights), key=lambda size: _row_cost(rows, *size))


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
        without work, larger ones convert less twice. strip: its rows and columns;
        ready: whether rows need no conversion;
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
        for tall, parts in itertools.product(
            sorted(heights, reverse=True), (1, 2, 4, 8, panels) if threads > 1 else (1,)
        ):
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
    """As `scratch_places`. strip: its rows and columns; blocks: those of k; sizes: bytes of converted rows, of the
    converted part of the right matrix, of what is kept of each row, and of lengths, behind which the sums lie."""
    rows, width = strip
    left, right, squares, lengths = sizes
    slot = 8 * rows * width if blocks > 1 else 0
    lengths_at = aligned_up(left + right + squares)
    sums_at = aligned_up(lengths_at + lengths)
    places = {"slot": slot, "right_at": left, "squares_at": left + right, "lengths_at": lengths_at, "sums_at": sums_at}
    return places, sums_at + max(slot * -(-cut.rows // rows) * cut.panels, 8 * rows * width)


_AHEAD, _FEW, _FAR = (8, 16), 4, 1 << 20
"""Rows of the right matrix by which it is fetched ahead where it is read as it lies, for up to _FEW left rows and for
more, and bytes of it from which on that
pays: it comes from beyond the second-level cache, a short piece of each row at a time."""


class FloatProduct(Operation):
    """Sums of products of floats, each rounded once.

    terms: what becomes of them. exact: makes those that are in doubt. arrays: operands that are constant, by word.
    """

    engine: Engine
    terms: FloatTerms
    exact: Exact
    arrays: Mapping[str, Array] = {}

    def limited(self, low: float, high: float, zero: float) -> Self:
        return self.again(terms=replace(self.terms, limits=(low, high, zero)))

    def narrowed(self, dtype: np.dtype[Any]) -> Self:
        terms = replace(self.terms, out=NARROW[dtype.name])
        return self.again(terms=terms, exact=narrower(self.exact, dtype))

    def call(
        self,
        spec: KernelSpec,
        stack: FloatStack,
        words: Mapping[str, int],
        arrays: Mapping[str, Array],
        operands: Sequence[str] | Mapping[str, int],
        extents: Sequence[int],
        scratch: int,
    ) -> KernelCall:
        """The call of a kernel that makes these products, as stack_call has it; arrays: besides the operation's own."""
        recheck, held = ElementRecheck(stack, self.exact), {**self.arrays, **arrays}
        return stack_call(self.engine, spec, stack, self.terms, recheck, words, held, operands, extents, scratch)


def product_call(
    product: FloatProduct,
    stack: FloatStack,
    pointers: Sequence[str] | Mapping[str, int],
    extents: Sequence[int],
    *,
    weights: FloatPanels | None = None,
    strip: tuple[int, int] | None = None,
) -> KernelCall:
    """The call for products that are not empty. pointers: the words of operands that are not constant, in order, or
    which operand each is; extents: bytes of each that are touched.
    weights: b, if it is to lie panel after panel; starts then say which matrix it is.
    strip: rows and vectors of a strip; None: those of `block`."""
    engine, left = product.engine, stack.left
    lanes = engine.isa.lanes // 2
    known = weights is not None
    near = direct(left.rows, known)
    rows, vectors = strip or block(engine.isa, left.rows, stack.columns, known)
    width, image = vectors * lanes, left.image is not None
    panels, (taps, depth) = -(-stack.columns // width), left.steps
    held: dict[str, Array] = {}
    if weights is not None:
        held["b*"] = weights.panels(width)
        stack = stack.in_panels(width)
    cut = Cut.of(len(stack.starts), (left.rows, stack.columns, stack.k), (rows, width), engine.threads, image)
    places, scratch = scratch_places(left, cut, (rows, vectors), lanes, near)
    far = near and not known and stack.k * stack.b_row > _FAR
    kind = "float_lines" if left.line else "float_image" if image else "float_product"
    fetched = -(-4 * width // 64) if far else 0
    operands = _places(left, near, known)
    form = product.terms.form, product.terms.out, False
    spec = KernelSpec(kind, engine.isa.name, rows, vectors, UNROLL, *form, fetched, operands=operands)
    row_blocks, panel_blocks = -(-left.rows // cut.rows), -(-panels // cut.panels)
    words = {"ahead": left.line or _AHEAD[left.rows > _FEW] * stack.b_row, "tap_step": taps, "depth_step": depth}
    words |= {**places, "row_block": cut.rows, "panels": panels, "panel_block": cut.panels}
    words["tiles"] = len(stack.starts) * row_blocks * panel_blocks
    if weights is not None:
        found = known_lengths(stack, weights.lengths(), width)
        starts = found["batches*"]
        if left.image is not None:
            channels, numbers = left.image
            first = stack.starts[:, 0] // 8 % numbers
            starts[:, 5] = 8 * (channels + first // left.depth - first)
        held |= found
        words["known_odd"] = int(not np.isfinite(found["known*"]).all())
    return product.call(spec, stack, words, held, pointers, extents, scratch)


def known_lengths(stack: FloatStack, lengths: Array, width: int) -> dict[str, Array]:
    """Words of kernels that know the lengths of columns, float64 [right matrices, columns],
    and read panels of this width."""
    panels = -(-stack.columns // width)
    starts = np.pad(stack.starts, [(0, 0), (0, 2)])
    starts[:, 4] = stack.starts[:, 1] // (stack.k * stack.b_row * (panels if stack.panel else 1)) * (8 * width * panels)
    return {"batches*": starts, "known*": np.pad(lengths, [(0, 0), (0, width * panels - stack.columns)])}


def _places(left: LeftRows, near: bool, known: bool) -> str:
    """Where the operands of a product are, as its kernel is told."""
    rows = "rows" if left.offsets is None else "image" if left.image else "taps"
    if known:
        return f"{rows}-{'near' if near else 'panels'}"
    return f"{rows}-{'direct' if near else 'packed'}"
