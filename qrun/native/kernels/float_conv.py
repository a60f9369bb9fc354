"""Plans float32 convolutions; weights are constants, or come with the run. Depthwise convolutions, and those with
groups of a few channels, have kernels of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.float_conv import shared_pixels
from qrun.native.emit.fma_product import BLOCK
from qrun.native.emit.isa import Isa
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, transpose_copy, view
from qrun.native.kernels.fma_product import (
    FloatPanels,
    FloatProduct,
    FloatStack,
    FloatTerms,
    LeftRows,
    part_size,
    product_call,
    stack_starts,
)
from qrun.native.kernels.layout import Taps, Window, out_of, read_places
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec, Operand, Order, size

_FLOAT = np.dtype(np.float32)
_LIMIT = 2**31 - 1
_WAY, _COLLISIONS = 4096, 1 << 18
"""Bytes of one way of a first-level cache; and a threshold. Gathering costs as much as some columns, so it pays if the
greatest power of two in the bytes from pixel to pixel, times columns, reaches the threshold (measured on a Zen 3)."""
_NARROW = 4
"""The most channels of a group for which a vector is better filled with several groups."""
_NEIGHBOURS, _LINE = 8, 7
"""The most results that are computed together, and the most elements of a kernel's line that fit the registers."""
_NARROW_LINE = 3
"""The most elements of a line if a panel has several vectors of channels."""
_ROWS = 6
"""Pixels that are computed together, for groups of several channels."""
_PIXELS = 1024
"""Results of a tile in one channel, so that the data they read stays in the cache."""
_WORK = 1 << 15
"""Products for which taking a tile is worthwhile."""
_TILES_PER_THREAD = 8


@frozen
class _Image:
    """The image that the rows of a convolution read. channels: of a group; all_channels: of the image."""

    places: Window | Taps
    channels: int
    all_channels: int

    @property
    def border(self) -> tuple[int, int, int, int]:
        """The zeros that are stored around the image: (top, left, bottom, right)."""
        return self.places.pads if isinstance(self.places, Window) else (0, 0, 0, 0)

    def operand(self, shape: Sequence[int]) -> Operand:
        """The float32 operand of a shape, with the border of zeros that the windows read."""
        return Operand(tuple(shape), _FLOAT, self.border, 0, any(self.border))

    def rows(self, images: int, stride: int, columns: int) -> LeftRows:
        """The rows of one image, or of all images if each pixel of the result reads only the one at its own place. k
        runs over channels, then taps. stride: bytes from pixel to pixel; columns: columns of a group.
        Raises Declined for images larger than 2 GB."""
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
        # Pixels a large power of two apart share few sets of the first-level cache, so that taps evict each other.
        collides = math.gcd(pixel, _WAY) * columns >= _COLLISIONS and len(steps) > self.channels
        return LeftRows(len(offsets), len(steps), row, tables[0], tables[1], collides)

    def _window(self, window: Window, pixel: int) -> tuple[Ints, Ints]:
        """Byte offsets of the windows' starts, and of the taps within a window."""
        _, left, _, right = window.pads
        line = (window.image[1] + left + right) * pixel
        (down, across), (height, width) = window.strides, window.out
        starts = np.arange(height)[:, None] * (down * line) + np.arange(width) * (across * pixel)
        tall, wide = (np.arange(n) * d for n, d in zip(window.kernel, window.dilations, strict=True))
        taps = (tall[:, None] * line + wide * pixel).reshape(-1)
        return starts.reshape(-1), (np.arange(self.channels)[:, None] * 4 + taps).reshape(-1)


class FloatConv(FloatProduct):
    """y = sum x * w + bias of float32 [N, C, spatial...], weights [M, C/group, kernel...] and bias [M] constant.

    reads: the pixels that results read, if strides, dilations and pads do not say so. memo: keeps packed weights, for
    other shapes of x. Raises Declined for sums without terms, and for windows and images that are not supported.
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
        """This convolution followed by an elementwise function; None if it cannot take the operand."""
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

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, outputs = self.operands[0], self.result.shape[1]
        pixel, row, beside = strides[0] or 4 * x.shape[1], strides[-1] or 4 * outputs, 4 * outputs
        places, pixels = self.image.places, size(x.memory_shape("channels")[:-1])
        results = size(self.result.shape) // outputs
        images = 1 if places.plain and not self.own_channels else self.shape[0]
        extents = [(pixels - 1) * pixel + 4 * x.shape[1], *[4 * outputs] * len(self.terms.tail)]
        if "residual" in self.terms.tail:
            index = 1 + self.terms.tail.index("residual")
            beside = strides[index] or beside
            extents[index] += (results - 1) * beside
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
        """The call of a grouped or depthwise convolution."""
        places, outputs, (k, _) = self.image.places, self.result.shape[1], self.arrays["b*"].shape
        stack = FloatStack(starts, LeftRows(size(places.out), k, 0), outputs, 4 * outputs, 0, row)
        if self.depth == 1:
            return depthwise_call(self, places, self.line, stack, extents, pixel)
        offsets = places.offsets(pixel)
        if offsets.max(initial=0) > _LIMIT:
            raise Declined("one image is larger than 2 GB")
        return grouped_call(self, offsets, self.depth, stack, extents)


class FloatConvOfRun(FloatProduct):
    """y = sum x * w + bias of float32 x [N, C, spatial...]; w and bias come with the run. The second operand is w in
    the layout of `matrix`; bias is [M], if there is one. w_shape: [M, C/group, kernel...]. Raises Declined.
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
        """The operations that turn w into the second operand, in order. Its rows are a group's channels, then its taps;
        its columns are results."""
        apart = (self.group, self.each, self.k)
        turned = transpose_copy(self.engine, apart, _FLOAT, (0, 2, 1))
        last = view(self.engine, turned.result.shape, self.operands[1].shape, _FLOAT)
        return view(self.engine, w_shape, apart, _FLOAT), turned, last

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, outputs = self.operands[0], self.result.shape[1]
        pixel, row = strides[0] or 4 * x.shape[1], strides[-1] or 4 * outputs
        left = self.image.rows(1, strides[0], self.each)
        pixels, results = size(x.memory_shape("channels")[:-1]), size(self.result.shape) // outputs
        by_image = pixels // x.shape[0] * pixel, 0, 0, results // x.shape[0] * row
        by_group = 4 * self.depth, 4 * self.k * self.each, 4 * self.each, 4 * self.each
        starts = stack_starts((x.shape[0], self.group), by_image, by_group)
        stack = FloatStack(starts, left, self.each, 4 * self.each, 0, row)
        names = ("a*", "b*", *(["addend*"] if len(self.operands) > 3 else []), "y*")
        extents = [operand.nbytes for operand in self.operands]
        extents[0], extents[-1] = (pixels - 1) * pixel + 4 * x.shape[1], (results - 1) * row + 4 * outputs
        return (product_call(self, stack, names, extents),)


def depthwise_call(
    product: FloatProduct,
    places: Window | Taps,
    line: tuple[int, int, int],
    stack: FloatStack,
    extents: Sequence[int],
    pixel: int,
) -> KernelCall:
    """The call of a depthwise convolution. line: elements of a line of the kernel, stride and dilation along it; all 1
    if neighbours along the last axis share nothing. product: has weights [taps, channels]. pixel: bytes of a pixel of
    the image."""
    engine, terms = product.engine, product.terms
    isa, columns, width, (kernel, stride, dilation) = engine.isa, stack.columns, places.out[-1], line
    offsets = places.offsets(pixel).reshape(-1, width, stack.k // kernel, kernel)
    height, _, lines, _ = offsets.shape
    if kernel > _LINE:  # each element is a line of its own
        offsets, lines, kernel = offsets.reshape(height, width, lines * kernel, 1), lines * kernel, 1
    rows = -(-width // -(-width // _NEIGHBOURS))
    vectors = _vectors(isa, columns, kernel)
    panel = vectors * isa.lanes
    table = _windows(offsets, rows, stride, dilation)
    panels = -(-columns // panel)
    high, wide = _tile(engine.threads, stack, len(table), rows, panels, panel)
    cut = "-cut" if columns < panel else ""
    form = terms.form, terms.out, False
    spec = KernelSpec("float_depthwise", isa.name, rows, vectors, kernel, *form, operands=f"{stride}-{dilation}{cut}")
    held: dict[str, Array] = {"windows*": table, "padding*": np.zeros(columns, _FLOAT), "batches*": stack.starts}
    words = {
        "b_row": stack.b_row,
        "y_row": stack.y_row,
        "columns": columns,
        "lines": lines,
        "window": 4 * table.shape[1],
        "count": len(table),
        "row_block": high,
        "panels": panels,
        "panel_block": wide,
        "tiles": len(stack.starts) * -(-len(table) // high) * -(-panels // wide),
    }
    return product.call(spec, words, held, ("a*", "y*"), extents, 0)


def _tile(threads: int, stack: FloatStack, count: int, rows: int, panels: int, panel: int) -> tuple[int, int]:
    """The number of windows and of panels in a tile. count: windows in all, each of `rows` results; panels: panels in
    all, each of `panel` channels."""
    high = part_size(count, max(1, _PIXELS // rows), 1)
    if threads == 1:
        return high, panels
    most = max(1, _WORK // (panel * rows * stack.k))
    while high > most and count // high * len(stack.starts) < 2 * threads:
        high = -(-high // 2)
    tiles = len(stack.starts) * -(-count // high)
    return high, part_size(panels, max(1, most // high, panels * tiles // (_TILES_PER_THREAD * threads)), 1)


def _vectors(isa: Isa, columns: int, kernel: int) -> int:
    """The vectors of channels in a panel, so that their sums and the weights of a line fit the registers."""
    most = isa.vectors // 2 if kernel <= _NARROW_LINE else 1
    return max(1, min(most, columns // isa.lanes))


def _windows(offsets: Ints, rows: int, stride: int, dilation: int) -> Array:
    """The table `windows` of the kernel. offsets: [height, width, lines of the convolution's kernel, elements]."""
    height, width, lines, kernel = offsets.shape
    first = np.minimum(np.arange(0, width, rows), width - rows)
    pixels = [uses[0] for uses in shared_pixels(rows, kernel, stride, dilation).values()]
    results, elements = (np.array(numbers) for numbers in zip(*pixels, strict=True))
    read = offsets[:, first[:, None] + results, :, elements].transpose(2, 0, 3, 1)
    starts = (np.arange(height)[:, None] * width + first).reshape(-1, 1)
    found = read.reshape(len(starts), lines * len(pixels))
    return np.ascontiguousarray(np.concatenate([starts, found], axis=1), np.int32)


def grouped_call(
    product: FloatProduct, offsets: Ints, depth: int, stack: FloatStack, extents: Sequence[int]
) -> KernelCall:
    """The call for groups of `depth` channels. product: has weights [channels of a group, taps, channels].
    offsets: [results, taps], bytes from the image's start to each pixel that is read, -1 for padding."""
    engine, terms, lanes = product.engine, product.terms, product.engine.isa.lanes
    left = stack.left
    rows, panels, high = min(_ROWS, left.rows), -(-stack.columns // lanes), left.rows
    if engine.threads > 1:
        work = max(stack.macs // (_TILES_PER_THREAD * engine.threads), _WORK)
        high = max(rows, work // (stack.columns * stack.k))
    high = part_size(left.rows, high, rows)
    spec = KernelSpec("float_grouped", engine.isa.name, rows, 1, depth, terms.form, terms.out, False)
    words = {
        "a_row": 4 * offsets.shape[1],
        "b_row": stack.b_row,
        "y_row": stack.y_row,
        "rows": left.rows,
        "columns": stack.columns,
        "taps": offsets.shape[1],
        "row_block": high,
        "panels": panels,
        "tiles": len(stack.starts) * -(-left.rows // high),
    }
    held: dict[str, Array] = {
        "offsets*": np.ascontiguousarray(offsets, np.int32),
        "padding*": np.zeros(stack.columns, _FLOAT),
        "batches*": stack.starts,
    }
    return product.call(spec, words, held, ("a*", "y*"), extents, 0)
