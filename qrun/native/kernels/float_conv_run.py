"""Planned convolutions of float32 whose weights come with the run, each element the real sum rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, transposed, view
from qrun.native.kernels.float_tiles import LeftRows
from qrun.native.kernels.floats import Exact, FloatProduct, FloatStack, FloatTerms, product_call
from qrun.native.kernels.layout import Window
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Order, size

_FLOAT = np.dtype(np.float32)
_LIMIT = 2**31 - 1


class FloatConvOfRun(FloatProduct):
    """y = sum x * w + bias of float32 x [N, C, spatial...], w as `matrix` has it, and bias [M] if there is one.

    w_shape: [M, C/group, kernel...]. One or two spatial axes. exact: makes elements that the kernel does not decide.
    Raises Declined.
    """

    order: Order = "channels"

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        exact: Exact,
        *,
        bias: bool,
        group: int,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
    ) -> None:
        super().__init__()
        self.engine, self.exact, self.group = engine, exact, group
        self.window = Window.of(x_shape[2:], w_shape[2:], strides, dilations, pads)
        outputs, self.depth = (int(n) for n in w_shape[:2])
        self.each, self.taps = outputs // group, size(self.window.kernel)
        if not self.depth * self.taps:
            raise Declined("sums of nothing")
        y_shape = (int(x_shape[0]), outputs, *self.window.out[2 - (len(x_shape) - 2) :])
        shapes = [tuple(x_shape), (group * self.taps * self.depth, self.each), *([(outputs,)] if bias else []), y_shape]
        self.operands = tuple(Operand(shape, _FLOAT, tight=place == 1) for place, shape in enumerate(shapes))
        self.terms = FloatTerms("bias" if bias else "sum")

    def matrix(self, w_shape: Sequence[int]) -> tuple[Copy, Copy, Copy]:
        """What makes the second operand of w, one after the other: rows are taps of a group, then its channels; columns
        are results."""
        apart = (self.group, self.each, self.depth, *self.window.kernel)
        turned = transposed(self.engine, apart, _FLOAT, (0, 3, 4, 2, 1))
        last = view(self.engine, turned.result.shape, self.operands[1].shape, _FLOAT)
        return view(self.engine, w_shape, apart, _FLOAT), turned, last

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if not size(self.result.shape):
            return ()
        (images, channels, *spatial), outputs = self.operands[0].shape, self.result.shape[1]
        pixel, row = strides[0] or 4 * channels, strides[-1] or 4 * outputs
        offsets = self.window.offsets(pixel)
        if offsets.max(initial=0) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        held = np.ascontiguousarray(offsets, np.int32)
        left = LeftRows(len(held), self.depth, 4 * self.taps, self.taps, held)
        stack = FloatStack(self._starts(pixel, row), left, self.each, 4 * self.each, 0, row)
        names = ("a*", "b*", *(["addend*"] if len(self.operands) > 3 else []), "y*")
        extents = [4 * size(operand.shape) for operand in self.operands]
        extents[0] = (images * size(spatial) - 1) * pixel + 4 * channels
        extents[-1] = (size(self.result.shape) // outputs - 1) * row + 4 * outputs
        return (product_call(self.engine, stack, self.terms, self.exact, {}, names, extents),)

    def _starts(self, pixel: int, row: int) -> Array:
        """Of each image's and group's product."""
        images, _, *spatial = self.operands[0].shape
        results = size(self.result.shape[2:])
        image, group = (n.reshape(-1) for n in np.indices((images, self.group)))
        columns = [
            image * (size(spatial) * pixel) + group * (4 * self.depth),
            group * (4 * self.taps * self.depth * self.each),
            group * (4 * self.each),
            image * (results * row) + group * (4 * self.each),
        ]
        return np.ascontiguousarray(np.stack(columns, axis=1), np.int64)
