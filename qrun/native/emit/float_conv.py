"""Generated float32 convolutions with groups: depthwise, and groups of a few channels.

A lane holds one channel of the result; sums have the order of numerics.md, F1, in one block.

Neighbouring results along a line are computed together, so that a pixel that several of them read is loaded once.

    3 results, kernels of 3        pixels 0 1 2 3 4, of which result n reads n, n + 1 and n + 2
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from qrun.declare import grouped
from qrun.native.emit.fma_product import FloatSumsEmitter, parts
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.numbers import fma_once
from qrun.native.emit.widen import first_lanes

DEPTHWISE_NAMES = names("""
    a* b* addend* y* numbers* batches* padding* b_row y_row columns lines windows* window count row_block
    panels panel_block tiles
""")
"""The argument words, 8 bytes each: as in fma_product.py, and

b            float32 [taps][columns], b_row bytes from tap to tap
lines        lines of the convolution's kernel
windows      int32 [count][1 + lines * pixels]: the number of the first of the neighbours, then the pixels that they
             read, line by line, in bytes from the image's start, -1 for `padding`, zeros; window: bytes of an entry
row_block    windows of a tile
"""
GROUPED_NAMES = names("""
    a* b* addend* y* numbers* batches* padding* offsets* a_row b_row y_row rows columns taps row_block panels tiles
""")
"""offsets  int32 [rows][taps], in bytes from the image's start, -1 for `padding`, zeros; b: float32 [channels of a
group][taps][columns]."""


def shared_pixels(neighbours: int, kernel: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """For each pixel of a line that the neighbours read, in order: pairs of the neighbour that reads it and the element
    of the kernel."""
    places = product(range(neighbours), range(kernel))
    return dict(sorted(grouped((at * stride + element * dilation, (at, element)) for at, element in places).items()))


class ChannelsEmitter(FloatSumsEmitter):
    """Common base of kernels whose vectors hold channels."""

    left: Value
    column: Value

    def take_panel(self, start: Value) -> None:
        """Begin a panel of channels. start: its first channel."""
        self.left, self.column = self.a.columns - start, start * 4

    def mask(self, vector: int) -> Value:
        """The lanes of a vector of columns that exist."""
        return first_lanes(self.left - vector * self.lanes, self.lanes)

    def store(self, row: Value, sums: Sequence[Value], masks: Sequence[Value | None]) -> None:
        """Store sums [rows][vectors]. row: the number of the first result in the image."""
        for i in range(self.spec.rows):
            target = self.starts[3] + (row + i) * self.a.y_row + self.column
            for j, mask in enumerate(masks):
                addend = self.starts[2] + self.column + 4 * self.lanes * j if self.form == "bias" else None
                self.finish(sums[i * self.spec.vectors + j], addend, target + 4 * self.lanes * j, mask)


@emitter("float_depthwise")
class FloatDepthwiseEmitter(ChannelsEmitter):
    """Computes `rows` neighbours by `vectors` vectors of channels at once; the convolution's kernel has `unroll`
    elements per line. operands: stride and dilation, and ``cut`` if there are fewer channels than lanes."""

    names = DEPTHWISE_NAMES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        stride, dilation, *self.cut = spec.operands.split("-")
        self.pixels = shared_pixels(spec.rows, spec.unroll, int(stride), int(dilation))

    def write_tile(self, tile: Value) -> None:
        w, a, width = self.w, self.a, self.spec.vectors * self.lanes
        blocks, panels = parts(a.count, a.row_block), parts(a.panels, a.panel_block)
        batch, rest = divmod(tile, blocks * panels)
        part, block = divmod(rest, blocks)
        self.take_batch(batch)
        first, end = block.part(a.row_block, a.count)
        with w.part(part, a.panel_block, a.panels) as panel:
            self.take_panel(panel * width if self.cut else (panel * width).least(a.columns - width))
            masks = [self.mask(j) if self.cut else None for j in range(self.spec.vectors)]
            with w.loop(first, end, 1) as window:
                entry = a.windows + window.index * a.window
                self.store(entry.load("i32", 4).sext("i64"), self._sums(entry + 4, masks), masks)

    def _sums(self, places: Value, masks: Sequence[Value | None]) -> list[Value]:
        """The sums of some neighbours, [rows][vectors]. places: the address of their pixels' offsets."""
        w, a, vectors = self.w, self.a, range(self.spec.vectors)
        zeros = [w.zero(self.kind)] * (self.spec.rows * self.spec.vectors)
        with w.loop(0, a.lines, 1, [*zeros, self.starts[1] + self.column, places]) as line:
            *sums, weights, places = line.carried
            b = []
            for _ in range(self.spec.unroll):
                b.append([self.load(weights + 4 * self.lanes * j, masks[j]) for j in vectors])
                weights = weights + a.b_row
            for number, uses in enumerate(self.pixels.values()):
                pixel = row_at(self.starts[0], places + 4 * number, a.padding) + self.column
                for j in vectors:
                    x = self.load(pixel + 4 * self.lanes * j, masks[j])
                    for result, element in uses:
                        position = result * self.spec.vectors + j
                        sums[position] = fma_once(x, b[element][j], sums[position])
            line.next(*sums, weights, places + 4 * len(self.pixels))
        return line.carried[:-2]


@emitter("float_grouped")
class FloatGroupedEmitter(ChannelsEmitter):
    """Computes `rows` pixels by one vector of channels at once. Groups have `unroll` channels."""

    names = GROUPED_NAMES

    def write_tile(self, tile: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        batch, block = divmod(tile, parts(a.rows, a.row_block))
        self.take_batch(batch)
        first = (block * a.row_block).least(a.rows - rows)
        count = a.row_block.least(a.rows - first)
        with w.loop(0, count, rows) as strip, w.loop(0, a.panels, 1) as panel:
            row = first + strip.index.least(count - rows)
            self.take_panel(panel.index * self.lanes)
            for whole in w.either(self.left.test("sge", self.lanes)):
                mask = None if whole else self.mask(0)
                self.store(row, self._sums(row, mask), [mask])

    def _sums(self, row: Value, mask: Value | None) -> list[Value]:
        """The sums of all rows over the taps of a window, each channel group apart."""
        w, a, each = self.w, self.a, self.spec.unroll
        carried = [*[w.zero(self.kind)] * self.spec.rows, self.starts[1] + self.column]
        for number in range(each):
            spread = [lane // each * each + number for lane in range(self.lanes)]
            with w.loop(0, a.taps, 1, carried) as tap:
                *sums, weights = tap.carried
                b = self.load(weights, mask)
                for i in range(self.spec.rows):
                    position = a.offsets + (row + i) * a.a_row + tap.index * 4
                    x = self.load(row_at(self.starts[0], position, a.padding) + self.column, mask)
                    sums[i] = fma_once(x.shuffle(spread), b, sums[i])
                tap.next(*sums, weights + a.b_row)
            carried = tap.carried
        return carried[:-1]
