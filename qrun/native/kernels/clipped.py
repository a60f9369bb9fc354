"""A planned integer product by sums in 16 bits that cannot overflow, where instructions for more are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.native.emit.clipped import EIGHT, VECTOR, scratch_bytes
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.blocked import Blocked, Run
from qrun.native.kernels.product import Product, RelocatableCall, grouped
from qrun.native.machine.memory import aligned
from qrun.native.proof.fold import Int8s, int8_taps

Array = np.ndarray[Any, Any]
SMALL = 32
"""Zero points, as uint8, beyond which most activations are expected to be large."""
ROWS = {2: 4, 1: 8}
"""Rows of a block, by vectors."""
_NEAR_BOUNDS = 1 << 18
_COPY = 256 << 10
_LISTED = 3 / 8


def clips(product: Product) -> bool:
    """Whether this serves a product: activations may be mostly small."""
    layout, isa = product.layout, product.isa
    zero = int(product.x_zero) + isa.shift(product.signed)
    return isa.clips and zero <= SMALL and layout.k >= EIGHT


def clipped(product: Product, groups: int, run: Run) -> RelocatableCall:
    """The call for one run of panels."""
    _, vectors, panels, form = run
    layout, isa = product.layout, product.isa
    weights, taps = int8_taps(product.folded.centred)
    depth, rows = -(-layout.k // EIGHT) * EIGHT, ROWS[vectors]
    row = len(taps) * depth
    plan = Blocked(product, groups, run, rows, tuple(taps), depth, depth, rows * row, _COPY)
    spec = KernelSpec(
        "clipped",
        isa.name,
        rows,
        vectors,
        4 if row % (2 * EIGHT) == 0 else 2,
        form,
        product.results.out,
        product.signed,
    )
    limit = int(rows * row // EIGHT * _LISTED)
    pick = plan.pick
    weights = weights[pick[pick >= 0]]
    each, most = lane_bounds(weights, depth)
    arrays = {
        "weights*": grouped(weights.reshape(groups, -1, *weights.shape[1:]), panels, plan.width, depth),
        "each*": _repeated(each, rows),
        "first*": _repeated(most, rows),
    }
    words = {"limit": limit, "stride": row if row % VECTOR == 0 else VECTOR}
    return plan.part(spec, arrays, words, scratch_bytes(spec, plan.block, plan.cut()[0], limit))


def lane_bounds(weights: Int8s, depth: int) -> tuple[Int8s, Int8s]:
    """Of int8 [N, taps, k]: factors [taps, depth] of the activations and of the largest of a lane's four.

    With s(k) the largest sum of k of the lane's weights that have one sign, in any channel, and sorted activations x,
    sums are at most those of (x[k] - x[k+1]) * s(k), and so of x[0] * s(1) + (x[1] + x[2] + x[3]) * d for a d of at
    least (s(k) - s(1)) / (k - 1).
    """
    count, taps, k = weights.shape
    size = taps * depth
    most = [np.zeros((size // EIGHT, pairs, 2), np.uint16) for pairs in (2, 2, 1, 1)]
    nothing, least = np.zeros(size, np.int8), np.full(size, -127, np.int8)
    step = max(1, _NEAR_BOUNDS // size)
    for start in range(0, count, step):
        part = weights[start : start + step]
        if k < depth:
            part = np.pad(part, ((0, 0), (0, 0), (0, depth - k)))
        part = np.maximum(part.reshape(-1, size), least)
        for values in (np.maximum(part, nothing), -np.minimum(part, nothing)):
            for total, found in zip(most, _largest_sums(values), strict=True):
                np.maximum(total, found.reshape(total.shape), out=total)
    one, pair, apart, four = (total.max(axis=1) for total in most)
    each = np.minimum(one, np.maximum(np.maximum(pair, apart) - one, (four - one + 1) // 2))
    spread = np.zeros((2, size // EIGHT, 2, 2, 2), np.int8)
    spread[0] = each[:, None, :, None]
    spread[1, ..., 0] = (one - each)[:, None]
    bounds = spread.reshape(2, taps, depth)
    return bounds[0], bounds[1]


def _largest_sums(values: Int8s) -> tuple[Array, Array, Array, Array]:
    """Of [N, size], not negative, the largest over N, where a lane reads the first and third or second and fourth pair of
    each eight: of a pair's values, of their sum, of the sum of a value of each of a lane's pairs, and of all four.
    """
    pairs = values.view(np.uint16)
    low, high = pairs & 0xFF, pairs >> 8
    larger, sums = np.maximum(low, high), low + high
    return larger.max(axis=0), sums.max(axis=0), _both(larger), _both(sums)


def _both(pairs: Array) -> Array:
    """The largest sums of a lane's two pairs, of which one word has the first of two lanes, the next word the second."""
    words = pairs.view(np.uint32)
    sums = (words[:, ::2] + words[:, 1::2]).view(np.uint16)
    most: Array = sums.max(axis=0)
    return most


def _repeated(values: Int8s, rows: int) -> Int8s:
    """The same for each row of a block."""
    made = aligned((rows, *values.shape), np.int8)
    made[...] = values
    return made
