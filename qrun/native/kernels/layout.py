"""Where kernels read and write: offsets of activations, blocks of rows, shares of threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.errors import Declined
from qrun.native.machine.memory import Ints, aligned_copy
from qrun.native.machine.operation import size

ENTRIES = 1 << 26
"""Offsets of a table, int32: 256 MB."""


@frozen(slots=False)
class Window:
    """A 2-D window: image [h, w], kernel, strides, dilations, and pads (top, left, bottom, right)."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]

    @classmethod
    def of(
        cls,
        image: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int] = (),
        dilations: Sequence[int] = (),
        pads: Sequence[int] = (),
    ) -> Window:
        """From ONNX's lists for one or two spatial axes; empty lists are ONNX's defaults. Raises Declined."""
        axes = len(image)
        strides, dilations, pads = strides or [1] * axes, dilations or [1] * axes, pads or [0] * 2 * axes
        if axes not in (1, 2):
            raise Declined(f"{axes} spatial axes (native kernels take 1 or 2)")
        if not len(kernel) == len(strides) == len(dilations) == axes or len(pads) != 2 * axes:
            raise Declined("kernel, strides, dilations or pads do not have one value per spatial axis")
        if min(image) < 0 or min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
            raise Declined("a kernel size, stride, dilation or pad is out of range")
        if axes == 1:
            (image, kernel, strides, dilations) = ([1, *v] for v in (image, kernel, strides, dilations))
            pads = [0, pads[0], 0, pads[1]]
        a, b, c, d = ((int(v[0]), int(v[1])) for v in (image, kernel, strides, dilations))
        window = cls(a, b, c, d, (int(pads[0]), int(pads[1]), int(pads[2]), int(pads[3])))
        if min(window.spare) < 0:
            raise Declined("the kernel is larger than the padded image")
        if window.out[0] * window.out[1] * b[0] * b[1] > ENTRIES:
            raise Declined("the table of offsets would be too large")
        return window

    @cached_property
    def spare(self) -> tuple[int, int]:
        """Pixels by which the padded image is larger than the dilated kernel: (down, across)."""
        h, w = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        top, left, bottom, right = self.pads
        return self.image[0] + top + bottom - h, self.image[1] + left + right - w

    @property
    def plain(self) -> bool:
        """Whether each output pixel reads the one at its own place, and no other."""
        return self.kernel == self.strides == (1, 1) and not any(self.pads)

    @cached_property
    def out(self) -> tuple[int, int]:
        return self.spare[0] // self.strides[0] + 1, self.spare[1] // self.strides[1] + 1

    def side_by_side(self, width: int) -> bool:
        """Whether outputs 2i and 2i+1 lie in one line and read neighbouring pixels, for a kernel of this width."""
        across = self.kernel[1], self.strides[1], self.dilations[1]
        return across == (width, 1, 1) and self.out[1] % 2 == 0

    def offsets(self, pixel: int) -> Ints:
        """int64 [out pixels, kernel taps]: bytes from the image's start, `pixel` bytes each; -1 in the padding."""
        y, x = self._positions(0), self._positions(1)
        inside = ((y >= 0) & (y < self.image[0]))[:, None, :, None] & ((x >= 0) & (x < self.image[1]))[:, None]
        places = (y[:, None, :, None] * self.image[1] + x[:, None]) * pixel
        return np.where(inside, places, -1).reshape(self.out[0] * self.out[1], self.kernel[0] * self.kernel[1])

    def line_offsets(self, pixel: int, line: int = 0) -> Ints:
        """int64 [out pixels, kernel rows] into an image whose padding is stored: one tap is a whole kernel row.

        line: bytes from one line of the image to the next, if that is not the bytes of its pixels."""
        line = line or (self.image[1] + self.pads[1] + self.pads[3]) * pixel
        y, x = self._positions(0) + self.pads[0], self._positions(1)[:, 0] + self.pads[1]
        return (y[:, None, :] * line + (x * pixel)[:, None]).reshape(self.out[0] * self.out[1], self.kernel[0])

    def _positions(self, axis: int) -> Ints:
        """[out, kernel]: coordinates in the image, outside it in the padding."""
        out = np.arange(self.out[axis], dtype=np.int64)[:, None] * self.strides[axis]
        return out + np.arange(self.kernel[axis]) * self.dilations[axis] - self.pads[axis]


_UNROLLS = (4, 3, 2)
"""Steps per turn, the best first."""
_WHOLE, _WHOLE_ODD = 8, 20
"""Up to so many steps are one turn without a loop; the latter where no unrolling divides their number."""
_TILES_PER_THREAD, _TILE_MACS = 8, 1 << 16
"""Tiles that even out how long threads take; and products of a tile, for each lane, beside which taking it costs little."""
_OFFSET_LIMIT = 2**31 - 1


@frozen(slots=False)
class Layout:
    """Activations and results in memory, in bytes from the buffers' starts.

    offsets: int64 [rows, taps] from the start of an image; -1 reads a row of zero points instead.
    x_image, y_image: from one image to the next. y_row: from one row of results to the next.
    pixel:   from one pixel of activations to the next.
    """

    images: int
    offsets: Ints
    x_image: int
    y_image: int
    y_row: int
    pixel: int

    def __post_init__(self) -> None:
        if min(self.images, self.x_image + 1, self.y_image + 1, self.y_row + 1) < 1:
            raise ValueError("a layout has no negative sizes")
        if self.offsets.size and (self.offsets.min() < -1 or self.offsets.max() > _OFFSET_LIMIT):
            raise Declined("one image is larger than 2 GB")

    @property
    def rows(self) -> int:
        return len(self.offsets)

    def x_bytes(self, read: int) -> int:
        """Bytes from the buffer's start to the end of what a kernel reads, if it reads `read` bytes at each offset."""
        far = int(self.offsets.max(initial=-1))
        return (self.images - 1) * self.x_image + far + read if far >= 0 else 0

    def y_bytes(self, written: int) -> int:
        """Bytes from the buffer's start to the end of what a kernel writes, if it writes `written` bytes of each row."""
        return (self.images - 1) * self.y_image + (self.rows - 1) * self.y_row + written

    def table(self, rows: int, taps: Sequence[int], later: Sequence[int] = (), share: int = 1) -> np.ndarray[Any, Any]:
        """int32 [blocks, taps, rows / share]; the last block overlaps the one before it rather than run over. Made once.

        rows:  of a block. taps: the layout's taps, in the order in which the kernel reads them.
        share: rows that read one list of offsets together. later: for each tap the row among those whose tap it is.
        """
        return self.shared.once(
            (rows, tuple(taps), tuple(later), share), lambda: self._table(rows, taps, later or [0], share)
        )

    @cached_property
    def shared(self) -> Memo:
        """What products of other weights have in common."""
        return Memo()

    def _table(self, rows: int, taps: Sequence[int], later: Sequence[int], share: int) -> np.ndarray[Any, Any]:
        first = np.minimum(np.arange(-(-self.rows // rows)) * rows, self.rows - rows)
        units = first[:, None] + np.arange(0, rows, share)
        offsets = self.offsets[units[:, None] + np.asarray(later, int)[:, None], np.asarray(taps, int)[:, None]]
        return aligned_copy(offsets, np.int32)


def unroll_for(k: int) -> tuple[int, int]:
    """How the loop over k bytes is unrolled: steps of 4 bytes per turn, and steps in all.

    Few steps are one turn. Of more, some are added (of zero weights) if none of the unrollings divides their number.
    """
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


def planning_bytes(shape: Sequence[int], group: int, pixels: int, lanes: int) -> int:
    """What planning a convolution may take: offsets of what is read, weights while they are packed, constants.

    shape: of the weights [M, C/group, kernel...]. pixels: of an output image. lanes: of a vector.
    """
    outputs, inputs, *kernel = shape
    depthwise = outputs == group and inputs == 1
    count = 1 if depthwise or not size(shape) else merged_groups(group, outputs // group, inputs, lanes)
    products = 1 if depthwise else group // count
    return pixels * size(kernel) * (32 + 4 * products) + size(shape) * 16 * count + outputs * 8192


def merged_groups(groups: int, outputs: int, inputs: int, lanes: int) -> int:
    """How many neighbouring groups to compute as one product, the weights between them zero, to fill vectors."""

    def cost(count: int) -> tuple[int, int]:
        steps = unroll_for(inputs * count)[1]
        return groups // count * -(-outputs * count // lanes) * steps, -count

    return min((count for count in range(1, groups + 1) if groups % count == 0), key=cost)
