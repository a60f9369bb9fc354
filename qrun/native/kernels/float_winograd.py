"""Convolutions of float32 by Winograd's minimal filtering:
where patches are, what a sum may be off, how work is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from qrun.native.emit.float_winograd import LINE, TAPS, TWO, Filtering, both
from qrun.native.emit.isa import Isa
from qrun.native.kernels.float_product import FloatProduct, even, known_lengths
from qrun.native.kernels.floats import FloatPanels, FloatStack
from qrun.native.kernels.layout import Window
from qrun.native.machine.engine import Array, Ints, KernelCall, KernelSpec
from qrun.native.machine.memory import aligned_up

_FLOAT = np.dtype(np.float32)
_BLOCK = 32
"""Channels of a block of k."""
_NEAR = 3 << 18
"""Bytes of transformed pixels that stay in the second-level cache beside what they meet."""
_PATCHES, _FEW = 64, 24
"""Patches of a tile at most; at least, unless there are fewer."""
_IMAGE, _FILTER, _TAKE = 5.0, 3.0, 20000
"""What costs as much as so many products: a transformed pixel, a transformed weight, taking a tile."""
_LEAST, _GAIN = 9, 0.62
"""Patches, and the part of the multiplications that is left, from which on the transforms cost more than they save."""


def worthwhile(isa: Isa, window: Window, depth: int, columns: int) -> bool:
    """Whether a convolution of so many channels to so many takes less time by patches than tap by tap."""
    if window.kernel != (TAPS, TAPS) or window.strides != (1, 1) or window.dilations != (1, 1):
        return False
    if min(window.out) < TWO.results or min(depth, columns) < isa.lanes // 2:
        return False
    patches = len(_corners(window))
    return patches >= _LEAST and patches * TWO.side**2 < _GAIN * window.out[0] * window.out[1] * TAPS**2


def _corners(window: Window) -> Ints:
    """The first line and column of each patch; the last ones overlap those before."""
    each = TWO.results
    down, across = (np.minimum(np.arange(0, n, each), n - each) for n in window.out)
    return np.stack([n.reshape(-1) for n in np.meshgrid(down, across, indexing="ij")], axis=1)


def _offsets(window: Window, corners: Ints, pixel: int) -> Ints:
    """int64 [patches, pixels of a patch]: bytes from the image's start; -1 in the padding."""
    reach = np.arange(TWO.side)
    y, x = (corners[:, n, None] + reach - window.pads[n] for n in (0, 1))
    inside = ((y >= 0) & (y < window.image[0]))[:, :, None] & ((x >= 0) & (x < window.image[1]))[:, None]
    return np.where(inside, (y[:, :, None] * window.image[1] + x[:, None]) * pixel, -1).reshape(len(corners), -1)


def matrix(transform: Any, width: int) -> Array:
    """The matrix of a transform of so many numbers."""
    return np.array([transform(list(row)) for row in np.eye(width)]).T


@cache
def lost(filtering: Filtering) -> float:
    """By how many units of roundoff, relative to the lengths of transformed pixels and weights,
    the transforms may be off."""
    image, kernel, result = filtering.roundings
    conditions = []
    for transform, width in ((filtering.image, filtering.side), (filtering.filter, TAPS)):
        made = matrix(transform, width)
        conditions.append((np.linalg.norm(abs(made), 2) / np.linalg.svd(made, compute_uv=False)[-1]) ** 2)
    return float(np.ceil(2 * (image * conditions[0] + kernel * conditions[1] + result)))


def transformed_lengths(matrices: Array) -> Array:
    """Of the transformed kernels of right matrices [number, taps, depth, N]: float64 [number, N]."""
    each = [matrices[:, tap].astype(np.float64) for tap in range(TAPS**2)]
    return np.asarray(np.sqrt(sum((x * x).sum(axis=1) for x in both(TWO.filter, each))))


def winograd_call(
    product: FloatProduct,
    window: Window,
    stack: FloatStack,
    extents: Sequence[int],
    weights: FloatPanels,
    pixel: int,
) -> KernelCall:
    """The call for a convolution that is `worthwhile`. stack: as its taps have it; pixel: bytes of one."""
    engine, terms = product.engine, product.terms
    left, lanes, corners = stack.left, engine.isa.lanes // 2, _corners(window)
    depth, number = left.depth, len(stack.starts)
    most = _PATCHES if len(corners) <= _PATCHES else max(min(_PATCHES, _NEAR // (8 * TWO.side**2 * depth)), _FEW)
    rows, vectors = _strip(engine.isa, len(corners), stack.columns)
    width = vectors * lanes
    panels = -(-stack.columns // width)
    patches, panel_block = _cut(number, (len(corners), stack.columns, depth), (rows, width, most), engine.threads)
    stack = stack.in_panels(width)
    blocks = -(-depth // _BLOCK)
    step = -(-depth // blocks)
    stack = replace(stack, left=replace(left, links=step + blocks + lost(TWO)))
    known = weights.memo.once("transformed", lambda: transformed_lengths(weights.matrices))
    places, scratch = _places(patches, depth, step, (rows, width))
    words = {
        **places,
        "depth_step": step,
        "line": window.out[1],
        "patches": len(corners),
        "row_block": patches,
        "panels": panels,
        "panel_block": panel_block,
        "tiles": number * -(-len(corners) // patches) * -(-panels // panel_block),
    }
    held = {
        "b*": weights.panels(width),
        "offsets*": np.ascontiguousarray(_offsets(window, corners, pixel), np.int32),
        "padding*": np.zeros(depth, _FLOAT),
        "pixels*": np.ascontiguousarray(corners @ [window.out[1], 1], np.int32),
        **known_lengths(stack, known, width),
    }
    spec = KernelSpec("float_winograd", engine.isa.name, rows, vectors, 1, terms.form, terms.out, False)
    return product.call(spec, stack, words, held, ("a*", "y*"), extents, scratch)


def _strip(isa: Isa, patches: int, columns: int) -> tuple[int, int]:
    """Rows by vectors of a strip: what loads, empty columns and patches made twice cost together is least; weights are
    read and transformed faster where panels are wide."""
    need = -(-columns // (isa.lanes // 2))

    def cost(size: tuple[int, int]) -> float:
        high, vectors = size
        made = -(-need // vectors) * vectors * -(-patches // high) * high
        return made * (1 + 0.3 * (high + vectors) / (high * vectors) + 0.2 / vectors)

    rows = ((v, range(most, most - most // 3 - 1, -1)) for v, most in isa.real_rows.items())
    return min(((min(high, patches), v) for v, highs in rows for high in highs), key=cost)


def _cut(number: int, size: tuple[int, int, int], strip: tuple[int, int, int], threads: int) -> tuple[int, int]:
    """Patches and panels of a tile with which threads are done first. size: patches, columns and depth; strip: its rows
    and columns, and the most patches of a tile."""
    patches, columns, depth = size
    high, width, most = strip
    panels = -(-columns // width)

    def cost(cut: tuple[int, int]) -> float:
        tiles, wide = number * -(-patches // cut[0]) * -(-panels // cut[1]), cut[1] * width
        work = cut[0] * wide * depth * TWO.side**2 * (1 + _IMAGE / wide + _FILTER / cut[0]) + _TAKE
        return work * (max(tiles / threads + 0.5, 1.0) if threads > 1 else tiles)

    heights = {even(patches, n, high) for n in (most, *(n for n in (48, 36, 24, 12, 8) if n < most))}
    parts = (1, 2, 4, panels) if threads > 1 else (1,)
    cuts = product(sorted(heights, reverse=True), (even(panels, -(-panels // part), 1) for part in parts))
    return min(cuts, key=cost)


def _places(patches: int, depth: int, step: int, strip: tuple[int, int]) -> tuple[Mapping[str, int], int]:
    """Words that say what lies where in the thread's memory, and how many bytes it has."""
    elements, (rows, width) = TWO.side**2, strip
    pitch = aligned_up(8 * depth) + 64
    plane = patches * pitch + 64
    right_at = elements * plane
    lengths_at = right_at + elements * (8 * step * width + LINE)
    sums_at = aligned_up(lengths_at + 8 * patches)
    slot_at = sums_at + elements * -(-patches // rows) * 8 * rows * width
    places = {"pitch": pitch, "plane": plane, "right_at": right_at}
    places |= {"lengths_at": lengths_at, "sums_at": sums_at, "slot_at": slot_at}
    return places, slot_at + 8 * TWO.results**2 * width
