"""Planned convolutions: shapes, weights and scales in; an object that turns activations into results out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.engine import Engine
from qrun.native.epilogue import Target
from qrun.native.errors import Declined
from qrun.native.fold import Folded, aligned, fold
from qrun.native.geometry import Window
from qrun.native.layout import Layout, unroll_for
from qrun.native.product import Product, Section
from qrun.native.results import Results
from qrun.native.thresholds import INT32

Array = np.ndarray[Any, Any]

_TYPES: dict[str, np.dtype[Any]] = {"u8": np.dtype(np.uint8), "s8": np.dtype(np.int8), "i32": np.dtype(np.int32)}
_EIGHT = (np.dtype(np.uint8), np.dtype(np.int8))
_FEW_CHANNELS = 16


class Conv:
    """A convolution of 8-bit activations [N, C, spatial...] with constant 8-bit weights [M, C/group, kernel...].

        acc = sum (x - x_zero_point) * (w - w_zero_point) + bias       int32, wrapping; padding counts as real 0
        y   = the requantization `target` of acc, or acc itself as int32

    One or two spatial axes. x_zero_point is an element of x's type; w_zero_point and bias are None, [M], or for the
    zero point one element. The object is immutable and may be used by several threads at once.

    x_shape, y_shape, y_type: what `run` takes and gives. sections: the kernel calls, in any order.
    x_pixel, y_pixel: channels from one pixel to the next in the buffers, if they are parts of wider ones: then kernels
    run through `engine.execute` or `sections` only, on buffers that start at the part's first channel.
    stored_pads: the input buffer holds the padding (top, left, bottom, right), filled with the zero point.
    may_wrap: whether some activations would take a sum out of int32.
    constant_bytes: memory held by packed weights, tables and constants.
    x_bytes, y_bytes: least sizes of the buffers; kernels may read `x_bytes`, a little beyond the last image.

    Raises Declined with the reason if this engine does not do it.
    """

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w: Array,
        *,
        x_zero_point: Array,
        w_zero_point: Array | None = None,
        bias: Array | None = None,
        target: Target | None = None,
        group: int = 1,
        strides: Sequence[int] = (),
        dilations: Sequence[int] = (),
        pads: Sequence[int] = (),
        x_pixel: int = 0,
        y_pixel: int = 0,
    ) -> None:
        if len(x_shape) < 3 or w.ndim != len(x_shape) or w.dtype not in _EIGHT or x_zero_point.dtype not in _EIGHT:
            raise Declined("not 8-bit activations [N, C, spatial...] with 8-bit weights of the same rank")
        images, channels = int(x_shape[0]), int(x_shape[1])
        outputs = w.shape[0]
        if x_zero_point.size != 1 or (bias is not None and bias.dtype != np.int32):
            raise Declined("x_zero_point is not one value, or the bias is not int32")
        if images < 0 or group < 1 or channels != w.shape[1] * group or outputs % group:
            raise Declined("channels do not fit the groups")
        if target is not None and target.w_scale.shape not in ((1,), (outputs,)):
            raise Declined("w_scale has neither one value nor one per output channel")
        self.engine = engine
        self.window = Window.of(x_shape[2:], w.shape[2:], strides, dilations, pads)
        self.x_shape, self.group = tuple(int(n) for n in x_shape), group
        self.x_type, self.x_zero = x_zero_point.dtype, int(x_zero_point.reshape(()))
        results_type = target.out if target else "i32"
        self.y_type = _TYPES[results_type]
        out = self.window.out[2 - (len(x_shape) - 2) :]
        self.y_shape = (images, outputs, *out)
        self.image = (images, *self.window.image, channels)
        self.x_pixel, self.y_pixel = x_pixel or channels, y_pixel or outputs
        if self.x_pixel < channels or self.y_pixel < outputs:
            raise Declined("pixels overlap")
        lines = self.x_pixel == channels and group == 1 and channels % 4 != 0 and channels < _FEW_CHANNELS
        lines = lines and self.window.kernel[1] > 1 and self.window.dilations[1] == 1
        self.stored_pads = self.window.pads if lines else (0, 0, 0, 0)
        self.lines = bool(lines)
        taps = w.reshape(outputs, w.shape[1], _size(self.window.kernel)).transpose(0, 2, 1)
        zero, addend = self._parameters(taps, w_zero_point, bias)
        self.sections: tuple[Section, ...] = ()
        self.may_wrap = False
        if 0 not in self.y_shape:
            signed = self.x_type == np.int8
            folded = fold(taps, zero, addend, self.x_zero, signed, signed and not self._depthwise(taps))
            self.may_wrap = bool((folded.low < INT32[0]).any() or (folded.high > INT32[1]).any())
            self.sections = tuple(self._plan(folded, target))
        self.x_bytes = max([_size(self._stored()), *(s.x_bytes for s in self.sections)])
        self.constant_bytes = sum(array.nbytes for s in self.sections for array in s.keep)
        self.y_bytes = max((s.y_bytes for s in self.sections), default=0)

    def _parameters(self, taps: Array, w_zero_point: Array | None, bias: Array | None) -> tuple[Array, Array]:
        n = len(taps)
        zero = np.zeros(1, taps.dtype) if w_zero_point is None else w_zero_point.reshape(-1)
        addend = np.zeros(n, np.int64) if bias is None else bias.astype(np.int64)
        if zero.dtype != taps.dtype or zero.size not in (1, n) or addend.shape != (n,):
            raise Declined("zero point or bias do not fit the weights")
        return np.broadcast_to(zero, (n,)), addend

    def _depthwise(self, taps: Array) -> bool:
        return self.group > 1 and len(taps) == self.group and taps.shape[2] == 1

    def _plan(self, folded: Folded, target: Target | None) -> list[Section]:
        engine = self.engine
        results = Results.of(target, folded, engine.isa.fma)

        def product(layout: Layout, part: Folded, part_results: Results) -> Product:
            zero = np.asarray(self.x_zero, self.x_type)
            return Product(engine.kernels, engine.isa, layout, part, part_results, zero, engine.threads)

        channels = self.image[3]
        if self._depthwise(folded.centred):
            return product(self._layout(channels, 0, 0), folded, results).depthwise()
        if self.lines:
            merged = folded.lines(self.window.kernel)
            return product(self._layout(merged.centred.shape[2], 0, 0), merged, results).dense()
        sections = []
        count = merged_groups(self.group, len(folded.centred) // self.group, folded.centred.shape[2], engine.isa.lanes)
        outputs = len(folded.centred) // self.group * count
        inputs = folded.centred.shape[2] * count
        for first in range(self.group // count):
            part = slice(first * outputs, (first + 1) * outputs)
            layout = self._layout(inputs, first * inputs, first * outputs)
            sections += product(layout, folded.part(part, count), results.part(part)).dense()
        return sections

    def _layout(self, k: int, x_start: int, y_first: int) -> Layout:
        size, pixel = self.y_type.itemsize, self.x_pixel
        offsets = self.window.line_offsets(pixel) if self.lines else self.window.offsets(pixel)
        if not k:
            offsets = np.full((len(offsets), 1), -1, np.int64)
        row = self.y_pixel * size
        x_image, y_image = _size(self._stored()[1:3]) * pixel, len(offsets) * row
        return Layout(self.image[0], offsets, k, x_image, y_image, row, x_start, y_first * size)

    def _stored(self) -> tuple[int, int, int, int]:
        n, h, w, c = self.image
        top, left, bottom, right = self.stored_pads
        return n, h + top + bottom, w + left + right, c

    def run(self, x: Array) -> Array:
        """x [N, C, spatial...] of any strides to y [N, M, spatial...]: views of channels-last memory are free.

        Raises ValueError if x has not the planned shape and type.
        """
        if x.shape != self.x_shape or x.dtype != self.x_type:
            raise ValueError(f"x is {x.dtype}{list(x.shape)}, planned {self.x_type}{list(self.x_shape)}")
        if (self.x_pixel, self.y_pixel) != (self.x_shape[1], self.y_shape[1]):
            raise ValueError("this plan works on parts of wider buffers")
        y = aligned((self.y_shape[0], *self.window.out, self.y_shape[1]), self.y_type)
        if self.sections:
            self.engine.execute(self.sections, self.input(x), y)
        y = y.reshape(self.y_shape[0], *self.y_shape[2:], self.y_shape[1])
        return np.moveaxis(y, -1, 1)

    def input(self, x: Array) -> Array:
        """x as the kernels read it: its own memory if that serves, else a copy."""
        nhwc = np.moveaxis(x, 1, -1).reshape(self.image)
        if not self.lines and nhwc.flags.c_contiguous and nhwc.nbytes >= self.x_bytes:
            return nhwc
        buffer = aligned(self.x_bytes, self.x_type)
        stored = self._stored()
        size = _size(stored)
        buffer[size:] = 0
        inner = buffer[:size].reshape(stored)
        if any(self.stored_pads):
            inner[...] = self.x_zero
        top, left = self.stored_pads[:2]
        inner[:, top : top + self.image[1], left : left + self.image[2]] = nhwc
        return buffer


def merged_groups(groups: int, outputs: int, inputs: int, lanes: int) -> int:
    """How many neighbouring groups to compute as one product, the weights between them zero, to fill vectors."""

    def cost(count: int) -> tuple[int, int]:
        steps = unroll_for(inputs * count)[1]
        return groups // count * -(-outputs * count // lanes) * steps, -count

    return min((count for count in range(1, groups + 1) if groups % count == 0), key=cost)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
