"""Planned convolutions of float32, each element the real sum rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.errors import Declined
from qrun.native.kernels.floats import (
    ElementRecheck,
    Exact,
    FloatStack,
    FloatTerms,
    LeftRows,
    column_lengths,
    even,
    product_call,
    stack_call,
)  # fmt: skip
from qrun.native.kernels.layout import Window
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Order, Planned, size

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_LIMIT = 2**31 - 1
_FEW_CHANNELS = 16
"""Below so many channels a whole line of the kernel is one tap, of an image whose padding is stored."""
_DEPTHWISE_ROWS = 4
_DEPTHWISE_WORK = 1 << 15
"""Products of a tile that are worth the taking."""


@frozen
class _Geometry:
    """How a convolution's rows become sums. lines: whether a tap is a line of the kernel; plain: whether each pixel of the
    result has one of its own, so that images follow each other."""

    window: Window
    group: int
    lines: bool
    plain: bool
    depthwise: bool


class FloatConv(Planned):
    """y = sum x * w + bias of float32 [N, C, spatial...], weights [M, C/group, kernel...] and bias [M] constant.

    One or two spatial axes. exact: makes elements that the kernel does not decide. memo: weights in order, for convolutions
    that differ in x_shape. Raises Declined.
    """

    order: Order = "channels"

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w: Array,
        exact: Exact,
        *,
        bias: Array | None = None,
        group: int = 1,
        strides: Sequence[int] = (),
        dilations: Sequence[int] = (),
        pads: Sequence[int] = (),
        memo: Memo | None = None,
    ) -> None:
        super().__init__()
        self._memo = memo or Memo()
        self.engine, self.exact, self.shape = engine, exact, tuple(int(n) for n in x_shape)
        window = Window.of(x_shape[2:], w.shape[2:], strides, dilations, pads)
        outputs, depth = w.shape[:2]
        taps = size(window.kernel)
        if not depth * taps:
            raise Declined("sums of nothing")
        lines = group == 1 and depth < _FEW_CHANNELS and window.kernel[1] > 1 and window.dilations[1] == 1
        plain = taps == 1 and not any(window.pads) and window.strides == (1, 1)
        self.geometry = _Geometry(window, group, lines, plain, depth == 1 < group == outputs)
        border = window.pads if lines else (0, 0, 0, 0)
        y_shape = (self.shape[0], outputs, *window.out[2 - (len(self.shape) - 2) :])
        self.operands = (Operand(self.shape, _FLOAT, border, 0, lines), Operand(y_shape, _FLOAT))
        each = outputs // group
        self.arrays = {"b*": self._memo.once("weights", lambda: self._ordered(w))}
        if bias is not None:
            self.arrays["addend*"] = np.ascontiguousarray(bias)
        self.terms = FloatTerms("sum" if bias is None else "bias")
        self.depth, self.each, self.taps = depth, each, taps

    def _ordered(self, w: Array) -> Array:
        """The weights in the order in which they are read: group, tap, input, output."""
        group, taps = self.geometry.group, size(w.shape[2:])
        ordered: Array = w.reshape(group, len(w) // group, w.shape[1], taps).transpose(0, 3, 2, 1)
        return np.ascontiguousarray(ordered.reshape(group, taps).T if self.geometry.depthwise else ordered)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if not size(self.result.shape):
            return ()
        if self.geometry.lines and strides[0]:
            raise ValueError("an operand that is read line by line has no gaps")
        channels, outputs = self.shape[1], self.result.shape[1]
        pixel, row = strides[0] or 4 * channels, strides[1] or 4 * outputs
        left = self._left(pixel)
        images = 1 if self.geometry.plain else self.shape[0]
        groups = 1 if self.geometry.depthwise else self.geometry.group
        stored = self.operands[0].stored("channels")
        pixels, results = size(stored[:-1]), size(self.result.shape) // outputs
        image, group = (n.reshape(-1) for n in np.indices((images, groups)))
        starts = np.stack(
            [
                image * (pixels // images * pixel) + group * (4 * self.depth),
                group * (4 * self.taps * self.depth * self.each),
                group * (4 * self.each),
                image * (results // images * row) + group * (4 * self.each),
            ],
            axis=1,
        )
        columns = outputs if self.geometry.depthwise else self.each
        stack = FloatStack(np.ascontiguousarray(starts, np.int64), left, columns, 4 * columns, 0, row)
        recheck = ElementRecheck(stack, self.exact)
        extents = (pixels - 1) * pixel + 4 * channels, (results - 1) * row + 4 * outputs
        given = (stack, self.terms, recheck)
        if self.geometry.depthwise:
            return (_depthwise_call(self.engine, *given, self.arrays, extents),)
        return (product_call(self.engine, *given, self.arrays, ("a*", "y*"), extents, self._lengths),)

    def _lengths(self) -> Array:
        weights = self.arrays["b*"].reshape(self.geometry.group, -1, self.each)
        return self._memo.once("lengths", lambda: column_lengths(weights))

    def _left(self, pixel: int) -> LeftRows:
        window, depth = self.geometry.window, self.depth
        if self.geometry.plain:
            return LeftRows(self.shape[0] * size(window.out), depth, pixel)
        if self.geometry.lines:
            offsets, depth = window.line_offsets(pixel), depth * window.kernel[1]
        else:
            offsets = window.offsets(pixel)
        if offsets.max(initial=0) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        taps = offsets.shape[1]
        held = np.ascontiguousarray(offsets, np.int32)
        return LeftRows(len(offsets), depth, 4 * taps, taps, held, 4 * self.geometry.depthwise)


def _depthwise_call(
    engine: Engine,
    stack: FloatStack,
    terms: FloatTerms,
    recheck: ElementRecheck,
    arrays: dict[str, Array],
    extents: Sequence[int],
) -> KernelCall:
    left, (rows, vectors) = stack.left, depthwise_block(engine.isa, stack.left.rows, stack.columns)
    width = vectors * (engine.isa.lanes // 2)
    high = left.rows
    if engine.threads > 1:
        work = max(stack.macs // (8 * engine.threads), _DEPTHWISE_WORK)
        high = max(rows, work // (stack.columns * left.taps))
    high = even(left.rows, high, rows)
    spec = KernelSpec("float_depthwise", engine.isa.name, rows, vectors, 1, terms.form, "f32", False)
    blocks = -(-left.rows // high)
    words = {
        "row_block": high, "panels": -(-stack.columns // width), "tiles": len(stack.starts) * blocks,
    }  # fmt: skip
    return stack_call(
        engine, spec, stack, terms, recheck, words, arrays, ("a*", "y*"), extents, 16 * rows * width
    )  # fmt: skip


def depthwise_block(isa: Isa, rows: int, columns: int) -> tuple[int, int]:
    """Pixels by vectors of channels: their sums, sizes and weights fit the registers."""
    return min(_DEPTHWISE_ROWS, rows), max(1, min(isa.vectors // 2, -(-columns // (isa.lanes // 2))))
