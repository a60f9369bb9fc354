"""Plans int8 products that copy blocks of activations first, on CPUs whose exact products take 16 bits.

Activations are copied as 16 bits (widened), or as bytes that are small enough for sums of 16 bits (clipped). This
module decides whether a product does so, and in which form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.copied import PIECE, STEP, VECTOR, scratch_bytes
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import EIGHT, KernelSpec
from qrun.native.kernels.packing import in_order
from qrun.native.kernels.product import Product, RelocatableCall, even_rows, pack
from qrun.native.kernels.results import PanelRun
from qrun.native.machine.memory import Array, Ints, aligned
from qrun.native.proof.fold import Int8s, lane_bounds

_LEAST_BLOCKS = 8
"""The fewest blocks of rows of a unit, since each unit reads all weights."""
_UNITS_PER_THREAD, _UNIT_MACS = 8, 1 << 20
"""As in tiled.py; these kernels are slower, so that units may be smaller."""
_LEAST_ROWS = 16
"""With fewer rows than this, 16-bit weights do not pay, since they are twice as many bytes."""
_FEW = 2
"""The fewest panels for which it pays to test which activations are small."""
_VECTORS, _QUAD = 2, 4
"""Groups with at most this many vectors of channels, or activations per tap, are not copied."""
_BROADCAST, _PRODUCT, _LOOP = 1.25, 2, 7
"""Instructions for each row, for each of its vectors, and for the loop; the first and last are fitted to timings."""
SMALL = 32
"""With zero points above this, as uint8, most activations are expected to be large."""
CLIPPED_ROWS = {2: 4, 1: 8}
"""Rows of a block of clipped activations, by vectors of a panel."""
_COPY = 256 << 10
"""Bytes of clipped activations that stay in the second-level cache beside weights; for widened ones, half as many."""
_LISTED = 3 / 8
WIDENED_ROWS = {4: 5, 3: 7, 2: 5, 1: 8}
"""Rows of a block of widened activations, by vectors of a panel, with 32 registers."""
_WIDENED_ROWS_16 = {3: 3, 2: 5, 1: 8}
"""The same with 16 registers."""
_NEAR, _SIZE = 128 << 10, 2
"""The most bytes of widened activations of a tile, and the bytes of one of them."""


def copying_calls(product: Product, kinds: frozenset[str]) -> list[RelocatableCall]:
    """Kernel calls that replace Product.dense; none if copying does not pay."""
    layout, isa, each, plain = product.layout, product.isa, product.each, product.panels
    if not product.k or any(form == "table" for *_, form in plain):
        return []
    if product.group > 1 and (each <= _VECTORS * isa.lanes or product.k <= _QUAD):
        return []
    wide, small = "widened" in kinds and layout.rows >= _LEAST_ROWS, "clipped" in kinds and clips(product)
    least, most = (_narrow(rows, each, isa.lanes) for rows in (CLIPPED_ROWS, block_rows(isa, layout.rows)))
    fitting = {vectors: rows for vectors, rows in least.items() if rows <= layout.rows} or least
    narrow, broad = (_runs(plain, each, isa.lanes, rows, layout.rows) for rows in (fitting, most))
    parts = []
    for run, other in zip(narrow, broad, strict=True):
        _, vectors, panels, _ = run
        if small and layout.rows >= CLIPPED_ROWS[vectors] and (panels >= _FEW or not wide):
            parts.append(clipped_call(product, run))
        elif wide:
            parts.append(widened_call(product, other))
        else:
            return []
    return parts


def _narrow(rows: Mapping[int, int], channels: int, lanes: int) -> dict[int, int]:
    """The entries of `rows` (rows of a block, by vectors of a panel) whose panels have channels in every vector."""
    return {vectors: count for vectors, count in rows.items() if (vectors - 1) * lanes < channels}


def _runs(plain: list[PanelRun], channels: int, lanes: int, rows: Mapping[int, int], count: int) -> list[PanelRun]:
    """One run of panels of equal width, the cheapest for this many channels and `count` rows; the plain runs if they
    differ in form.

    rows: rows of a block, by vectors of a panel. Panels may overlap.
    """
    form = plain[0][3]
    if any(run[3] != form for run in plain):
        return plain
    sizes = [(vectors, -(-channels // (vectors * lanes))) for vectors in sorted(rows, reverse=True)]
    vectors, panels = min(sizes, key=lambda size: size[1] * _cost(size[0], rows[size[0]], count))
    return [(0, vectors, panels, form)]


def _cost(vectors: int, rows: int, count: int) -> float:
    """Instructions for `count` rows in one iteration of a panel's inner loop. The rows of a block share the loop and
    the loads of weights."""
    return -(-count // rows) * (rows * (_BROADCAST + _PRODUCT * vectors) + vectors + _LOOP)


@frozen
class Blocked:
    """A planned run of neighbouring panels with one form, in all groups of a product.

    rows:  rows of a block. taps: for each tap of the kernel, the number of the layout's tap that it reads.
    depth: activations of a tap, with padding. read: bytes that the kernel reads at each offset.
    block: bytes of a block's copy. near: the most bytes of copies of a tile, so that they stay in a cache.
    """

    product: Product
    run: PanelRun
    rows: int
    taps: tuple[int, ...]
    depth: int
    read: int
    block: int
    near: int

    @property
    def width(self) -> int:
        """Channels of a panel."""
        return self.run[1] * self.product.isa.lanes

    @property
    def pick(self) -> Ints:
        """int64 [groups * panels, width]: the channel in each lane, -1 for none. A group's last panel overlaps the one
        before it rather than run over.
        """
        first, _, panels, _ = self.run
        channels, groups = self.product.each, self.product.group
        count = min(panels * self.width, channels - first)
        starts = np.minimum(np.arange(panels) * self.width, max(count - self.width, 0))
        lanes = starts[:, None] + np.arange(self.width)
        starts = first + channels * np.arange(groups)[:, None, None]
        return np.where(lanes < count, starts + lanes, -1).reshape(-1, self.width)

    def cut(self) -> tuple[int, int]:
        """(blocks per tile, panels per tile): copies stay in a cache, and each thread has about eight tiles."""
        product, panels = self.product, self.run[2]
        images, blocks = product.layout.images * product.group, -(-product.layout.rows // self.rows)
        chunks = -(-blocks // max(1, self.near // self.block))
        units = 1
        if product.engine.threads > 1:
            macs = self.rows * len(self.taps) * self.depth * self.width
            units = min(_UNITS_PER_THREAD * product.engine.threads, images * blocks * panels * macs // _UNIT_MACS)
            units = max(1, units // images)
            chunks = max(chunks, min(units, -(-blocks // _LEAST_BLOCKS)))
        shares = min(panels, -(-units // chunks))
        return -(-blocks // chunks), -(-panels // shares)

    def part(
        self,
        spec: KernelSpec,
        arrays: Mapping[str, Array],
        words: Mapping[str, int],
        scratch: int,
    ) -> RelocatableCall:
        """The kernel call. arrays, words: those of this kind of kernel. scratch: bytes of memory per thread."""
        product, (first, _, panels, _) = self.product, self.run
        layout, pick = product.layout, self.pick
        blocks, (chunk, share) = -(-layout.rows // self.rows), self.cut()
        chunks, shares = -(-blocks // chunk), -(-panels // share)
        known = {
            "last_row": layout.rows - self.rows,
            "blocks": blocks,
            "taps": len(self.taps),
            "depth": self.depth,
            "panels": panels,
            "shares": shares,
            "share": share,
            "chunks": chunks,
            "chunk": chunk,
            "tiles": layout.images * product.group * chunks * shares,
            "last_channel": int(pick[panels - 1, 0]) - first,
            "groups": product.group,
            "x_group": product.k,
            "y_group": product.each * product.results.size,
        }
        arrays = {**arrays, "padding*": aligned(self.read, product.x_zero.dtype, int(product.x_zero))}
        section = product.section(spec, pick, arrays, {**known, **words}, scratch)
        read = self.read + (product.group - 1) * product.k
        return RelocatableCall(section, self.taps, read, product.results.size)


def clips(product: Product) -> bool:
    """Whether clipping may pay for a product: the CPU clips, and its activations may be mostly small."""
    isa = product.isa
    zero = int(product.x_zero) + isa.shift(product.signed)
    return isa.clips and zero <= SMALL and product.k >= EIGHT


def clipped_call(product: Product, run: PanelRun) -> RelocatableCall:
    """The call of the clipped product for one run of panels."""
    _, vectors, _, form = run
    isa, (weights, taps) = product.isa, product.folded.taps
    depth, rows = -(-product.k // EIGHT) * EIGHT, CLIPPED_ROWS[vectors]
    row = len(taps) * depth
    plan = Blocked(product, run, rows, tuple(taps), depth, depth, rows * row, _COPY)
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
    stored = weights.array
    each, most = lane_bounds(in_order(product.engine, stored)[pick[pick >= 0]], depth)
    arrays = {
        "weights*": pack(product.engine, stored, pick, depth),
        "each*": _repeat(each, rows),
        "first*": _repeat(most, rows),
    }
    words = {"limit": limit, "stride": row if row % VECTOR == 0 else VECTOR}
    return plan.part(spec, arrays, words, scratch_bytes(spec, plan.block, plan.cut()[0], limit))


def _repeat(values: Int8s, rows: int) -> Int8s:
    """The same values for each row of a block."""
    made = aligned((rows, *values.shape), np.int8)
    made[...] = values
    return made


def block_rows(isa: Isa, count: int) -> Mapping[int, int]:
    """Rows of a block of widened activations, by vectors of a panel, for a product of `count` rows."""
    most = WIDENED_ROWS if isa.vectors > 2 else _WIDENED_ROWS_16
    return {vectors: even_rows(count, rows) for vectors, rows in most.items()}


def widened_call(product: Product, run: PanelRun) -> RelocatableCall:
    """The call of the widened product for one run of panels. Weights may be anything within -255..255."""
    weights = product.folded.centred
    taps, rows = weights.shape[1], block_rows(product.isa, product.layout.rows)[run[1]]
    depth = -(-product.k // STEP) * STEP
    block = rows * taps * depth * _SIZE
    plan = Blocked(product, run, rows, tuple(range(taps)), depth, max(depth, PIECE), block, _NEAR)
    spec = KernelSpec("widened", product.isa.name, rows, run[1], 1, run[3], product.results.out, product.signed)
    arrays = {"weights*": pack(product.engine, weights, plan.pick, depth, np.int16)}
    return plan.part(spec, arrays, {}, plan.cut()[0] * block + _SIZE * PIECE)
