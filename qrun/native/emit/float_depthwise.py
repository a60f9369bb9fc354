"""The generated depthwise convolution of float32: each channel by its own weights, sums in float64 as in floats.py.

Some neighbours of a line of results are made together: a pixel that several of them read is converted once.

    3 results, kernels of 3        pixels 0 1 2 3 4, of which result n reads n, n + 1 and n + 2

How far a sum is off follows from the greatest magnitude that its channel has in the pixels of the tile, and the sum of the
magnitudes of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from operator import and_

from qrun.native.emit.float_panels import parts
from qrun.native.emit.floats import BATCH
from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import emitter, row_at
from qrun.native.emit.rounding import REACH, RoundingEmitter
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import Value

NAMES = (
    "a*", "b*", "addend*", "y*", "numbers*", "batches*", "offsets*", "padding*", "a_row", "b_row", "addend_row", "y_row",
    "rows", "columns", "taps", "depth", "pixel", "lines", "windows*", "window", "count", "row_block", "spans*", "weights*",
    "weights_row", "sizes*", "known_odd", "panels", "panel_block", "tiles", "recheck*",
)  # fmt: skip
"""One 8-byte word each; those of floats.py, with a depth of 1, and:

pixel        bytes from pixel to pixel of the image
lines        of the kernel
windows      int32 [count][1 + lines * pixels]: the first of the neighbours, and where the pixels are that they read line by
             line, as in offsets; window: bytes of an entry
row_block    windows of a tile
spans        int64 [blocks of windows][2]: bytes from the image's start to the first pixel that they read, and beyond the last
weights      float64 [taps][columns], weights_row: bytes of a tap
sizes        float64 [columns]: sums of the weights' magnitudes; known_odd: 1 if some, or what is added, are not finite
"""
_MAGNITUDE, _INFINITE = 0x7FFFFFFF, 0x7F800000


def shared_pixels(neighbours: int, kernel: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """The pixels of a line that neighbours read, in order: which of them read it, and as which element of the kernel."""
    found: dict[int, list[tuple[int, int]]] = {}
    for result in range(neighbours):
        for element in range(kernel):
            found.setdefault(result * stride + element * dilation, []).append((result, element))
    return dict(sorted(found.items()))


@emitter("float_depthwise")
class FloatDepthwiseEmitter(RoundingEmitter):
    """`rows` neighbours by `vectors` of channels at once, of a kernel of `unroll` elements a line. operands: its stride and its
    dilation, and ``cut`` if there are fewer channels than a vector has."""

    names = NAMES
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
        self.batch, rest = divmod(tile, blocks * panels)
        part, block = divmod(rest, blocks)
        starts = a.batches + self.batch * BATCH
        x, b, addend, y = (start + (starts + 8 * n).load("i64", 8) for n, start in enumerate((a.a, a.b, a.addend, a.y)))
        self.row_starts, self.first = (x, b, addend, y), w.value("i64", 0)
        first, end = block.part(a.row_block, a.count)
        self.odd_rows.store(a.known_odd, 8)
        with w.part(part, a.panel_block, a.panels) as panel:
            start = panel * self.width if self.cut else (panel * self.width).least(a.columns - self.width)
            self.left, self.column = a.columns - start, start * 4
            self.right_column = b + self.column
            self._measure(a.spans + block * 16)
            with w.loop(first, end, 1) as window:
                entry = a.windows + window.index * a.window
                self.round_strip(entry.load("i32", 4).sext("i64"), self.scratch, self._sums(entry + 4))
        self.doubts.end()

    def whole_or_cut(self) -> Iterator[bool]:
        self.w.blocks += 1
        name = f"panel{self.w.blocks}"
        yield not self.cut
        self.w.jump(name)
        self.w.label(name)

    def _measure(self, span: Value) -> None:
        """What the panel's channels may be off in a tile, infinity where nothing finite bounds it; and what their sums begin with."""
        w, vectors, kind = self.w, range(self.spec.vectors), f"<{self.lanes} x i32>"
        first, end = (self.row_starts[0] + self.column + (span + n).load("i64", 8) for n in (0, 8))
        first, end = (w.let("i64", f"ptrtoint ptr {place} to i64") for place in (first, end))
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

    def row_part(self, row: Value, tap: Value) -> Value:
        a = self.a
        return row_at(self.row_starts[0], a.offsets + row * a.a_row + tap * 4, a.padding)

    def strip_reaches(self, row: Value) -> list[Value]:
        return self.reaches * self.spec.rows

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        return (self.held + vector * (8 * self.lanes)).load(self.kind, 8)

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        return self.numbers_at(part + self.column + vector * (4 * self.lanes), mask), self.numbers_at(start, mask)
