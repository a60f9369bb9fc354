"""Planned products of a few float32 rows with a right matrix whose columns lie one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import DOT_BLOCK
from qrun.native.kernels.float_product import FloatProduct
from qrun.native.kernels.floats import FloatStack
from qrun.native.machine.engine import KernelCall, KernelSpec
from qrun.native.machine.memory import aligned_up

_ROWS, _DEPTH, _LARGE = 4, 64, 1 << 21
"""Up to so many rows, and from so many elements of k on, columns are read as they lie; those of constants, from so many bytes on:
smaller ones stay in the second-level cache, where rows are faster."""
_REGISTERS = {16: 24}
"""Sums that wait for each other, by lanes; others: 12."""
_NEAR, _AHEAD = 3 << 16, 768
"""Up to so many bytes of columns that are read together, the next ones are fetched meanwhile; else what follows in each."""
_TILES, _COLUMNS, _WORK = 4, 32, 20000
"""Tiles of a thread, where it is one of several; the least columns of a tile, each of which finds the lengths of rows; the least
products of one."""


def serves(rows: int, depth: int, columns: int, constant: bool) -> bool:
    """Whether products of this size are made so, rather than with a transposed copy of the right matrix; constant: which is then
    made once."""
    return 0 < rows <= _ROWS and depth >= _DEPTH and (not constant or 4 * depth * columns >= _LARGE)


def dot_call(product: FloatProduct, stack: FloatStack, pointers: Sequence[str], extents: Sequence[int]) -> KernelCall:
    """The call for products that are not empty. Operands as those of product_call."""
    engine, terms, left = product.engine, product.terms, stack.left
    lanes = engine.isa.lanes // 2
    panels, links = -(-stack.columns // lanes), -(-min(left.depth, DOT_BLOCK) // lanes)
    blocks = -(-left.depth // DOT_BLOCK)
    left = replace(left, links=links + lanes.bit_length() + blocks)
    stack = replace(stack, left=left)
    share = -(-panels // (_TILES * engine.threads)) if engine.threads > 1 else panels
    least = max(_COLUMNS, _WORK // (left.rows * left.depth)) // lanes
    block = min(panels, max(share, least))
    together = _together(engine.isa, left.rows)
    spec = KernelSpec("float_dot", engine.isa.name, left.rows, 1, together, terms.form, terms.out, False)
    squares_at = aligned_up(8 * left.rows)
    sums_at = squares_at + 64
    words = {"b_column": stack.b_column, "panels": panels, "panel_block": block}
    wide = together * stack.b_column
    words["ahead"] = wide if wide <= _NEAR else _AHEAD
    words |= {"squares_at": squares_at, "sums_at": sums_at, "tiles": len(stack.starts) * -(-panels // block)}
    scratch = sums_at + 8 * lanes * left.rows
    return product.call(spec, stack, words, {}, pointers, extents, scratch)


def _together(isa: Isa, rows: int) -> int:
    """How many columns are read together: a power of two, so that their sums and squares fit the registers."""
    lanes, most = isa.lanes // 2, _REGISTERS.get(isa.lanes, 12)
    count = lanes
    while count > 1 and count * (rows + 1) > most:
        count //= 2
    return count
