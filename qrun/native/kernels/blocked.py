"""Plans of products that copy blocks of activations first: how they are cut into tiles, and their kernel calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.product import Product, RelocatableCall
from qrun.native.machine.memory import Ints, aligned

Array = np.ndarray[Any, Any]
Run = tuple[int, int, int, str]
"""First channel, vectors of a panel, panels, form: see Product.panels."""
_LEAST_BLOCKS = 8
_UNITS_PER_THREAD = 8
_UNIT_MACS = 1 << 20


@frozen
class Blocked:
    """A run of neighbouring panels with one form, of all groups of a product.

    rows:  rows of a block. taps: for each tap of the kernel, the number of the layout's tap that it reads.
    depth: activations of a tap, with padding. read: bytes that the kernel reads at each offset.
    block: bytes of a block's copy. near: bytes of copies that a tile may hold, so that they stay in a cache.
    """

    product: Product
    groups: int
    run: Run
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
    def channels(self) -> int:
        """Output channels of a group."""
        return len(self.product.folded.centred) // self.groups

    @property
    def pick(self) -> Ints:
        """int64 [groups * panels, width]: the channels, -1 where there is none; a group's last panel overlaps the one
        before it rather than run over.
        """
        first, _, panels, _ = self.run
        count = min(panels * self.width, self.channels - first)
        starts = np.minimum(np.arange(panels) * self.width, max(count - self.width, 0))
        lanes = starts[:, None] + np.arange(self.width)
        groups = self.channels * np.arange(self.groups)[:, None, None]
        return np.where(lanes < count, groups + first + lanes, -1).reshape(-1, self.width)

    def cut(self) -> tuple[int, int]:
        """(blocks per tile, panels per tile): copies that stay near, and about eight tiles per thread."""
        product, panels = self.product, self.run[2]
        images, blocks = product.layout.images * self.groups, -(-product.layout.rows // self.rows)
        chunks = -(-blocks // max(1, self.near // self.block))
        units = 1
        if product.threads > 1:
            macs = self.rows * len(self.taps) * self.depth * self.width
            units = min(_UNITS_PER_THREAD * product.threads, images * blocks * panels * macs // _UNIT_MACS)
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
        """The kernel call; arrays, words: besides what all have. scratch: bytes that a calling thread brings."""
        product, (first, _, panels, _) = self.product, self.run
        layout, pick = product.layout, self.pick
        blocks, (chunk, share) = -(-layout.rows // self.rows), self.cut()
        chunks, shares = -(-blocks // chunk), -(-panels // share)
        known = {
            "last_row": layout.rows - self.rows, "blocks": blocks, "taps": len(self.taps), "depth": self.depth,
            "panels": panels, "shares": shares, "share": share, "chunks": chunks, "chunk": chunk,
            "tiles": layout.images * self.groups * chunks * shares, "last_channel": int(pick[panels - 1, 0]) - first,
            "groups": self.groups, "x_group": layout.k, "y_group": self.channels * product.results.size,
        }  # fmt: skip
        arrays = {**arrays, "padding*": aligned(self.read, product.x_zero.dtype, int(product.x_zero))}
        section = product.section(spec, pick, arrays, {**known, **words}, scratch)
        read = self.read + (self.groups - 1) * layout.k
        return RelocatableCall(section, self.taps, read, product.results.size)
