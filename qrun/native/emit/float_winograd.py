"""The generated convolution of float32 with 3x3 kernels and steps of 1, by Winograd's minimal filtering in float64.

A patch is a square of neighbouring results. Its pixels and the kernel are transformed (`Filtering`); their products,
element by element, are as many products of matrices, patches by channels; and what these become, transformed again, are
the sums. The lengths of the transformed pixels of a patch and of a transformed kernel bound what a sum is off; one that
this does not prove is added tap by tap (rounding.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from qrun.declare.frozen import frozen
from qrun.native.emit.float_panels import panel_sums, parts
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.rounding import RoundingEmitter
from qrun.native.emit.widen import first_lanes, folded

TAPS = 3
Transform = Callable[[Sequence[Any]], list[Any]]


@frozen
class Filtering:
    """Neighbouring results of three taps, in fewer multiplications than they have products. The functions take anything
    that adds and multiplies: values of generated code, fractions, rows of a matrix.

    results: how many neighbours are made together, of `results` + 2 pixels.

    result(filter(g) * image(d)) is [d0 * g0 + d1 * g1 + d2 * g2, d1 * g0 + ...], with products element by element. Each
    term of the sums that the three make is rounded at most `roundings` times, in this order: image, filter, result.
    """

    results: int
    image: Transform
    filter: Transform
    result: Transform
    roundings: tuple[int, int, int]

    @property
    def side(self) -> int:
        """Pixels that are read, and products."""
        return self.results + TAPS - 1


def _image2(d: Sequence[Any]) -> list[Any]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _filter2(g: Sequence[Any]) -> list[Any]:
    ends, middle = (g[0] + g[2]) * 0.5, g[1] * 0.5
    return [g[0], ends + middle, ends - middle, g[2]]


def _result2(m: Sequence[Any]) -> list[Any]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


TWO = Filtering(2, _image2, _filter2, _result2, (1, 2, 2))


def both(transform: Transform, square: Sequence[Any]) -> list[Any]:
    """The transform along both axes of a square, whose elements stand row by row."""
    side = round(len(square) ** 0.5)
    columns = [transform(square[n::side]) for n in range(side)]
    return [made for row in zip(*columns, strict=True) for made in transform(row)]


NAMES = names("""
    a* b* addend* y* numbers* batches* offsets* padding* pixels* b_row addend_row y_row rows columns taps depth depth_step
    line patches row_block panels panel_block pitch plane right_at lengths_at sums_at slot_at known* tiles recheck*
""")
"""One 8-byte word each; as in floats.py, but for these.

offsets      int32 [patches][pixels of a patch]: bytes from where an image starts to each pixel, or -1 for `padding`
pixels       int32 [patches]: the first pixel of the result; line: pixels of a line of it; rows: all of its pixels
row_block    patches of a tile
depth_step   channels of a block of k
pitch, plane bytes from a patch's transformed channels to the next patch's,
and from one of its transformed pixels to the next
..._at       where the thread's memory has a panel's transformed weights; lengths of patches; products; a patch's sums
"""
LINE = 64
"""Bytes by which the parts of a transform lie further apart, so that they do not fall into the same cache set."""
SUMS = 4
"""Sums of squares that are added side by side."""


@emitter("float_winograd")
class FloatWinogradEmitter(RoundingEmitter):
    """A strip is `rows` patches by `vectors` of channels;
    b lies panel after panel, and its columns' lengths are known."""

    names = NAMES
    mixes = True
    patches: Value
    strips: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.filtering = TWO
        self.rounded_rows, self.elements = self.filtering.results**2, self.filtering.side**2
        self.right, self.lengths = self.scratch + self.a.right_at, self.scratch + self.a.lengths_at
        self.sums, self.slot = self.scratch + self.a.sums_at, self.scratch + self.a.slot_at
        self.strip_bytes, self.right_plane = 8 * spec.rows * self.width, self.a.depth_step * (8 * self.width) + LINE

    def tile(self, tile: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        row_blocks, panel_blocks = parts(a.patches, a.row_block), parts(a.panels, a.panel_block)
        batch, rest = divmod(tile, row_blocks * panel_blocks)
        columns, block = divmod(rest, row_blocks)
        starts, b = self.take_batch(batch), self.row_starts[1]
        self.first = (block * a.row_block).least(a.patches - rows)
        self.patches = a.row_block.least(a.patches - self.first)
        self.strips = (self.patches + (rows - 1)) // rows
        for odd in (self.odd_rows, self.odd_panel):
            odd.store(w.value("i64", 0), 8)
        self._image()
        lengths, step = a.known + (starts + 32).load("i64", 8), a.taps * a.depth * a.b_row
        with w.part(columns, a.panel_block, a.panels) as panel:
            self.left, self.column = a.columns - panel * self.width, panel * (4 * self.width)
            self.right_column, self.panel_lengths = b + panel * step, lengths + panel * (8 * self.width)
            with w.loop(0, a.depth, a.depth_step) as k:
                size = a.depth_step.least(a.depth - k.index)
                self._filter(k.index, size)
                self._products(k.index, size)
            self._results()
        self.doubts.end()

    def _image(self) -> None:
        """Transform the pixels of the tile's patches; keep the reach of each patch."""
        w, a, lanes = self.w, self.a, self.lanes
        zeros = [w.zero(self.kind)] * SUMS
        with w.loop(0, self.patches, 1) as patch:
            table = a.offsets + (self.first + patch.index) * (4 * self.elements)
            pixels = [row_at(self.row_starts[0], table + 4 * n, a.padding) for n in range(self.elements)]
            target = self.scratch + patch.index * a.pitch
            with w.loop(0, a.depth - (lanes - 1), lanes, zeros) as k:
                k.next(*self._transformed(pixels, target, k.index, None, k.carried))
            with w.loop(k.index, a.depth, lanes, k.carried) as rest:
                mask = first_lanes(a.depth - rest.index, lanes)
                rest.next(*self._transformed(pixels, target, rest.index, mask, rest.carried))
            self.measured(patch.index, folded(reduce(Value.__add__, rest.carried)))

    def _transformed(
        self, pixels: Sequence[Value], target: Value, k: Value, mask: Value | None, squares: Sequence[Value]
    ) -> list[Value]:
        """Transform a patch's channels from k on; the sums of squares with theirs."""
        made = both(self.filtering.image, [self.numbers_at(pixel + k * 4, mask) for pixel in pixels])
        added = list(squares)
        for n, x in enumerate(made):
            (target + self.a.plane * n + k * 8).store(x, 8)
            added[n % SUMS] = x.fma(x, added[n % SUMS])
        return added

    def _filter(self, start: Value, size: Value) -> None:
        """Transform a panel's weights of these channels."""
        w, a, lanes = self.w, self.a, self.lanes
        source, step = self.right_column + start * a.b_row, a.depth * a.b_row
        taps = [source + step * n for n in range(TAPS**2)]
        planes = [self.right + self.right_plane * n for n in range(self.elements)]
        with w.loop(0, size * self.width, lanes) as place:
            loaded = [self.numbers_at(tap + place.index * 4, None) for tap in taps]
            for target, x in zip(planes, both(self.filtering.filter, loaded), strict=True):
                (target + place.index * 8).store(x, 8)

    def _products(self, start: Value, size: Value) -> None:
        """Add the products of these channels to those of the channels before."""
        w, a, rows = self.w, self.a, self.spec.rows
        with w.loop(0, self.elements, 1) as element, w.loop(0, self.strips, 1) as strip:
            row = (strip.index * rows).least(self.patches - rows)
            left = self.scratch + element.index * a.plane + row * a.pitch + start * 8
            sums = self._sums(left, self.right + element.index * self.right_plane, size)
            held = self.sums + (element.index * self.strips + strip.index) * self.strip_bytes
            for opens in w.either(start.test("eq", 0)):
                places = [held + 8 * self.lanes * place for place in range(len(sums))]
                for place, new in zip(places, sums, strict=True):
                    place.store(new if opens else new + place.load(self.kind, 8), 8)

    def _sums(self, left: Value, right: Value, size: Value) -> list[Value]:
        """Sums of products of one transformed pixel, [rows][vectors]."""
        starts = [left + self.a.pitch * i for i in range(self.spec.rows)]
        zeros = [self.w.zero(self.kind)] * (self.spec.rows * self.spec.vectors)
        return panel_sums(self, starts, [*zeros, right], size)[:-1]

    def _results(self) -> None:
        """Make the panel's results of its products."""
        w, rows, step = self.w, self.spec.rows, self.strips * self.strip_bytes
        with w.loop(0, self.strips, 1) as strip, w.loop(0, rows, 1) as i:
            first = self.sums + strip.index * self.strip_bytes + i.index * (8 * self.width)
            places = [first + step * n for n in range(self.elements)]
            made = []
            for j in range(self.spec.vectors):
                products = [(place + 8 * self.lanes * j).load(self.kind, 8) for place in places]
                made.append(both(self.filtering.result, products))
            patch = (strip.index * rows).least(self.patches - rows) + i.index
            self.round_strip(patch * self.rounded_rows, self.slot, [x for row in zip(*made, strict=True) for x in row])

    def _place(self, row: Value) -> tuple[Value, Value, Value]:
        """Of a row, which is one result of a patch: the patch, and how far down and across in it the result is."""
        patch, result = divmod(row, self.rounded_rows)
        return self.first + patch, *divmod(result, self.filtering.results)

    def result_row(self, row: Value) -> Value:
        patch, down, across = self._place(row)
        return (self.a.pixels + patch * 4).load("i32", 4).sext("i64") + down * self.a.line + across

    def tap_at(self, row: Value, tap: Value) -> Value:
        patch, down, across = self._place(row)
        place = (down + tap // TAPS) * self.filtering.side + across + tap % TAPS
        return row_at(self.row_starts[0], self.a.offsets + (patch * self.elements + place) * 4, self.a.padding)

    def strip_reaches(self, row: Value) -> list[Value]:
        length = (self.lengths + row // self.rounded_rows * 8).load("double", 8).splat(self.lanes)
        columns = [(self.panel_lengths + 8 * self.lanes * j).load(self.kind, 8) for j in range(self.spec.vectors)]
        return [length * column for column in columns] * self.rounded_rows

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        length = (self.lengths + row // self.rounded_rows * 8).load("double", 8).splat(self.lanes)
        return length * (self.panel_lengths + vector * (8 * self.lanes)).load(self.kind, 8)
