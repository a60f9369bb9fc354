"""Plans pooling: the maximum of each window, or a rounded mean."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.spec import CODES, NARROW, OUT_OF, PIECE
from qrun.native.errors import Declined
from qrun.native.kernels.layout import Taps
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, Order, size
from qrun.native.machine.memory import Array, Ints, aligned, aligned_copy
from qrun.native.machine.operation import TILE_BYTES
from qrun.native.proof.means import Means

_FLOAT = np.dtype(np.float32)
_UNROLLS = (4, 3, 2, 1)


class Pool(Operation):
    """Base of pools over the windows `taps` of [N, C, spatial...], or with order ``rows`` of [N, spatial..., C]."""

    kind = ""
    types: tuple[np.dtype[Any], ...] = tuple(CODES)
    most_vectors = 4
    why = ""
    padding: float = 0.0
    """The value outside of the image."""

    def __init__(
        self, engine: Engine, x_shape: Sequence[int], dtype: Any, taps: Taps, order: Order = "channels"
    ) -> None:
        shape = tuple(int(n) for n in x_shape)
        if np.dtype(dtype) not in self.types:
            raise Declined("not 8-bit values")
        spatial = shape[2:] if order == "channels" else shape[1:-1]
        if len(shape) < 3 or spatial != taps.image:
            raise ValueError(f"{list(shape)} has not the image {list(taps.image)}")
        self.engine, self.order, self.taps = engine, order, taps
        self.images, self.channels = shape[0], shape[1 if order == "channels" else -1]
        y = (shape[0], self.channels, *taps.out) if order == "channels" else (shape[0], *taps.out, self.channels)
        self.operands = (Operand(shape, np.dtype(dtype)), Operand(y, np.dtype(dtype)))
        self.columns, self.out = self.channels * self.result.dtype.itemsize, OUT_OF[self.result.dtype]

    @abstractmethod
    def _form_and_words(self, taps: int) -> tuple[str, Mapping[str, int], Mapping[str, Array]]:
        """The kernel's form, and the words and arrays of this kind of pool. taps: of a window, with those added for
        unrolling."""

    @property
    def signed(self) -> bool:
        """Whether the elements are int8."""
        return bool(self.result.dtype == np.int8)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x_row, y_row = (s or self.columns for s in strides)
        unroll, offsets = _unroll(self.taps.offsets(x_row), self.kind)
        width, vectors = self._panel()
        panel = width * max(vectors, 1)
        panels, last = -(-self.columns // panel), max(self.columns - panel, 0)
        form, own, arrays = self._form_and_words(offsets.shape[1])
        table = aligned_copy(offsets, np.int32)
        pixels = self.taps.pixels
        x_image, y_image = size(self.taps.image) * x_row, pixels * y_row
        chunk, strip = self._shares(pixels, panels, panel * offsets.shape[1])
        words = {
            "x_image": x_image,
            "y_image": y_image,
            "y_row": y_row,
            "taps": offsets.shape[1],
            "panels": panels,
            "last_channel": last,
            "columns": self.columns,
            "pixels": pixels,
            "chunk": chunk,
            "chunks": -(-pixels // chunk),
            "strip": strip,
            "strips": -(-panels // strip),
            **own,
        }
        words["tiles"] = self.images * words["chunks"] * words["strips"]
        padding = aligned(panel // self.result.dtype.itemsize, self.result.dtype)
        padding[...] = self.padding
        arrays = {"padding*": padding, "offsets*": table, **arrays}
        read = int(offsets.max()) + last + panel if offsets.max() >= 0 else 0
        extents = (
            (self.images - 1) * x_image + read if read else 0,
            (self.images - 1) * y_image + (pixels - 1) * y_row + self.columns,
        )
        name = self.engine.isa.name
        spec = KernelSpec(self.kind, name, width, vectors, unroll, form, self.out, self.signed)
        given = spec, ("x*", "y*"), words, extents, arrays
        return (self.engine.kernels.call(*given, channels=self.channels, why=self.why),)

    def _panel(self) -> tuple[int, int]:
        """Bytes of a vector, and vectors of a panel; (16, 0) if rows have fewer than 16 bytes."""
        if self.columns < PIECE:
            return PIECE, 0
        widest = 4 * self.engine.isa.lanes
        fits = [
            (width, vectors)
            for width in (64, 32, 16)
            for vectors in range(1, self.most_vectors + 1)
            if width <= widest and width * vectors <= self.columns
        ]
        return min(fits, key=lambda f: (-(-self.columns // (f[0] * f[1])) * (f[1] + 1), -f[0]))

    def _shares(self, pixels: int, panels: int, work: int) -> tuple[int, int]:
        """Pixels and panels of a tile; work: bytes read per pixel and panel."""
        threads = self.engine.threads
        if threads == 1:
            return pixels, panels
        total = self.images * pixels * panels
        wanted = max(-(-total // (threads * 8)), -(-TILE_BYTES // work), 1)
        if wanted >= panels:
            return min(pixels, wanted // panels), panels
        return 1, wanted


class MaxPool(Pool):
    """The maximum of each window, 8-bit or float32. It is the type's least value, or -inf, if a window is empty, and
    NaN if an element is NaN."""

    kind = "max_pool"
    types = (*CODES, _FLOAT)
    narrows = True

    @property
    def padding(self) -> float:  # type: ignore[override]
        """The value of padding, below all elements."""
        return -np.inf if self.result.dtype == np.float32 else int(np.iinfo(self.result.dtype).min)

    def _form_and_words(self, taps: int) -> tuple[str, Mapping[str, int], Mapping[str, Array]]:
        """The kernel's form, and the words and arrays that only this pool needs."""
        return "max", {}, {}


class SumPool(Pool):
    """A function of the sum of each window's codes, where padding counts as x_zero (proof/means.py::Means)."""

    kind = "sum_pool"
    most_vectors = 2

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        dtype: Any,
        taps: Taps,
        x_zero: int,
        means: Means,
        order: Order = "channels",
    ) -> None:
        super().__init__(engine, x_shape, dtype, taps, order)
        self.padding = self.x_zero = x_zero
        self.means, self.why = means, means.why
        if taps.count >= 1 << 22:
            raise Declined("windows of more than four million elements")

    def _form_and_words(self, taps: int) -> tuple[str, Mapping[str, int], Mapping[str, Array]]:
        """The kernel's form, and the words and arrays that only this pool needs."""
        form, constants, zero = self.means.form, self.means.constants, self.means.zero
        shift = -taps * (self.x_zero + 128 * self.signed)
        arrays = {"constants*": constants}
        if self.means.table is not None:
            arrays["table*"] = self.means.table
        scale = int(np.float64(self.means.scale).view(np.int64))
        return (
            form,
            {"shift!": shift, "zero!": 0 if form == "table" else zero, "scale": scale, "table*": 0},
            arrays,
        )


class MeanPool(Pool):
    """onnxruntime's mean, all in float32 in this order:

        y = saturate(RNE((sum of (x - x_zero) * x_scale) / divisor / y_scale + y_zero))

    The sum is in the order of the window; divisors: [pixels]. NaN becomes the least code. x_scale must be finite.
    """

    kind = "mean_pool"
    most_vectors = 1

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        dtype: Any,
        taps: Taps,
        x_zero: int,
        divisors: Array,
        scales: tuple[np.float32, np.float32],
        y_zero: int,
        order: Order = "channels",
    ) -> None:
        super().__init__(engine, x_shape, dtype, taps, order)
        if divisors.shape != (taps.pixels,) or not np.isfinite(scales[0]):
            raise ValueError("a divisor for each pixel and a finite scale are needed")
        self.padding = self.x_zero = x_zero
        self.y_zero, self.scales = y_zero, scales
        self.divisors = aligned((taps.pixels, 2), np.float32, 0)
        self.divisors[:, 0] = divisors

    def _form_and_words(self, taps: int) -> tuple[str, Mapping[str, int], Mapping[str, Array]]:
        """The kernel's form, and the words and arrays that only this pool needs."""
        x_scale, y_scale, zero = (int(np.float32(v).view(np.int32)) for v in (*self.scales, np.float32(self.y_zero)))
        words = {"x_zero!": self.x_zero + 128 * self.signed, "scale!": x_scale, "divide!": y_scale, "zero!": zero}
        return "ort", words, {"constants*": self.divisors}


def _unroll(offsets: Ints, kind: str) -> tuple[int, Ints]:
    """Taps per iteration, and the table of offsets, filled up to a multiple of that: by the last tap for a maximum,
    else by padding. Float sums get no additional taps, since adding 0 changes -0."""
    pixels, taps = offsets.shape
    if kind == "average_pool":
        return next(u for u in _UNROLLS if taps % u == 0), offsets
    unroll = min((u for u in _UNROLLS if u <= taps), key=lambda u: -(-taps // u) * (u + 1))
    more = -taps % unroll
    extra = np.repeat(offsets[:, -1:], more, axis=1) if kind == "max_pool" else np.full((pixels, more), -1, np.int64)
    return unroll, np.concatenate([offsets, extra], axis=1)


class AveragePool(Pool):
    """The sum of each window of float32 [N, C, spatial...] divided by `divisors` [pixels], which are 1 or more. Padding
    counts as 0."""

    kind = "average_pool"
    types = (_FLOAT,)
    most_vectors = 2

    def __init__(self, engine: Engine, x_shape: Sequence[int], taps: Taps, divisors: Array) -> None:
        super().__init__(engine, x_shape, _FLOAT, taps, "channels")
        self.constants = aligned_copy(divisors, np.float64)

    def with_narrow_results(self, dtype: np.dtype[Any]) -> AveragePool:
        return self.again(out=NARROW[dtype.name])

    def _form_and_words(self, taps: int) -> tuple[str, Mapping[str, int], Mapping[str, Array]]:
        """The kernel's form, and the words and arrays that only this pool needs."""
        return "mean", {}, {"constants*": self.constants}
