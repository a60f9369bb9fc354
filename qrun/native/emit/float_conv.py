"""Generated convolutions of float32, sums in float64 as in floats.py: of an image that is float64 already,
with groups narrower than a vector, and depthwise.

An image that is float64 brings the sums of squares of its pixels, or of its lines (widen.py). Its rows are read where
they lie, tap after tap: nothing of them is converted or copied for a tile.

A narrow group has as many channels of the image as of the result, so that these lie at the same places: a vector holds
whole groups of both. Each channel of a group is spread over the group's lanes, where it meets its weights:

    x         a0 a1 | b0 b1                   two groups of two channels
    spread    a0 a0 | b0 b0   a1 a1 | b1 b1

Of a depthwise convolution some neighbours of a line of results are made together: a pixel that several of them read is
converted once.

    3 results, kernels of 3        pixels 0 1 2 3 4, of which result n reads n, n + 1 and n + 2

How far a sum is off follows from the greatest magnitude that its channel has in the pixels of the tile, and the sum of
the magnitudes of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from operator import and_

from qrun.declare import grouped
from qrun.native.emit.float_panels import panel_sums, parts
from qrun.native.emit.floats import NAMES, FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, row_at
from qrun.native.emit.rounding import REACH, RoundingEmitter

DEPTHWISE_NAMES = (
    "a*", "b*", "addend*", "y*", "numbers*", "batches*", "offsets*", "padding*", "a_row", "b_row", "addend_row", "y_row",
    "rows", "columns", "taps", "depth", "pixel", "lines", "windows*", "window", "count", "row_block", "spans*", "weights*",
    "weights_row", "sizes*", "known_odd", "panels", "panel_block", "tiles", "recheck*",
)  # fmt: skip
"""One 8-byte word each; those of floats.py, with a depth of 1, and:

pixel        bytes from pixel to pixel of the image
lines        of the kernel
windows      int32 [count][1 + lines * pixels]: the first of the neighbours, and where the pixels are that they read
             line by line, as in offsets; window: bytes of an entry
row_block    windows of a tile
spans        int64 [blocks of windows][2]: bytes from the image's start to the first pixel that they read, and beyond
             the last
weights      float64 [taps][columns], weights_row: bytes of a tap
sizes        float64 [columns]: sums of the weights' magnitudes; known_odd: 1 if some, or what is added, are not finite
"""
_MAGNITUDE, _INFINITE = 0x7FFFFFFF, 0x7F800000
"""Bits of a float32 without its sign, which compare as the magnitudes do;
those of infinity, below which numbers are finite."""
_ANY = 2.0**900
"""The greatest reach of rows that share one, of which some may have infinities or NaN: their sums are in doubt, but for
those with a column of zeros, of which the reach is 0."""


def shared_pixels(neighbours: int, kernel: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """The pixels of a line that neighbours read, in order: which of them read it,
    and as which element of the kernel."""
    places = product(range(neighbours), range(kernel))
    return dict(sorted(grouped((at * stride + element * dilation, (at, element)) for at, element in places).items()))


@emitter("float_depthwise")
class FloatDepthwiseEmitter(RoundingEmitter):
    """`rows` neighbours by `vectors` of channels at once, of a kernel of `unroll` elements a line. operands: its stride
    and its dilation, and ``cut`` if there are fewer channels than a vector has."""

    names = DEPTHWISE_NAMES
    begins = True
    reaches: list[Value]
    begin: list[Value]

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        stride, dilation, *cut = spec.operands.split("-")
        self.pixels = shared_pixels(spec.rows, spec.unroll, int(stride), int(dilation))
        self.cut = bool(cut)
        self.held = self.scratch + 8 * self.lanes * spec.rows * spec.vectors

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        blocks, panels = parts(a.count, a.row_block), parts(a.panels, a.panel_block)
        batch, rest = divmod(tile, blocks * panels)
        part, block = divmod(rest, blocks)
        self.take_batch(batch)
        self.first = w.value("i64", 0)
        first, end = block.part(a.row_block, a.count)
        self.odd_rows.store(a.known_odd, 8)
        with w.part(part, a.panel_block, a.panels) as panel:
            start = panel * self.width if self.cut else (panel * self.width).least(a.columns - self.width)
            self.left, self.column = a.columns - start, start * 4
            self.right_column = self.row_starts[1] + self.column
            self._measure(a.spans + block * 16)
            with w.loop(first, end, 1) as window:
                entry = a.windows + window.index * a.window
                self.round_strip(entry.load("i32", 4).sext("i64"), self.scratch, self._sums(entry + 4))
        self.doubts.end()

    def whole_or_cut(self) -> Iterator[bool]:
        (after,) = self.w.labels("after")
        yield not self.cut
        self.w.jump(after)
        self.w.label(after)

    def _measure(self, span: Value) -> None:
        """What the panel's channels may be off in a tile, infinity where nothing finite bounds it;
        and what their sums begin with."""
        w, vectors, kind = self.w, range(self.spec.vectors), f"<{self.lanes} x i32>"
        places = [self.row_starts[0] + self.column + (span + n).load("i64", 8) for n in (0, 8)]
        first, end = (place.address() for place in places)
        with w.loop(first, end, self.a.pixel, [w.zero(kind) for _ in vectors]) as pixel:
            here = w.let("ptr", f"inttoptr i64 {pixel.index} to ptr")
            loaded = [self._loaded(here + 4 * self.lanes * j, kind, j) & _MAGNITUDE for j in vectors]
            pixel.next(*(most.intrinsic("smax", x) for most, x in zip(pixel.carried, loaded, strict=True)))
        finite = reduce(and_, (most.test("slt", _INFINITE) for most in pixel.carried))
        self.odd_panel.store(finite.bits().test("ne", (1 << self.lanes) - 1).zext("i64"), 8)
        self.reaches, self.begin = [], []
        for j, most in enumerate(pixel.carried):
            known = (self.a.sizes + self.column * 2 + 8 * self.lanes * j).load(self.kind, 8)
            size = most.bitcast("float").double() * known
            addend = self._addend(self.first, j, self.mask(j) if self.cut else None)
            if addend is not None:
                size = size + abs(addend)
            self.begin.append(addend or w.zero(self.kind))
            self.reaches.append((size * self.number(REACH)).where("olt", math.inf))
            (self.held + 8 * self.lanes * j).store(self.reaches[j], 8)

    def _loaded(self, place: Value, kind: str, vector: int) -> Value:
        return place.masked_load(kind, self.mask(vector), 4) if self.cut else place.load(kind, 4)

    def _sums(self, places: Value) -> list[Value]:
        """The sums of the neighbours whose pixels stand here, [rows][vectors]."""
        w, a, vectors = self.w, self.a, range(self.spec.vectors)
        weights = a.weights + self.column * 2
        with w.loop(0, a.lines, 1, [*self.begin * self.spec.rows, weights, places]) as line:
            *sums, weights, places = line.carried
            b = []
            for _ in range(self.spec.unroll):
                b.append([(weights + 8 * self.lanes * j).load(self.kind, 8) for j in vectors])
                weights = weights + a.weights_row
            for number, uses in enumerate(self.pixels.values()):
                pixel = row_at(self.row_starts[0], places + 4 * number, a.padding) + self.column
                for j in vectors:
                    x = self._loaded(pixel + 4 * self.lanes * j, self.narrow, j).double()
                    for result, element in uses:
                        place = result * self.spec.vectors + j
                        sums[place] = x.fma(b[element][j], sums[place])
            line.next(*sums, weights, places + 4 * len(self.pixels))
        return line.carried[:-2]

    def strip_reaches(self, row: Value) -> list[Value]:
        return self.reaches * self.spec.rows

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        return (self.held + vector * (8 * self.lanes)).load(self.kind, 8)

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        return self.numbers_at(part + self.column + vector * (4 * self.lanes), mask), self.numbers_at(start, mask)


@emitter("float_grouped")
class FloatGroupedEmitter(RoundingEmitter):
    """`rows` pixels by `vectors` of channels at once, `unroll` channels of each group; arguments as in floats.py. The
    lengths of the weights are `known`."""

    names = NAMES
    sizes: list[Value]

    def tile(self, tile: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        batch, block = divmod(tile, parts(a.rows, a.row_block))
        self.take_batch(batch)
        self.first = (block * a.row_block).least(a.rows - rows)
        count = a.row_block.least(a.rows - self.first)
        self.odd_rows.store(w.value("i64", 0), 8)
        with w.loop(0, count, rows) as strip, w.loop(0, a.panels, 1) as panel:
            row = strip.index.least(count - rows)
            self.left, self.column = a.columns - panel.index * self.width, panel.index * (4 * self.width)
            self.right_column = self.row_starts[1] + self.column
            sums = self._sums(row)
            finite = reduce(and_, (size.test("olt", math.inf) for size in self.sizes))
            self.odd_panel.store(finite.bits().test("ne", (1 << self.lanes) - 1).zext("i64"), 8)
            self.round_strip(row, self.scratch, sums)
        self.doubts.end()

    def _sums(self, row: Value) -> list[Value]:
        """The sums of a strip; what bounds the products' magnitudes are the lengths of pixels and weights."""
        w, a, lanes, rows, vectors = self.w, self.a, self.lanes, self.spec.rows, self.spec.vectors
        count, ends = rows * vectors, []
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(vectors)]
            with w.loop(0, a.taps, 1, [*[w.zero(self.kind)] * (2 * count), self.right_column]) as tap:
                *carried, weights = tap.carried
                x = []
                for i in range(rows):
                    part = self.row_part(self.first + row + i, tap.index) + self.column
                    x += [self.numbers_at(part + 4 * lanes * j, mask) for j, mask in enumerate(masks)]
                squares = [value.fma(value, total) for value, total in zip(x, carried[count:], strict=True)]
                sums = carried[:count]
                for k in range(self.spec.unroll):
                    for j, mask in enumerate(masks):
                        b = self.numbers_at(weights + 4 * lanes * j, mask)
                        for place in range(j, count, vectors):
                            sums[place] = x[place].shuffled(self._spread(k)).fma(b, sums[place])
                    weights = weights + a.b_row
                tap.next(*sums, *squares, weights)
            ends.append((tap.carried[:-1], w.here))
        made = [w.phi(*((values[place], label) for values, label in ends)) for place in range(2 * count)]
        self.sizes = [self._size(squares, place % vectors) for place, squares in enumerate(made[count:])]
        return made[:count]

    def _spread(self, number: int) -> list[int]:
        """Each lane's channel with this number in its group."""
        each = self.spec.unroll
        return [lane // each * each + number for lane in range(self.lanes)]

    def _size(self, squares: Value, vector: int) -> Value:
        """The length of each lane's group of a pixel, times that of the weights it meets."""
        group = reduce(Value.__add__, (squares.shuffled(self._spread(k)) for k in range(self.spec.unroll)))
        lengths = (self.a.known + self.column * 2 + 8 * self.lanes * vector).load(self.kind, 8)
        return group.sqrt() * lengths

    def strip_reaches(self, row: Value) -> list[Value]:
        reach = self.number(REACH)
        return [reach * size for size in self.sizes]

    def keep(self, slot: Value, sums: Sequence[Value]) -> None:
        super().keep(slot, [*sums, *self.sizes])

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        sizes = slot + 8 * self.lanes * self.spec.rows * self.spec.vectors
        return self.number(REACH) * sizes.load(self.kind, 8)

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        x = self.numbers_at(part + self.column + vector * (4 * self.lanes), mask)
        left = x.shuffled(self._spread(0))
        for number in range(1, self.spec.unroll):
            left = k.test("eq", number).select(x.shuffled(self._spread(number)), left)
        return left, self.numbers_at(start + k * self.a.b_row, mask)


@emitter("float_image")
class FloatImageEmitter(FloatProductEmitter):
    """Arguments as in floats.py; offsets are those of float64 pixels, b lies panel after panel."""

    def before_blocks(self, starts: Value) -> None:
        """The lengths of the tile's rows."""
        w, place = self.w, (starts + 40).load("i64", 8)
        with w.loop(0, self.count, 1) as row:
            with w.loop(0, self.a.taps, 1, [w.value("double", 0.0)]) as tap:
                part = self.row_part(self.first + row.index, tap.index)
                tap.next(tap.carried[0] + (part + place).load("double", 8))
            self.measured(row.index, tap.carried[0])

    def convert(self, first: Value, opening: Value) -> None:
        """Nothing: the rows are float64 already."""

    def strip_sums(self, row: Value) -> list[Value]:
        w, rows, vectors = self.w, self.spec.rows, self.spec.vectors
        right = self.right if self.packed else self.part()
        zeros = [w.zero(self.kind)] * (rows * vectors)
        with w.loop(0, self.tap_count, 1, [*zeros, right]) as tap:
            starts = [self.row_part(self.first + row + i, self.tap + tap.index) + self.start * 8 for i in range(rows)]
            carried = panel_sums(self, starts, tap.carried, self.size, 8 if self.packed else 4)
            tap.next(*carried)
        return tap.carried[:-1]

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        left = (part + k * 8).load("double", 8).splat(self.lanes)
        return left, self.numbers_at(start + k * self.a.b_row, mask)


@emitter("float_lines")
class FloatLinesEmitter(FloatImageEmitter):
    """As float_image, where a tap is a part of a line of the image, behind which the sum of its squares lies."""

    def before_blocks(self, starts: Value) -> None:
        """All rows of the tile get one reach, from the squares of all lines that they read together."""
        w, a = self.w, self.a
        ends = (self.first, w.value("i64", 0)), (self.first + self.count - 1, a.taps - 1)
        first, last = ((a.offsets + row * a.a_row + tap * 4).load("i32", 4).sext("i64") // a.ahead for row, tap in ends)
        squares = self.row_starts[0] + (starts + 40).load("i64", 8)
        with w.loop(first, last + 1, 1, [w.value("double", 0.0)]) as line:
            line.next(line.carried[0] + (squares + line.index * a.ahead).load("double", 8))
        reach = self.row_reach(line.carried[0]).where("olt", _ANY)
        with w.loop(0, self.count, 1) as row:
            (self.lengths + row.index * 8).store(reach, 8)
