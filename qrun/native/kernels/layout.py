"""The addresses that kernels read and write: the pixels that windows read, tables of offsets, blocks of rows, and the
shares of threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo, memoize
from qrun.native.errors import Declined
from qrun.native.machine.memory import Array, Ints, aligned_copy
from qrun.native.machine.operation import size
from qrun.shapes import MOST_AXES

ENTRIES = 1 << 26
"""The most offsets of a table, int32: 256 MB."""


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
        """The window of ONNX's lists for one or two spatial axes; empty lists are ONNX's defaults. Raises Declined for
        more axes, invalid values, kernels larger than the padded image, and too many offsets."""
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
        """Whether each output pixel reads only the input pixel at its own place."""
        return self.kernel == self.strides == (1, 1) and not any(self.pads)

    @cached_property
    def out(self) -> tuple[int, int]:
        """The height and width of the output."""
        return self.spare[0] // self.strides[0] + 1, self.spare[1] // self.strides[1] + 1

    def side_by_side(self, width: int) -> bool:
        """Whether the kernel has this width, and outputs 2i and 2i+1 are in one line and read neighbouring pixels."""
        across = self.kernel[1], self.strides[1], self.dilations[1]
        return across == (width, 1, 1) and self.out[1] % 2 == 0

    def offsets(self, pixel: int) -> Ints:
        """int64 [out pixels, kernel taps]: bytes from the image's start; -1 in the padding. pixel: bytes of a pixel."""
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
        """int64 [out, kernel]: coordinates along an axis; those in the padding are outside of the image."""
        out = np.arange(self.out[axis], dtype=np.int64)[:, None] * self.strides[axis]
        return out + np.arange(self.kernel[axis]) * self.dilations[axis] - self.pads[axis]


@frozen(slots=False)
class Taps:
    """The pixels that each output pixel reads, axis by axis: image sizes, and for each axis int64 [out, kernel]
    coordinates, -1 outside."""

    image: tuple[int, ...]
    places: tuple[Ints, ...]

    @classmethod
    def of(
        cls,
        image: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        begin: Sequence[int],
        out: Sequence[int],
        transposed: bool = False,
    ) -> Taps:
        """The taps of windows, with one value per axis. begin: pads before the image; out: windows. transposed: the
        taps of a transposed convolution, whose input i and tap k go to i * stride + k * dilation - begin.
        Raises Declined if there are too many offsets or axes."""
        if size(out) * size(kernel) > ENTRIES:
            raise Declined("the table of offsets would be too large")
        places = []
        for n, k, s, d, b, o in zip(image, kernel, strides, dilations, begin, out, strict=True):
            result, tap = np.arange(o, dtype=np.int64)[:, None], np.arange(k, dtype=np.int64) * d
            index, rest = np.divmod(result + b - tap, s) if transposed else (result * s - b + tap, 0)
            places.append(np.where((rest == 0) & (index >= 0) & (index < n), index, -1))
        return cls(tuple(image), tuple(places))

    def __post_init__(self) -> None:
        for n, places in zip(self.image, self.places, strict=True):
            if places.ndim != 2 or (places.size and not -1 <= places.min() <= places.max() < n):
                raise ValueError("coordinates outside the image")
        if 2 * len(self.places) > MOST_AXES:
            raise Declined(f"more than {MOST_AXES // 2} spatial axes")
        if self.pixels * self.count > ENTRIES:
            raise Declined("the table of offsets would be too large")

    @property
    def plain(self) -> bool:
        """Whether each output pixel reads only the input pixel at its own place."""
        return self.count == 1 and all(
            np.array_equal(places[:, 0], np.arange(n)) for n, places in zip(self.image, self.places, strict=True)
        )

    @property
    def out(self) -> tuple[int, ...]:
        """The output's size along each axis."""
        return tuple(len(places) for places in self.places)

    @property
    def pixels(self) -> int:
        """The number of output pixels."""
        return size(self.out)

    @property
    def count(self) -> int:
        """The taps of a window, including those outside of the image."""
        return size([places.shape[1] for places in self.places])

    @cached_property
    def inside(self) -> Ints:
        """int64 [pixels]: the number of taps inside the image."""
        total = np.ones((), np.int64)
        for places in self.places:
            total = np.multiply.outer(total, (places >= 0).sum(axis=1))
        return total.reshape(-1)

    def offsets(self, pixel: int) -> Ints:
        """int64 [pixels, taps]: bytes from the image's start to the pixel that each tap reads; -1 outside. pixel: bytes
        of a pixel. Raises Declined for images larger than 2 GB."""
        rank = len(self.places)
        total, inside = np.zeros((1,) * 2 * rank, np.int64), np.ones((1,) * 2 * rank, np.bool_)
        for axis, places in enumerate(self.places):
            shape = [1] * 2 * rank
            shape[axis], shape[rank + axis] = places.shape
            step = size(self.image[axis + 1 :]) * pixel
            total = total + (places * step).reshape(shape)
            inside = inside & (places >= 0).reshape(shape)
        if total.size and total.max() > 2**31 - 1:
            raise Declined("one image is larger than 2 GB")
        return np.where(inside, total, -1).reshape(self.pixels, self.count)


def read_places(
    image: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> Window | Taps:
    """The pixels that the windows of ONNX's lists read; an empty list is ONNX's default. Raises Declined."""
    axes = len(image)
    if axes < 3:
        return Window.of(image, kernel, strides, dilations, pads)
    strides, dilations, pads = strides or [1] * axes, dilations or [1] * axes, pads or [0] * (2 * axes)
    begin, ends = pads[:axes], pads[axes:]
    spare = [n + b + e - (k - 1) * d - 1 for n, k, d, b, e in zip(image, kernel, dilations, begin, ends, strict=True)]
    if min(spare) < 0:
        raise Declined("the kernel is larger than the padded image")
    out = [n // s + 1 for n, s in zip(spare, strides, strict=True)]
    return Taps.of(image, kernel, strides, dilations, begin, out)


def out_of(places: Window | Taps, rank: int) -> tuple[int, ...]:
    """The sizes of the spatial axes of a result of this rank: a Window has two axes even if the result has one."""
    return places.out[4 - rank :] if isinstance(places, Window) else places.out


_UNROLLS = (4, 3, 2)
"""Steps per iteration, the best first."""
_WHOLE, _WHOLE_ODD = 8, 20
"""The most steps that are unrolled without a loop; the second number applies if no unrolling divides the steps."""
_TILES_PER_THREAD, _TILE_MACS = 8, 1 << 16
"""Tiles per thread, so that threads finish together; and products per tile and lane, so that taking a tile costs
little."""
_OFFSET_LIMIT = 2**31 - 1


@frozen(slots=False)
class Layout:
    """The layout of activations and results in memory, in bytes.

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

    @cached_property
    def memo(self) -> Memo:
        """Keeps results that products with other weights share."""
        return Memo()

    @property
    def rows(self) -> int:
        """The number of output pixels."""
        return len(self.offsets)

    def x_bytes(self, read: int) -> int:
        """Bytes from the buffer's start to the last byte that a kernel reads, if it reads `read` bytes per offset."""
        far = int(self.offsets.max(initial=-1))
        return (self.images - 1) * self.x_image + far + read if far >= 0 else 0

    def y_bytes(self, written: int) -> int:
        """Bytes from the buffer's start to the last byte that a kernel writes, if it writes `written` bytes per row."""
        return (self.images - 1) * self.y_image + (self.rows - 1) * self.y_row + written

    @memoize
    def table(self, rows: int, taps: tuple[int, ...], later: tuple[int, ...] = (), share: int = 1) -> Array:
        """The kernel's table of offsets, int32 [blocks, taps, rows / share]. The last block overlaps the one before it.

        rows:  of a block. taps: the layout's taps, in the order in which the kernel reads them.
        share: rows that share one list of offsets. later: for each tap, the row among these to which the tap belongs.
        """
        first = np.minimum(np.arange(-(-self.rows // rows)) * rows, self.rows - rows)
        units = first[:, None] + np.arange(0, rows, share)
        offsets = self.offsets[units[:, None] + np.asarray(later or [0], int)[:, None], np.asarray(taps, int)[:, None]]
        return aligned_copy(offsets, np.int32)


def unroll_for(k: int) -> tuple[int, int]:
    """The unrolling of the loop over k bytes: steps of 4 bytes per iteration, and steps in all.

    A few steps are unrolled completely. Steps of zero weights are added if no unrolling divides a greater number.
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

    macs: products of one block. tiles: how many times all blocks are walked (images times panels).
    lanes: of a vector.
    """
    if threads == 1:
        return blocks
    share = max(blocks * tiles * macs // (threads * _TILES_PER_THREAD), _TILE_MACS * lanes)
    return max(1, min(blocks, share // max(1, macs)))
