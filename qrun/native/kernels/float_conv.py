"""Planned convolutions of float32; weights are constants, or come with the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.fma_product import BLOCK
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, transposed, view
from qrun.native.kernels.float_depthwise import depthwise_call, grouped_call
from qrun.native.kernels.fma_product import (
    FloatPanels,
    FloatProduct,
    FloatStack,
    FloatTerms,
    LeftRows,
    product_call,
    stack_starts,
)
from qrun.native.kernels.layout import Taps, Window, out_of, read_places
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, Operand, Order, size

_FLOAT = np.dtype(np.float32)
_LIMIT = 2**31 - 1
_WAY, _COLLISIONS = 4096, 1 << 18
"""Bytes of one way of a first-level cache. Gathering costs as much as some columns, so that it pays where the greatest
power of two in bytes from pixel to pixel, times columns, is as large (measured on a Zen 3)."""
_NARROW = 4
"""Channels of a group up to which a vector is better filled with several groups."""


@frozen
class _Image:
    """What the rows of a convolution read. channels: of a group; all_channels: of the image."""

    places: Window | Taps
    channels: int
    all_channels: int

    @property
    def border(self) -> tuple[int, int, int, int]:
        """Elements of zeros that are stored around the image."""
        return self.places.pads if isinstance(self.places, Window) else (0, 0, 0, 0)

    def operand(self, shape: Sequence[int]) -> Operand:
        return Operand(tuple(shape), _FLOAT, self.border, 0, any(self.border))

    def rows(self, images: int, stride: int, columns: int) -> LeftRows:
        """The rows of one image, or of all where a pixel of the result reads the one at its own place; k runs over
        channels, then taps. stride: bytes from pixel to pixel; columns: of a group. Raises Declined."""
        places, pixel = self.places, stride or 4 * self.all_channels
        if places.plain:
            return LeftRows(images * size(places.out), self.channels, pixel)
        if isinstance(places, Window):
            offsets, steps = self._window(places, pixel)
        else:
            offsets = places.offsets(pixel)
            channel, tap = np.divmod(np.arange(self.channels * offsets.shape[1]), offsets.shape[1])
            steps = np.stack([4 * tap, 4 * channel], axis=1)
        if offsets.max(initial=0) + steps.max(initial=0) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        row = 4 * offsets.shape[1] if offsets.ndim > 1 else 0
        tables = [np.ascontiguousarray(numbers, np.int32) for numbers in (offsets, steps)]
        # Pixels that are a large power of two apart share few sets of the first-level cache, and taps evict each other.
        collides = math.gcd(pixel, _WAY) * columns >= _COLLISIONS and len(steps) > self.channels
        return LeftRows(len(offsets), len(steps), row, tables[0], tables[1], collides)

    def _window(self, window: Window, pixel: int) -> tuple[Ints, Ints]:
        _, left, _, right = window.pads
        line = (window.image[1] + left + right) * pixel
        (down, across), (height, width) = window.strides, window.out
        starts = np.arange(height)[:, None] * (down * line) + np.arange(width) * (across * pixel)
        tall, wide = (np.arange(n) * d for n, d in zip(window.kernel, window.dilations, strict=True))
        taps = (tall[:, None] * line + wide * pixel).reshape(-1)
        return starts.reshape(-1), (np.arange(self.channels)[:, None] * 4 + taps).reshape(-1)


class FloatConv(FloatProduct):
    """y = sum x * w + bias of float32 [N, C, spatial...], weights [M, C/group, kernel...] and bias [M] constant.

    reads: what results are made of, if that is not what strides, dilations and pads say. memo: weights in order, for
    convolutions that differ in x_shape. Raises Declined.
    """

    order: Order = "channels"

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w: Array,
        *,
        bias: Array | None = None,
        group: int = 1,
        strides: Sequence[int] = (),
        dilations: Sequence[int] = (),
        pads: Sequence[int] = (),
        reads: Taps | None = None,
        memo: Memo | None = None,
    ) -> None:
        memo = memo or Memo()
        self.engine, self.shape, self.group = engine, tuple(int(n) for n in x_shape), group
        places: Window | Taps = reads or read_places(x_shape[2:], w.shape[2:], strides, dilations, pads)
        (outputs, depth), taps = w.shape[:2], size(w.shape[2:])
        self.depth, self.each = depth, outputs // group
        if not depth * taps:
            raise Declined("sums of nothing")
        own = group > 1 and depth == self.each and depth <= _NARROW and engine.isa.lanes % depth == 0
        self.own_channels = own and depth * taps <= BLOCK
        self.image = _Image(places, depth, self.shape[1])
        y_shape = (self.shape[0], outputs, *out_of(places, len(self.shape)))
        x = Operand(self.shape, _FLOAT) if self.own_channels else self.image.operand(self.shape)
        self.operands = (x, Operand(y_shape, _FLOAT))
        self.arrays = arrays = dict[str, Array]()
        ordered = w.reshape(group, self.each, depth * taps).transpose(0, 2, 1)
        self.weights: FloatPanels | None = None
        if self.own_channels:
            turned = ordered.reshape(group, depth * taps, self.each).transpose(1, 0, 2)
            arrays["b*"] = memo.once("weights", lambda: np.ascontiguousarray(turned).reshape(depth * taps, outputs))
        else:
            self.weights = memo.once("weights", lambda: FloatPanels(ordered, memo))
        if bias is not None:
            arrays["addend*"] = np.ascontiguousarray(bias)
        self.terms = FloatTerms("sum" if bias is None else "bias")
        steps = [int(n[-1]) if n else 1 for n in (strides, dilations)]
        self.line = (1, 1, 1) if reads else (int(w.shape[-1]), steps[0], steps[1])

    def then(self, function: str, operand: Operand) -> FloatConv | None:
        shape, tail = self.result.shape, self.terms.tail
        whole = function == "add" and operand.shape == shape
        step = "residual" if whole else {"mul": "factor", "add": "term"}.get(function, "")
        by_channel = (1,) * (len(shape) - len(operand.shape)) + operand.shape == (1, shape[1], *[1] * (len(shape) - 2))
        if not (step and (whole or by_channel)) or step in tail or self.own_channels or self.terms.limited:
            return None
        if operand.dtype != _FLOAT or any(operand.border) or self.terms.out != "f32":
            return None
        operands = (*self.operands[:-1], operand, self.result)
        return self.again(terms=replace(self.terms, tail=(*tail, step)), operands=operands)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, outputs = self.operands[0], self.result.shape[1]
        pixel, row, beside = strides[0] or 4 * x.shape[1], strides[-1] or 4 * outputs, 4 * outputs
        places, pixels = self.image.places, size(x.stored("channels")[:-1])
        results = size(self.result.shape) // outputs
        images = 1 if places.plain and not self.own_channels else self.shape[0]
        extents = [(pixels - 1) * pixel + 4 * x.shape[1], *[4 * outputs] * len(self.terms.tail)]
        if "residual" in self.terms.tail:
            place = 1 + self.terms.tail.index("residual")
            beside = strides[place] or beside
            extents[place] += (results - 1) * beside
        extents.append((results - 1) * row + 4 * outputs)
        rows = [row, beside] if "residual" in self.terms.tail else [row]
        by_image = pixels // images * pixel, 0, 0, *(results // images * step for step in rows)
        if self.own_channels:
            return (self._by_channels(stack_starts((images,), by_image), pixel, row, extents),)
        by_group = 4 * self.depth, 1, *[4 * self.each] * (len(by_image) - 2)
        starts = stack_starts((images, self.group), by_image, by_group)
        left = self.image.rows(self.shape[0], strides[0], self.each)
        stack = FloatStack(starts, left, self.each, 4 * self.each, 0, row, residual_row=beside)
        names = ("a*", *(f"{step}*" for step in self.terms.tail), "y*")
        return (product_call(self, stack, names, extents, weights=self.weights),)

    def _by_channels(self, starts: Ints, pixel: int, row: int, extents: Sequence[int]) -> KernelCall:
        places, outputs, (k, _) = self.image.places, self.result.shape[1], self.arrays["b*"].shape
        stack = FloatStack(starts, LeftRows(size(places.out), k, 0), outputs, 4 * outputs, 0, row)
        if self.depth == 1:
            return depthwise_call(self, places, self.line, stack, extents, pixel)
        offsets = places.offsets(pixel)
        if offsets.max(initial=0) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        return grouped_call(self, offsets, self.depth, stack, extents)


class FloatConvOfRun(FloatProduct):
    """y = sum x * w + bias of float32 x [N, C, spatial...], w as `matrix` has it, and bias [M] if there is one.

    w_shape: [M, C/group, kernel...]. Raises Declined.
    """

    order: Order = "channels"

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        *,
        bias: bool,
        group: int,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
    ) -> None:
        self.engine, self.group = engine, group
        places = read_places(x_shape[2:], w_shape[2:], strides, dilations, pads)
        outputs, self.depth = (int(n) for n in w_shape[:2])
        self.each, self.k = outputs // group, self.depth * size(w_shape[2:])
        if not self.k:
            raise Declined("sums of nothing")
        self.image = _Image(places, self.depth, int(x_shape[1]))
        y_shape = (int(x_shape[0]), outputs, *out_of(places, len(x_shape)))
        matrix = Operand((group * self.k, self.each), _FLOAT, tight=True)
        addend = [Operand((outputs,), _FLOAT)] if bias else []
        self.operands = (self.image.operand(x_shape), matrix, *addend, Operand(y_shape, _FLOAT))
        self.terms = FloatTerms("bias" if bias else "sum")

    def matrix(self, w_shape: Sequence[int]) -> tuple[Copy, Copy, Copy]:
        """What makes the second operand of w, one after the other: rows are a group's channels, then its taps; columns
        are results."""
        apart = (self.group, self.each, self.k)
        turned = transposed(self.engine, apart, _FLOAT, (0, 2, 1))
        last = view(self.engine, turned.result.shape, self.operands[1].shape, _FLOAT)
        return view(self.engine, w_shape, apart, _FLOAT), turned, last

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, outputs = self.operands[0], self.result.shape[1]
        pixel, row = strides[0] or 4 * x.shape[1], strides[-1] or 4 * outputs
        left = self.image.rows(1, strides[0], self.each)
        pixels, results = size(x.stored("channels")[:-1]), size(self.result.shape) // outputs
        by_image = pixels // x.shape[0] * pixel, 0, 0, results // x.shape[0] * row
        by_group = 4 * self.depth, 4 * self.k * self.each, 4 * self.each, 4 * self.each
        starts = stack_starts((x.shape[0], self.group), by_image, by_group)
        stack = FloatStack(starts, left, self.each, 4 * self.each, 0, row)
        names = ("a*", "b*", *(["addend*"] if len(self.operands) > 3 else []), "y*")
        extents = [operand.nbytes for operand in self.operands]
        extents[0], extents[-1] = (pixels - 1) * pixel + 4 * x.shape[1], (results - 1) * row + 4 * outputs
        return (product_call(self, stack, names, extents),)
