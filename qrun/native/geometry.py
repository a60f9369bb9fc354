"""Convolution windows as tables of offsets into channels-last images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qrun.native.errors import Declined
from qrun.native.thresholds import Ints

_ENTRIES = 1 << 26


@dataclass(frozen=True, slots=True)
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
        if window.out[0] * window.out[1] * b[0] * b[1] > _ENTRIES:
            raise Declined("the table of offsets would be too large")
        return window

    @property
    def spare(self) -> tuple[int, int]:
        """How much larger the padded image is than the kernel."""
        h, w = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        top, left, bottom, right = self.pads
        return self.image[0] + top + bottom - h, self.image[1] + left + right - w

    @property
    def out(self) -> tuple[int, int]:
        return self.spare[0] // self.strides[0] + 1, self.spare[1] // self.strides[1] + 1

    def side_by_side(self, width: int) -> bool:
        """Whether outputs 2i and 2i+1 lie side by side and read pixels that do, of a kernel of this width."""
        across = self.kernel[1], self.strides[1], self.dilations[1]
        return across == (width, 1, 1) and self.out[1] % 2 == 0

    def offsets(self, pixel: int) -> Ints:
        """int64 [out pixels, kernel taps]: bytes from the image's start, `pixel` bytes each; -1 in the padding."""
        y, x = self._positions(0), self._positions(1)
        inside = ((y >= 0) & (y < self.image[0]))[:, None, :, None] & ((x >= 0) & (x < self.image[1]))[:, None]
        places = (y[:, None, :, None] * self.image[1] + x[:, None]) * pixel
        return np.where(inside, places, -1).reshape(self.out[0] * self.out[1], self.kernel[0] * self.kernel[1])

    def line_offsets(self, pixel: int) -> Ints:
        """int64 [out pixels, kernel rows] into an image whose padding is stored: one tap is a whole kernel row."""
        line = (self.image[1] + self.pads[1] + self.pads[3]) * pixel
        y, x = self._positions(0) + self.pads[0], self._positions(1)[:, 0] + self.pads[1]
        return (y[:, None, :] * line + (x * pixel)[:, None]).reshape(self.out[0] * self.out[1], self.kernel[0])

    def _positions(self, axis: int) -> Ints:
        """[out, kernel]: coordinates in the image, outside it in the padding."""
        out = np.arange(self.out[axis], dtype=np.int64)[:, None] * self.strides[axis]
        return out + np.arange(self.kernel[axis]) * self.dilations[axis] - self.pads[axis]
