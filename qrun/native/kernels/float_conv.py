"""Planned convolutions of float32, each element the real sum rounded once;
weights are constants, or come with the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.isa import Isa
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, transposed, view
from qrun.native.kernels.float_depthwise import depthwise_call, grouped_call
from qrun.native.kernels.float_pairs import pairs_call
from qrun.native.kernels.float_product import FloatProduct, product_call
from qrun.native.kernels.float_winograd import winograd_call, worthwhile
from qrun.native.kernels.floats import Exact, FloatPanels, FloatStack, FloatTerms, LeftRows, stack_starts
from qrun.native.kernels.layout import Taps, Window, out_of, read_places
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, Order, row_tiles, size

_FLOAT = np.dtype(np.float32)
_LIMIT = 2**31 - 1
_FEW_CHANNELS = 16
"""Below so many channels a whole line of the kernel is one tap, of an image whose padding is stored."""
_PATCHED = 8, 16
"""From so few channels on, to so many, patches take less time than lines do (measured with AVX2 and AVX-512)."""
_REUSE = 2
"""An image whose pixels are read so many times is converted to float64 first."""
_NARROW = 4
"""Channels of a group up to which a vector is better filled with several groups."""
_LINE = 8
"""float64 numbers of a line of 64 bytes."""


@frozen
class _Geometry:
    """How a convolution's rows become sums.

    places: what each reads, a Window where it has one or two spatial axes. lines: whether a tap is a line of the
    kernel; plain: whether each pixel of the result has one of its own, so that images follow each other; wide: whether
    the image is float64 already; depthwise: whether a channel of the result is made of one, or of a few at its own
    place; patches: whether neighbours are made together (float_winograd.py).
    """

    places: Window | Taps
    group: int
    lines: bool
    plain: bool
    depthwise: bool
    wide: bool
    patches: bool

    @classmethod
    def of(cls, isa: Isa, places: Window | Taps, w: Array, group: int) -> _Geometry:
        window = places if isinstance(places, Window) else None
        (outputs, depth), taps = w.shape[:2], size(w.shape[2:])
        each, few = outputs // group, group == 1 and depth < _FEW_CHANNELS
        depthwise = depth == each and group > 1 and depth <= _NARROW and isa.lanes // 2 % depth == 0
        patches = window is not None and not depthwise and worthwhile(isa, window, depth, each)
        patches = patches and not (few and (depth < _PATCHED[0] or each < _PATCHED[1])) and bool(np.isfinite(w).all())
        lines = window is not None and few and not patches and window.kernel[1] > 1 and window.dilations[1] == 1
        again = size(places.out) * taps >= _REUSE * size(places.image)
        plain, wide = not depthwise and places.plain, again and not (depthwise or patches)
        return cls(places, group, lines, plain, depthwise, wide, patches)

    @property
    def window(self) -> Window:
        assert isinstance(self.places, Window)
        return self.places


class FloatConv(FloatProduct):
    """y = sum x * w + bias of float32 [N, C, spatial...], weights [M, C/group, kernel...] and bias [M] constant.

    reads: what results are made of, if that is not what strides, dilations and pads say. exact: makes elements that the
    kernel does not decide. memo: weights in order, for convolutions
    that differ in x_shape. widen: what makes the operand of x, if that is not x itself. Raises Declined.
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
        reads: Taps | None = None,
        memo: Memo | None = None,
    ) -> None:
        self._memo = memo or Memo()
        self.engine, self.exact, self.shape = engine, exact, tuple(int(n) for n in x_shape)
        places: Window | Taps = reads or read_places(x_shape[2:], w.shape[2:], strides, dilations, pads)
        outputs, depth = w.shape[:2]
        taps, each = size(w.shape[2:]), outputs // group
        if not depth * taps:
            raise Declined("sums of nothing")
        self.geometry = geometry = _Geometry.of(engine.isa, places, w, group)
        y_shape = (self.shape[0], outputs, *out_of(places, len(self.shape)))
        border = geometry.window.pads if geometry.lines else (0, 0, 0, 0)
        x = Operand(self.shape, _FLOAT, border, 0, geometry.lines)
        self.widen = WideImage(engine, x, group, geometry.lines) if geometry.wide else None
        self.operands = (self.widen.result if self.widen else x, Operand(y_shape, _FLOAT))
        ordered = w.reshape(group, each, depth, taps).transpose(0, 3, 2, 1)
        self.weights = None if geometry.depthwise else FloatPanels(ordered, self._memo)
        self.arrays = arrays = dict[str, Array]()
        if geometry.depthwise:
            arrays["b*"] = self._memo.once(
                "weights",
                lambda: np.ascontiguousarray(ordered.transpose(1, 2, 0, 3)).reshape(taps * depth, outputs),
            )
        if bias is not None:
            arrays["addend*"] = np.ascontiguousarray(bias)
        self.terms = FloatTerms("sum" if bias is None else "bias")
        self.depth, self.each, self.taps = depth, each, taps
        steps = [int(n[-1]) if n else 1 for n in (strides, dilations)]
        self.line = (1, 1, 1) if reads else (int(w.shape[-1]), steps[0], steps[1])

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, outputs = self.operands[0], self.result.shape[1]
        each, channels = x.dtype.itemsize, x.shape[1]
        pixel, row = strides[0] or each * channels, strides[1] or 4 * outputs
        left = self._left(pixel)
        images = 1 if self.geometry.plain else self.shape[0]
        groups = 1 if self.geometry.depthwise else self.geometry.group
        stored = x.stored("channels")
        pixels, results = size(stored[:-1]), size(self.result.shape) // outputs
        by_image = pixels // images * pixel, 0, 0, results // images * row
        starts = stack_starts((images, groups), by_image, (each * self.depth, 1, 4 * self.each, 4 * self.each))
        columns = outputs if self.geometry.depthwise else self.each
        stack = FloatStack(starts, left, columns, 4 * columns, 0, row)
        extents = (pixels - 1) * pixel + each * channels, (results - 1) * row + 4 * outputs
        if self.geometry.depthwise:
            if self.depth > 1:
                return (grouped_call(self, stack, extents),)
            return (depthwise_call(self, self.geometry.places, self.line, stack, extents, pixel),)
        if self.geometry.patches and self.weights:
            return (winograd_call(self, self.geometry.window, stack, extents, self.weights, pixel),)
        if self.geometry.plain and (weights := self.weights):
            given = self, stack.in_rows(), ("a*", "y*"), extents
            if paired := pairs_call(*given, matrices=weights.rows, lengths=weights.lengths, memo=weights.memo):
                return (paired,)
        return (product_call(self, stack, ("a*", "y*"), extents, weights=self.weights),)

    def _left(self, pixel: int) -> LeftRows:
        places, depth = self.geometry.places, self.depth
        if self.geometry.plain:
            return LeftRows(self.shape[0] * size(places.out), depth, pixel)
        wide, lines = self.geometry.wide, self.geometry.lines
        if lines:
            window = self.geometry.window
            offsets = window.line_offsets(8 * depth, pixel) if wide else window.line_offsets(pixel)
            depth *= window.kernel[1]
        else:
            offsets = places.offsets(pixel)
        if offsets.max(initial=0) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        taps = offsets.shape[1]
        held = np.ascontiguousarray(offsets, np.int32)
        image = (self.widen.channels, self.operands[0].shape[1]) if self.widen else None
        column, line = 4 * self.geometry.depthwise * depth, pixel if wide and lines else 0
        return LeftRows(len(offsets), depth, 4 * taps, taps, held, column, depth, image=image, line=line)


class WideImage(Operation):
    """float32 [N, C, spatial...] as float64, with the sums of squares of each group's channels behind those of a pixel.

    lines: with the border, and one sum behind each line instead; the result has lines in place of pixels. channels:
    numbers of a pixel, or line, that are x's.
    """

    order: Order = "channels"
    gaps = False
    narrows = True

    def __init__(self, engine: Engine, x: Operand, group: int, lines: bool = False) -> None:
        self.engine, self.group = engine, group
        images, *spatial, channels = x.stored("channels")
        if lines:
            *spatial, pixels = spatial
            spatial, channels = spatial or [1], pixels * channels
        numbers = -(-(channels + group) // _LINE) * _LINE
        self.channels = channels
        self.operands = x, Operand((images, numbers, *spatial), np.dtype(np.float64), tight=True)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        (images, numbers, *spatial), channels = self.result.shape, self.channels
        pixels, x_row = images * size(spatial), strides[0] or 4 * channels
        spec = KernelSpec("widen", self.engine.isa.name, 1, 4, 1, "cast", "f64", False)
        words = row_tiles(pixels, 8 * numbers, self.engine.threads) | {"x_row": x_row, "y_row": 8 * numbers}
        words |= {"depth": channels // self.group, "groups": self.group, "squares_at": 8 * channels}
        extents = (pixels - 1) * x_row + 4 * channels, 8 * numbers * pixels
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, extents),)


class FloatConvOfRun(FloatProduct):
    """y = sum x * w + bias of float32 x [N, C, spatial...], w as `matrix` has it, and bias [M] if there is one.

    w_shape: [M, C/group, kernel...]. exact: makes elements that the kernel does not decide.
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
        self.engine, self.exact, self.group = engine, exact, group
        self.places = read_places(x_shape[2:], w_shape[2:], strides, dilations, pads)
        outputs, self.depth = (int(n) for n in w_shape[:2])
        self.each, self.taps = outputs // group, size(w_shape[2:])
        if not self.depth * self.taps:
            raise Declined("sums of nothing")
        y_shape = (int(x_shape[0]), outputs, *out_of(self.places, len(x_shape)))
        shapes = [tuple(x_shape), (group * self.taps * self.depth, self.each), *([(outputs,)] if bias else []), y_shape]
        self.operands = tuple(Operand(shape, _FLOAT, tight=place == 1) for place, shape in enumerate(shapes))
        self.terms = FloatTerms("bias" if bias else "sum")

    def matrix(self, w_shape: Sequence[int]) -> tuple[Copy, Copy, Copy]:
        """What makes the second operand of w, one after the other: rows are taps of a group, then its channels; columns
        are results."""
        apart = (self.group, self.each, self.depth, self.taps)
        turned = transposed(self.engine, apart, _FLOAT, (0, 3, 2, 1))
        last = view(self.engine, turned.result.shape, self.operands[1].shape, _FLOAT)
        return view(self.engine, w_shape, apart, _FLOAT), turned, last

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        (images, channels, *spatial), outputs = self.operands[0].shape, self.result.shape[1]
        pixel, row = strides[0] or 4 * channels, strides[-1] or 4 * outputs
        offsets = self.places.offsets(pixel)
        if offsets.max(initial=0) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        held = np.ascontiguousarray(offsets, np.int32)
        left = LeftRows(len(held), self.depth, 4 * self.taps, self.taps, held)
        by_image = size(spatial) * pixel, 0, 0, size(self.result.shape[2:]) * row
        by_group = 4 * self.depth, 4 * self.taps * self.depth * self.each, 4 * self.each, 4 * self.each
        starts = stack_starts((images, self.group), by_image, by_group)
        stack = FloatStack(starts, left, self.each, 4 * self.each, 0, row)
        names = ("a*", "b*", *(["addend*"] if len(self.operands) > 3 else []), "y*")
        extents = [4 * size(operand.shape) for operand in self.operands]
        extents[0] = (images * size(spatial) - 1) * pixel + 4 * channels
        extents[-1] = (size(self.result.shape) // outputs - 1) * row + 4 * outputs
        return (product_call(self, stack, names, extents),)
