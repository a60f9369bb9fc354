"""A planned integer product by sums in 16 bits that cannot overflow, where instructions for more are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.native import _clipped
from qrun.native._clipping import EIGHT, VECTOR
from qrun.native.blocked import Blocked, Run
from qrun.native.fold import Int8s, aligned, int8_taps
from qrun.native.product import Part, Product, grouped
from qrun.native.spec import KernelSpec

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
    return isa.dot == "madd256" and zero <= SMALL and layout.k >= EIGHT


def clipped(product: Product, groups: int, run: Run) -> Part:
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
    return plan.part(
        spec, _clipped.ARGUMENTS, arrays, words, _clipped.scratch_bytes(spec, plan.block, plan.cut()[0], limit)
    )


def lane_bounds(weights: Int8s, depth: int) -> tuple[Int8s, Int8s]:
    """Of int8 [N, taps, k]: factors [taps, depth] of the activations and of the largest of a lane's four.

    With s(k) the largest sum of k of the lane's weights that have one sign, in any channel, and sorted activations x,
    sums are at most those of (x[k] - x[k+1]) * s(k), and so of x[0] * s(1) + (x[1] + x[2] + x[3]) * d for a d of at
    least (s(k) - s(1)) / (k - 1).
    """
    count, taps, k = weights.shape
    most = np.zeros((3, 2, taps, depth // EIGHT), np.int16)
    step = max(1, _NEAR_BOUNDS // (taps * depth))
    for start in range(0, count, step):
        part = weights[start : start + step]
        if k < depth:
            part = np.pad(part, ((0, 0), (0, 0), (0, depth - k)))
        for lane, places in enumerate(((0, 1, 4, 5), (2, 3, 6, 7))):
            four = [part[:, :, place::EIGHT].astype(np.int16) for place in places]
            for sign in (1, -1):
                sums = _largest_sums(*(np.clip(sign * values, 0, 127) for values in four))
                for total, found in zip(most, sums, strict=True):
                    np.maximum(total[lane], found.max(axis=0), out=total[lane])
    one, two, all_four = most
    each = np.minimum(one, np.maximum(two - one, (all_four - one + 1) // 2))
    spread = np.zeros((2, taps, depth // EIGHT, 2, 2, 2), np.int8)
    spread[0] = np.moveaxis(each, 0, -1)[:, :, None, :, None]
    spread[1, ..., 0] = np.moveaxis(one - each, 0, -1)[:, :, None, :]
    bounds = spread.reshape(2, taps, depth)
    return bounds[0], bounds[1]


def _largest_sums(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array]:
    """The largest sums of one, two and all of four arrays, not negative, element by element."""
    ab, cd = a + b, c + d
    one, other = np.maximum(a, b), np.maximum(c, d)
    return np.maximum(one, other), np.maximum(np.maximum(ab, cd), one + other), ab + cd


def _repeated(values: Int8s, rows: int) -> Int8s:
    """The same for each row of a block."""
    made = aligned((rows, *values.shape), np.int8)
    made[...] = values
    return made
