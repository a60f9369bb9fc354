"""Plans transposed convolutions of float32.

Results whose coordinates are equal modulo the strides use the same taps of the kernel, at the same distances. Each such
phase is a stack of products, one for each of its lines. Zeros are stored around the image for inputs beyond it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, pad_copy
from qrun.native.kernels.fma_product import (
    FloatPanels,
    FloatProduct,
    FloatStack,
    FloatTerms,
    LeftRows,
    product_call,
    stack_starts,
)
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Order, size

_FLOAT = np.dtype(np.float32)
_LIMIT = 2**31 - 1
_PHASES = 64
"""The most phases; each is a stack of products with a call of its own."""


@frozen
class _Axis:
    """One axis: the sizes of input and output, and of the kernel. begin: how many sums are cut off before the first
    result."""

    size: int
    out: int
    taps: int
    stride: int
    dilation: int
    begin: int

    def phase(self, first: int) -> tuple[int, list[tuple[int, int]]]:
        """The phase of result `first`: the number of its results, which are `stride` apart; and its taps, each with the
        place of the input that it meets for the first result."""
        meets = ((tap, first + self.begin - tap * self.dilation) for tap in range(self.taps))
        found = [(tap, index // self.stride) for tap, index in meets if index % self.stride == 0]
        return -(-(self.out - first) // self.stride), found

    @property
    def border(self) -> tuple[int, int]:
        """The elements before and after the image that some result reads."""
        low, high = 0, self.size - 1
        for first in range(min(self.stride, self.out)):
            count, taps = self.phase(first)
            for _, index in taps:
                low, high = min(low, index), max(high, index + count - 1)
        return -low, high - (self.size - 1)


def _steps(sizes: Sequence[int], element: int) -> list[int]:
    """Bytes from one element to the next along each axis of an image in C order. element: bytes of an element."""
    return [element * size(sizes[axis + 1 :]) for axis in range(len(sizes))]


class FloatConvTranspose(FloatProduct):
    """y [N, M, spatial...] of float32 [N, C, spatial...], weights [C, M/group, kernel...], finite,
    and bias [M], constant.

        full[i * stride + k * dilation] += sum over c of x[c, i] * w[c, m, k]; y = full from `begin` on, plus bias

    before: the copy that pads the image, for three spatial axes or more. Raises Declined.
    """

    order: Order = "channels"
    gaps = False

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w: Array,
        y_shape: Sequence[int],
        *,
        bias: Array | None,
        group: int,
        strides: Sequence[int],
        dilations: Sequence[int],
        begin: Sequence[int],
    ) -> None:
        self.engine, self.group = engine, group
        spatial = len(x_shape) - 2
        if not spatial:
            raise Declined("no spatial axes")
        if not size(w.shape) or not size(x_shape):
            raise Declined("sums of nothing")
        if np.prod(strides) > _PHASES:
            raise Declined("strides of more than 64 phases")
        numbers = (x_shape[2:], y_shape[2:], w.shape[2:], strides, dilations, begin)
        axes = [_Axis(*(int(n) for n in each)) for each in zip(*numbers, strict=True)]
        self.axes = axes if spatial > 1 else [_Axis(1, 1, 1, 1, 1, 0), *axes]
        self.depth, self.each = w.shape[0] // group, w.shape[1]
        begins, ends = zip(*(axis.border for axis in self.axes), strict=True)
        self.before: Copy | None = None
        if spatial > 2:
            zero, apart = np.zeros((), _FLOAT), (0, 0)
            self.before = pad_copy(engine, x_shape, zero, (*apart, *begins), (*apart, *ends), "channels")
            x = Operand(self.before.result.shape, _FLOAT, tight=True)
        else:
            x = Operand(tuple(x_shape), _FLOAT, (*begins, *ends), 0, True)
        self.operands = (x, Operand(tuple(y_shape), _FLOAT))
        self.weights = w.reshape(group, self.depth, self.each, *(axis.taps for axis in self.axes))
        self.bias = None if bias is None else np.ascontiguousarray(bias)
        self.terms = FloatTerms("sum" if bias is None else "bias")

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        firsts = itertools.product(*(range(min(axis.stride, axis.out)) for axis in self.axes))
        return tuple(self._phase(first) for first in firsts)

    def _phase(self, first: Sequence[int]) -> KernelCall:
        """The call for one phase: the results at place `first`, and at every stride from there on."""
        counts, met = zip(*(axis.phase(index) for axis, index in zip(self.axes, first, strict=True)), strict=True)
        x, y = self.operands
        read = _steps([axis.size + sum(axis.border) for axis in self.axes], 4 * x.shape[1])
        made = _steps([axis.out for axis in self.axes], 4 * y.shape[1])
        begins = [axis.border[0] for axis in self.axes]
        places = itertools.product(
            *([index + begin for _, index in taps] for taps, begin in zip(met, begins, strict=True))
        )
        rows = self._rows(counts[-1], read[-1], [int(np.dot(index, read)) for index in places])
        weights = self._matrices([[tap for tap, _ in taps] for taps in met])
        reach = 0 if rows.steps is None or rows.offsets is None else int(rows.steps.max() + rows.offsets.max())
        if reach + np.dot(counts[:-1], read[:-1]) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        lines = [
            (count, step, axis.stride * to) for count, step, axis, to in zip(counts, read, self.axes, made, strict=True)
        ]
        stack = self._stack(rows, lines[:-1], int(np.dot(first, made)), self.axes[-1].stride * made[-1])
        arrays = {} if self.bias is None else {"addend*": self.bias}
        extents = 4 * size(x.memory_shape("channels")), 4 * size(y.shape)
        return product_call(self.again(arrays=arrays), stack, ("a*", "y*"), extents, weights=weights)

    def _rows(self, across: int, pixel: int, taps: Sequence[int]) -> LeftRows:
        """The rows of a line of results. taps: bytes from a pixel to each tap; rows are zeros if there are none."""
        if not taps:
            return LeftRows(across, 1, 4, np.full((across, 1), -1, np.int32), np.zeros((1, 2), np.int32))
        steps = (np.arange(self.depth)[:, None] * 4 + np.array(taps)).reshape(-1)
        offsets = np.arange(across) * pixel
        tables = [np.ascontiguousarray(np.minimum(numbers, _LIMIT), np.int32) for numbers in (offsets, steps)]
        return LeftRows(across, len(steps), 0, tables[0], tables[1])

    def _matrices(self, taps: Sequence[Sequence[int]]) -> FloatPanels:
        """The weights of these taps of each axis, [groups][channels, then taps][results]; zeros if there are none."""
        picked = self.weights
        for axis, own in enumerate(taps):
            picked = picked.take(np.array(own, np.intp), 3 + axis)
        if not picked.size:
            return FloatPanels(np.zeros((self.group, 1, self.each), _FLOAT), Memo())
        return FloatPanels(np.moveaxis(picked, 2, -1).reshape(self.group, -1, self.each), Memo())

    def _stack(self, rows: LeftRows, lines: Sequence[tuple[int, int, int]], origin: int, y_row: int) -> FloatStack:
        """A product for each image, group and line. lines: for each axis but the last, the number of lines, and bytes
        from one to the next in x and in y. origin: the byte of the first result; y_row: bytes from row to row of y."""
        x, y = self.operands
        by_image = 4 * size(x.memory_shape("channels")[1:]), 0, 0, 4 * size(y.shape[1:])
        by_group = 4 * self.depth, 1, 4 * self.each, 4 * self.each
        by_line = ((step, 0, 0, to) for _, step, to in lines)
        starts = stack_starts((y.shape[0], self.group, *(count for count, *_ in lines)), by_image, by_group, *by_line)
        starts[:, 3] += origin
        return FloatStack(starts, rows, self.each, 4 * self.each, 0, y_row)
