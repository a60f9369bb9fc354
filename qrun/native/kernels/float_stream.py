"""Planned products of a few float32 rows with constant right matrices that are more than near memory holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qrun.native.kernels.float_product import FloatProduct, known_lengths
from qrun.native.kernels.floats import FloatStack
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec
from qrun.native.machine.memory import aligned_up

_ROWS, _FAR = 12, 1 << 20
"""Up to so many rows, and from so many bytes of a right matrix on: smaller ones stay in the second-level cache."""
_BESIDE, _LINE = 8, 16
"""Rows of the right matrix that are read side by side, and columns of them that a line of memory has."""
_TILES, _COLUMNS = 2, 512
"""Tiles of a thread, where it is one of several, and the least columns of one: memory is read in pieces of so many."""


def streams(engine: Engine, stack: FloatStack) -> bool:
    """Whether products of constant right matrices are made so."""
    return stack.left.rows <= _ROWS and stack.k * stack.b_row >= _FAR


def stream_call(
    product: FloatProduct,
    stack: FloatStack,
    pointers: Sequence[str],
    extents: Sequence[int],
    *,
    lengths: Callable[[], Array],
) -> KernelCall:
    """The call for products that are not empty. Operands as those of product_call."""
    engine, terms, left = product.engine, product.terms, stack.left
    lanes, rows, depth = engine.isa.lanes // 2, left.rows, left.depth
    vectors = max(1, min(_LINE // lanes, max(r * v for v, r in engine.isa.real_rows.items()) // rows))
    width = vectors * lanes
    links = _BESIDE + -(-depth // _BESIDE) + 1
    panels, stack = -(-stack.columns // width), replace(stack, left=replace(left, links=links))
    share = -(-panels // (_TILES * engine.threads)) if engine.threads > 1 else panels
    block = min(panels, max(share, _COLUMNS // width))
    size, form = (rows, vectors, _BESIDE), (terms.form, terms.out, False)
    spec = KernelSpec("float_stream", engine.isa.name, *size, *form, operands="rows-known")
    pitch = aligned_up(8 * depth) + 64
    lengths_at = rows * pitch
    sums_at = aligned_up(lengths_at + 8 * rows)
    found = known_lengths(stack, lengths(), width)
    words = {"row_block": rows, "panels": panels, "panel_block": block, "pitch": pitch, "lengths_at": lengths_at}
    words |= {"sums_at": sums_at, "known_odd": int(not np.isfinite(found["known*"]).all())}
    words["tiles"] = len(stack.starts) * -(-panels // block)
    scratch = sums_at + 8 * rows * width * block
    return product.call(spec, stack, words, found, pointers, extents, scratch)
