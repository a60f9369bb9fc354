"""Planned convolutions of float32 whose channels are made of one channel, or of a few at their own place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.emit.float_conv import shared_pixels
from qrun.native.emit.isa import Isa
from qrun.native.kernels.fma_product import FloatProduct, FloatStack, even
from qrun.native.kernels.layout import Taps, Window
from qrun.native.machine.engine import Array, Ints, KernelCall, KernelSpec

_NEIGHBOURS, _LINE = 8, 7
"""The most results that are made together, and elements of a kernel's line that have registers."""
_NARROW_LINE = 3
"""The same where a panel has several vectors of channels."""
_ROWS = 6
"""Pixels of groups of several channels that are made together."""
_PIXELS = 1024
"""Results of a tile in one channel: what they read stays near."""
_WORK = 1 << 15
"""Products of a tile that are worth the taking."""
_TILES_PER_THREAD = 8
_FLOAT = np.dtype(np.float32)


def depthwise_call(
    product: FloatProduct,
    places: Window | Taps,
    line: tuple[int, int, int],
    stack: FloatStack,
    extents: Sequence[int],
    pixel: int,
) -> KernelCall:
    """The call for channels of one. line: elements of a line of the kernel, and how far they are moved from result to
    result, and are apart; 1 where neighbours along the last axis share nothing.
    product: of weights [taps, channels]. pixel: bytes of one of the image."""
    engine, terms = product.engine, product.terms
    isa, columns, width, (kernel, stride, dilation) = engine.isa, stack.columns, places.out[-1], line
    offsets = places.offsets(pixel).reshape(-1, width, stack.k // kernel, kernel)
    height, _, lines, _ = offsets.shape
    if kernel > _LINE:  # each element is a line of its own
        offsets, lines, kernel = offsets.reshape(height, width, lines * kernel, 1), lines * kernel, 1
    rows = -(-width // -(-width // _NEIGHBOURS))
    vectors = _vectors(isa, columns, kernel)
    panel = vectors * isa.lanes
    table = _windows(offsets, rows, stride, dilation)
    panels = -(-columns // panel)
    high, wide = _tile(engine.threads, stack, len(table), rows, panels, panel)
    cut = "-cut" if columns < panel else ""
    form = terms.form, terms.out, False
    spec = KernelSpec("float_depthwise", isa.name, rows, vectors, kernel, *form, operands=f"{stride}-{dilation}{cut}")
    held: dict[str, Array] = {"windows*": table, "padding*": np.zeros(columns, _FLOAT), "batches*": stack.starts}
    words = {
        "b_row": stack.b_row,
        "y_row": stack.y_row,
        "columns": columns,
        "lines": lines,
        "window": 4 * table.shape[1],
        "count": len(table),
        "row_block": high,
        "panels": panels,
        "panel_block": wide,
        "tiles": len(stack.starts) * -(-len(table) // high) * -(-panels // wide),
    }
    return product.call(spec, words, held, ("a*", "y*"), extents, 0)


def _tile(threads: int, stack: FloatStack, count: int, rows: int, panels: int, panel: int) -> tuple[int, int]:
    """How many of `count` windows, of so many pixels each, and how many panels, of so many channels each,
    a tile has."""
    high = even(count, max(1, _PIXELS // rows), 1)
    if threads == 1:
        return high, panels
    most = max(1, _WORK // (panel * rows * stack.k))
    while high > most and count // high * len(stack.starts) < 2 * threads:
        high = -(-high // 2)
    tiles = len(stack.starts) * -(-count // high)
    return high, even(panels, max(1, most // high, panels * tiles // (_TILES_PER_THREAD * threads)), 1)


def _vectors(isa: Isa, columns: int, kernel: int) -> int:
    """Vectors of channels in a panel: their sums, and the weights of a line, fit the registers."""
    most = isa.vectors // 2 if kernel <= _NARROW_LINE else 1
    return max(1, min(most, columns // isa.lanes))


def _windows(offsets: Ints, rows: int, stride: int, dilation: int) -> Array:
    """The table of the kernel. offsets: [height, width, lines of the kernel, elements]."""
    height, width, lines, kernel = offsets.shape
    first = np.minimum(np.arange(0, width, rows), width - rows)
    pixels = [uses[0] for uses in shared_pixels(rows, kernel, stride, dilation).values()]
    results, elements = (np.array(numbers) for numbers in zip(*pixels, strict=True))
    read = offsets[:, first[:, None] + results, :, elements].transpose(2, 0, 3, 1)
    starts = (np.arange(height)[:, None] * width + first).reshape(-1, 1)
    found = read.reshape(len(starts), lines * len(pixels))
    return np.ascontiguousarray(np.concatenate([starts, found], axis=1), np.int32)


def grouped_call(
    product: FloatProduct, offsets: Ints, depth: int, stack: FloatStack, extents: Sequence[int]
) -> KernelCall:
    """The call for groups of `depth` channels. product: of weights [channels of a group, taps, channels].
    offsets: [results, taps], bytes from the image's start to each pixel that is read, -1 for padding."""
    engine, terms, lanes = product.engine, product.terms, product.engine.isa.lanes
    left = stack.left
    rows, panels, high = min(_ROWS, left.rows), -(-stack.columns // lanes), left.rows
    if engine.threads > 1:
        work = max(stack.macs // (_TILES_PER_THREAD * engine.threads), _WORK)
        high = max(rows, work // (stack.columns * stack.k))
    high = even(left.rows, high, rows)
    spec = KernelSpec("float_grouped", engine.isa.name, rows, 1, depth, terms.form, terms.out, False)
    words = {
        "a_row": 4 * offsets.shape[1],
        "b_row": stack.b_row,
        "y_row": stack.y_row,
        "rows": left.rows,
        "columns": stack.columns,
        "taps": offsets.shape[1],
        "row_block": high,
        "panels": panels,
        "tiles": len(stack.starts) * -(-left.rows // high),
    }
    held: dict[str, Array] = {
        "offsets*": np.ascontiguousarray(offsets, np.int32),
        "padding*": np.zeros(stack.columns, _FLOAT),
        "batches*": stack.starts,
    }
    return product.call(spec, words, held, ("a*", "y*"), extents, 0)
