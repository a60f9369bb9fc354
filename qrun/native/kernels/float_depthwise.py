"""Planned convolutions of float32 whose channels are made of one channel, or of a few at their own place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.emit.float_conv import shared_pixels
from qrun.native.emit.isa import Isa
from qrun.native.kernels.float_product import FloatProduct, even
from qrun.native.kernels.floats import FloatStack, column_lengths
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
    engine, arrays, terms = product.engine, product.arrays, product.terms
    isa, columns, width, (kernel, stride, dilation) = engine.isa, stack.columns, places.out[-1], line
    offsets = places.offsets(pixel).reshape(-1, width, stack.left.taps // kernel, kernel)
    height, _, lines, _ = offsets.shape
    if kernel > _LINE:  # each element is a line of its own
        offsets, lines, kernel = offsets.reshape(height, width, lines * kernel, 1), lines * kernel, 1
    parts = -(-width // _NEIGHBOURS)
    rows, vectors = -(-width // parts), _vectors(isa, columns, kernel)
    panel = vectors * (isa.lanes // 2)
    table, read = _windows(offsets, rows, stride, dilation)
    panels = -(-columns // panel)
    high, wide = _tile(engine.threads, stack, len(table), rows, panels, panel)
    cut = "-cut" if columns < panel else ""
    form = terms.form, terms.out, False
    spec = KernelSpec("float_depthwise", isa.name, rows, vectors, kernel, *form, operands=f"{stride}-{dilation}{cut}")
    weights = _weights(arrays["b*"], panel)
    finite = np.isfinite(weights["sizes*"]).all() and np.isfinite(arrays.get("addend*", 0.0)).all()
    held = {**weights, "windows*": table, "spans*": _spans(read, high)}
    words = {
        "pixel": pixel,
        "lines": lines,
        "window": 4 * table.shape[1],
        "count": len(table),
        "row_block": high,
        "weights_row": 8 * weights["weights*"].shape[1],
        "known_odd": int(not finite),
        "panels": panels,
        "panel_block": wide,
        "tiles": len(stack.starts) * -(-len(table) // high) * -(-panels // wide),
    }
    return product.call(spec, stack, words, held, ("a*", "y*"), extents, 8 * (rows + 1) * panel)


def _weights(given: Array, panel: int) -> dict[str, Array]:
    """The weights [taps, channels] of a panel at least, in float64,
    and how large those of each channel are together."""
    weights = np.pad(given.astype(np.float64), [(0, 0), (0, max(0, panel - given.shape[1]))])
    with np.errstate(all="ignore"):
        return {"weights*": weights, "sizes*": np.abs(weights).sum(axis=0)}


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
    return max(1, min(most, columns // (isa.lanes // 2)))


def _windows(offsets: Ints, rows: int, stride: int, dilation: int) -> tuple[Array, Ints]:
    """The table of the kernel, and the offsets in it. offsets: [height, width, lines of the kernel, elements]."""
    height, width, lines, kernel = offsets.shape
    first = np.minimum(np.arange(0, width, rows), width - rows)
    pixels = [uses[0] for uses in shared_pixels(rows, kernel, stride, dilation).values()]
    results, elements = (np.array(numbers) for numbers in zip(*pixels, strict=True))
    read = offsets[:, first[:, None] + results, :, elements].transpose(2, 0, 3, 1)
    starts = (np.arange(height)[:, None] * width + first).reshape(-1, 1)
    found = read.reshape(len(starts), lines * len(pixels))
    return np.ascontiguousarray(np.concatenate([starts, found], axis=1), np.int32), found


def _spans(read: Ints, windows: int) -> Ints:
    """For each block of windows: bytes from the image's start to the first pixel that is read, and beyond the last."""
    starts = np.arange(0, len(read), windows)
    far = np.iinfo(np.int64).max
    first = np.minimum.reduceat(np.where(read < 0, far, read).min(axis=1), starts)
    last = np.maximum.reduceat(read.max(axis=1), starts)
    return np.stack([np.where(last < 0, 0, first), last + 1], axis=1)


def grouped_call(product: FloatProduct, stack: FloatStack, extents: Sequence[int]) -> KernelCall:
    """The call for groups of several channels. product: of weights [taps, channels of a group, channels]."""
    engine, terms = product.engine, product.terms
    left, width = stack.left, engine.isa.lanes // 2
    rows, panels, high = min(_ROWS, left.rows), -(-stack.columns // width), left.rows
    if engine.threads > 1:
        work = max(stack.macs // (_TILES_PER_THREAD * engine.threads), _WORK)
        high = max(rows, work // (stack.columns * stack.k))
    high = even(left.rows, high, rows)
    spec = KernelSpec("float_grouped", engine.isa.name, rows, 1, left.depth, terms.form, terms.out, False)
    words = {"row_block": high, "panels": panels, "tiles": len(stack.starts) * -(-left.rows // high)}
    known = np.pad(column_lengths(product.arrays["b*"]), [(0, 0), (0, width * panels - stack.columns)])
    return product.call(spec, stack, words, {"known*": known}, ("a*", "y*"), extents, 16 * rows * width)
