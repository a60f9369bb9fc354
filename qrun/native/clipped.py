"""A planned integer product by sums in 16 bits that cannot overflow, where instructions for more are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.native import _clipped
from qrun.native._clipping import EIGHT, VECTOR
from qrun.native.fold import Int8s, aligned, int8_taps
from qrun.native.product import Part, Product, grouped, lanes_of
from qrun.native.section import Section, struct
from qrun.native.spec import KernelSpec

Array = np.ndarray[Any, Any]
SMALL = 32
"""Zero points, as uint8, beyond which most activations are expected to be large."""
_ROWS = {2: 4, 1: 8}
_NEAR = 1 << 18
_COPY = 256 << 10
_LISTED = 3 / 8
_LEAST_BLOCKS = 8
_UNITS_PER_THREAD = 8
_UNIT_MACS = 1 << 20


def clipped(product: Product) -> list[Part]:
    """Kernel calls for a product of one group; none where they do not serve, or activations are mostly large."""
    layout, isa = product.layout, product.isa
    zero = int(product.x_zero) + isa.shift(product.signed)
    runs = product.panels(len(product.folded.centred), 1)
    if (
        isa.dot != "madd256"
        or product.results.out == "i32"
        or zero > SMALL
        or layout.k < EIGHT
        or any(layout.rows < _ROWS[vectors] or form == "table" for _, vectors, _, form in runs)
    ):
        return []
    return [_part(product, run) for run in runs]


def _part(product: Product, run: tuple[int, int, int, str]) -> Part:
    """The call for one run of panels."""
    first, vectors, panels, form = run
    layout, results = product.layout, product.results
    weights, taps = int8_taps(product.folded.centred)
    depth = -(-layout.k // EIGHT) * EIGHT
    row, width, rows = len(taps) * depth, vectors * product.isa.lanes, _ROWS[vectors]
    pick = lanes_of(first, panels * width, len(weights)).reshape(panels, width)
    packed = grouped(weights[None, first:], panels, width, depth)
    unroll = 4 if row % (2 * EIGHT) == 0 else 2
    spec = KernelSpec("clipped", product.isa.name, rows, vectors, unroll, form, results.out, product.signed)
    blocks, limit = -(-layout.rows // rows), int(rows * row // EIGHT * _LISTED)
    chunk, share = _cut(product, blocks, rows * row, panels, rows * row * width)
    chunks, shares = -(-blocks // chunk), -(-panels // share)
    known = {
        "last_row": layout.rows - rows, "blocks": blocks, "taps": len(taps), "depth": depth,
        "panels": panels, "shares": shares, "share": share, "chunks": chunks, "chunk": chunk,
        "tiles": layout.images * chunks * shares, "mask": (1 << int((pick[-1, -product.isa.lanes :] >= 0).sum())) - 1,
        "zero_point!": results.zero_point, "limit": limit, "stride": row if row % VECTOR == 0 else VECTOR,
    }  # fmt: skip
    each, most = lane_bounds(weights[first : int(pick.max()) + 1], depth)
    arrays = {
        "weights*": packed,
        "each*": _repeated(each, rows),
        "first*": _repeated(most, rows),
        "bias*": product.bias(form, pick),
        "constants*": results.constants(form, pick),
        "padding*": aligned(depth, product.x_zero.dtype, int(product.x_zero)),
    }
    names = _clipped.ARGUMENTS
    section = Section(
        spec,
        product.kernels.get(spec),
        struct(names, {**dict.fromkeys(names, 0), **known}, arrays),
        ((names.index("x*"), 0), (names.index("y*"), 1)),
        (0, 0),
        known["tiles"],
        first,
        int(pick.max()) + 1 - first,
        tuple(arrays.values()),
        results.why(form, pick[pick >= 0]),
        _clipped.scratch_bytes(spec, rows * row, chunk, limit),
    )
    return Part(section, names, tuple(taps), depth, results.size)


def _cut(product: Product, blocks: int, block: int, panels: int, macs: int) -> tuple[int, int]:
    """(blocks per tile, panels per tile): copies that stay near, and about eight tiles per thread.

    block: bytes of a block's copy. macs: products of a block and a panel.
    """
    chunks = -(-blocks // max(1, _COPY // block))
    units = 1
    if product.threads > 1:
        units = min(_UNITS_PER_THREAD * product.threads, product.layout.images * blocks * panels * macs // _UNIT_MACS)
        units = max(1, units // product.layout.images)
        chunks = max(chunks, min(units, -(-blocks // _LEAST_BLOCKS)))
    shares = min(panels, -(-units // chunks))
    return -(-blocks // chunks), -(-panels // shares)


def lane_bounds(weights: Int8s, depth: int) -> tuple[Int8s, Int8s]:
    """Of int8 [N, taps, k]: factors [taps, depth] of the activations and of the largest of a lane's four.

    With s(k) the largest sum of k of the lane's weights that have one sign, in any channel, and sorted activations x,
    sums are at most those of (x[k] - x[k+1]) * s(k), and so of x[0] * s(1) + (x[1] + x[2] + x[3]) * d for a d of at
    least (s(k) - s(1)) / (k - 1).
    """
    count, taps, k = weights.shape
    most = np.zeros((3, 2, taps, depth // EIGHT), np.int16)
    step = max(1, _NEAR // (taps * depth))
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
