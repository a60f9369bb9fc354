"""Where kernels read and write: offsets of activations, blocks of rows, shares of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.native.errors import Declined
from qrun.native.fold import aligned
from qrun.native.thresholds import Ints

_UNROLLS = (4, 3, 2)
_WHOLE, _WHOLE_ODD = 8, 20
_TILES_PER_THREAD = 8
_TILE_MACS = 1 << 16
_OFFSET_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Activations and results in memory, in bytes from the buffers' starts.

    offsets: int64 [rows, taps] from the start of an image; -1 reads a row of zero points instead.
    k:       activations read at an offset.
    x_image, y_image: from one image to the next. y_row: from one row of results to the next.
    pixel:   from one pixel of activations to the next.
    """

    images: int
    offsets: Ints
    k: int
    x_image: int
    y_image: int
    y_row: int
    pixel: int

    def __post_init__(self) -> None:
        if min(self.images, self.k + 1, self.x_image + 1, self.y_image + 1, self.y_row + 1) < 1:
            raise ValueError("a layout has no negative sizes")
        if self.offsets.size and (self.offsets.min() < -1 or self.offsets.max() > _OFFSET_LIMIT):
            raise Declined("one image is larger than 2 GB")

    @property
    def rows(self) -> int:
        return len(self.offsets)

    def x_bytes(self, read: int) -> int:
        """How far a kernel reads from the buffer's start that reads `read` bytes at each offset."""
        far = int(self.offsets.max(initial=-1))
        return (self.images - 1) * self.x_image + far + read if far >= 0 else 0

    def y_bytes(self, written: int) -> int:
        """How far a kernel writes that writes `written` bytes of each row."""
        return (self.images - 1) * self.y_image + (self.rows - 1) * self.y_row + written

    def table(self, rows: int, taps: Sequence[int], later: Sequence[int] = (), share: int = 1) -> np.ndarray[Any, Any]:
        """int32 [blocks, taps, rows / share]; the last block overlaps the one before it rather than run over.

        later: for each tap, how many rows on from the first of those that share it is the row whose tap it is.
        """
        first = np.minimum(np.arange(-(-self.rows // rows)) * rows, self.rows - rows)
        units = first[:, None] + np.arange(0, rows, share)
        offsets = self.offsets[units[:, None] + np.asarray(later or [0], int)[:, None], np.asarray(taps, int)[:, None]]
        packed = aligned(offsets.shape, np.int32)
        packed[...] = offsets
        return packed


def unroll_for(k: int) -> tuple[int, int]:
    """(unroll, steps) of 4 bytes for k bytes: all of a few steps, else a step is added where that allows unrolling."""
    steps = max(1, -(-k // 4))
    odd = all(steps % u for u in _UNROLLS)
    if steps <= (_WHOLE_ODD if odd else _WHOLE):
        return steps, steps
    if odd:
        steps = min(-(-steps // u) * u for u in _UNROLLS)
    return next(u for u in _UNROLLS if steps % u == 0), steps


def chunk_blocks(blocks: int, tiles: int, macs: int, threads: int, lanes: int) -> int:
    """Blocks per tile: all of them for one thread, else about eight tiles per thread, none too small to be worth it.

    macs: products of one block. tiles: how many times over the blocks are walked (images and panels). lanes: of a vector.
    """
    if threads == 1:
        return blocks
    share = max(blocks * tiles * macs // (threads * _TILES_PER_THREAD), _TILE_MACS * lanes)
    return max(1, min(blocks, share // max(1, macs)))
