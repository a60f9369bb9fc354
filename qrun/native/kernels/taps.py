"""What windows of any number of axes read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.errors import Declined
from qrun.native.kernels.layout import ENTRIES, Window
from qrun.native.machine.memory import Ints
from qrun.native.machine.operation import size
from qrun.shapes import MOST_AXES


@frozen(slots=False)
class Taps:
    """What each output pixel reads, axis by axis: image sizes, and for each axis int64 [out, kernel] coordinates, -1
    outside."""

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
        """Of windows with one value per axis. begin: pads before the image; out: windows. transposed: what each result of a
        transposed convolution reads instead: sums that go to i * stride + k * dilation, less `begin`. Raises Declined."""
        if size(out) * size(kernel) > ENTRIES:
            raise Declined("the table of offsets would be too large")
        places = []
        for n, k, s, d, b, o in zip(image, kernel, strides, dilations, begin, out, strict=True):
            result, tap = np.arange(o, dtype=np.int64)[:, None], np.arange(k, dtype=np.int64) * d
            place, rest = np.divmod(result + b - tap, s) if transposed else (result * s - b + tap, 0)
            places.append(np.where((rest == 0) & (place >= 0) & (place < n), place, -1))
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
        """Whether each output pixel reads the one at its own place, and no other."""
        return self.count == 1 and all(
            np.array_equal(places[:, 0], np.arange(n)) for n, places in zip(self.image, self.places, strict=True)
        )

    @property
    def out(self) -> tuple[int, ...]:
        return tuple(len(places) for places in self.places)

    @property
    def pixels(self) -> int:
        return size(self.out)

    @property
    def count(self) -> int:
        """Taps of a window, those outside included."""
        return size([places.shape[1] for places in self.places])

    @cached_property
    def inside(self) -> Ints:
        """int64 [pixels]: taps that lie in the image."""
        total = np.ones((), np.int64)
        for places in self.places:
            total = np.multiply.outer(total, (places >= 0).sum(axis=1))
        return total.reshape(-1)

    def offsets(self, pixel: int) -> Ints:
        """int64 [pixels, taps]: bytes from the image's start to the pixel that each tap reads, `pixel` bytes each; -1
        outside."""
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
    """What windows by ONNX's lists read; an empty list is ONNX's default. Raises Declined."""
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
    """Sizes of the spatial axes of a result of this rank: a Window has two axes also for one."""
    return places.out[4 - rank :] if isinstance(places, Window) else places.out
