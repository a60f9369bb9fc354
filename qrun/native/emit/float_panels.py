"""The right matrix of a generated product of floats: a panel's part of a block of k,
fetched and converted to float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import or_

from qrun.native.emit.rounding import RoundingEmitter
from qrun.native.emit.values import Value

UNROLL = 4
"""Elements of k that are added in a turn."""


class PanelEmitter(RoundingEmitter):
    """ordered: whether b lies panel after panel, `panel_step` bytes each, with lengths that are known. right: where a
    packed part goes. panel_lengths: where the squares of the panel's columns are, then their lengths.

    The block of k: `steps` elements from this tap and start on; opens, ends: whether it is the first, the last.
    """

    ordered: bool
    right: Value
    panel_lengths: Value
    panel_step: Value
    tap: Value
    start: Value
    steps: Value
    opens: Value
    ends: Value

    def coming(self, panel: Value, first: Value, end: Value) -> Value:
        """The address of the part of the right matrix that is read after this panel's part."""
        following = panel + 1
        further = self.part() + self.steps * self.a.b_row + (first - panel) * self.panel_step
        return following.test("slt", end).select(self.part() + self.panel_step, further)

    def fetch(self, coming: Value, strip: Value, strips: Value) -> None:
        """Prefetch a strip's share of the part that is read next; prefetching all of it at once would stall."""
        share = parts(parts(self.steps * self.a.b_row, self.w.value("i64", 64)), strips)
        with self.w.part(strip, share, parts(self.steps * self.a.b_row, self.w.value("i64", 64))) as line:
            self.w.prefetch(coming + line * 64)

    def part(self) -> Value:
        """The address of the panel's part of the right matrix."""
        return self.right_column + (self.tap * self.a.depth + self.start) * self.a.b_row

    def earlier_squares(self) -> list[Value]:
        """The sums of squares of the panel's columns over the earlier blocks of k."""
        zero, held = self.w.zero(self.kind), self.panel_lengths
        vectors = range(self.spec.vectors)
        return [self.opens.select(zero, (held + 8 * self.lanes * j).load(self.kind, 8)) for j in vectors]

    def keep_squares(self, squares: Sequence[Value]) -> None:
        """Store the sums of squares; after the last block of k, their square roots."""
        odd = []
        for j, square in enumerate(squares):
            made = self.ends.select(square.sqrt(), square)
            (self.panel_lengths + 8 * self.lanes * j).store(made, 8)
            odd.append(made.test("olt", math.inf).bits().test("ne", (1 << self.lanes) - 1))
        self.odd_panel.store(reduce(or_, odd).zext("i64"), 8)

    def pack(self) -> None:
        """Convert the panel's part of the right matrix to float64, with zeros up to the end of a turn."""
        w, source = self.w, self.part()
        if self.ordered:
            self._pack_ordered(source)
        else:
            self._pack_columns(source)
        end = self.right + self.steps * (8 * self.width)
        with w.loop(0, (UNROLL - 1) * 8 * self.width, 8 * self.lanes) as rest:
            (end + rest.index).store(w.zero(self.kind), 8)

    def _pack_ordered(self, source: Value) -> None:
        """A panel whose lengths are known."""
        w, vectors = self.w, self.spec.vectors
        for k, count in w.runs(0, self.steps, (UNROLL, 1)):
            first = source + k * (4 * self.width)
            for place in range(0, vectors * count * self.lanes, self.lanes):
                x = self.numbers_at(first + 4 * place, None)
                (self.right + k * (8 * self.width) + 8 * place).store(x, 8)

    def _pack_columns(self, source: Value) -> None:
        """A panel whose squares are added on the way."""
        w, before = self.w, self.earlier_squares()
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(self.spec.vectors)]
            with w.loop(0, self.steps, 1, before) as k:
                squares, place = [], source + k.index * self.a.b_row
                for line in range(0, 4 * self.width, 64):
                    w.prefetch(place + (4 * self.width + line))
                for j, mask in enumerate(masks):
                    x = self.numbers_at(place + 4 * self.lanes * j, mask)
                    (self.right + k.index * (8 * self.width) + 8 * self.lanes * j).store(x, 8)
                    squares.append(x.fma(x, k.carried[j]))
                k.next(*squares)
            self.keep_squares(k.carried)


def parts(count: Value, size: Value) -> Value:
    """How many parts of this size cover `count` elements."""
    return (count + size - 1) // size


def panel_sums(
    kernel: RoundingEmitter, rows: Sequence[Value], carried: Sequence[Value], size: Value, each: int = 8
) -> list[Value]:
    """Sums with the products of `size` float64 of each row and as many lines of a panel, numbers of `each` bytes.

    carried: sums [rows][vectors], then where the panel is; the result is the same at the end.
    """
    w, lanes, vectors = kernel.w, kernel.lanes, kernel.spec.vectors
    made, done = list(carried), w.value("i64", 0)
    for count in (UNROLL, 1):
        with w.loop(done, size - (count - 1), count, made) as turn:
            *sums, right = turn.carried
            for step in range(count):
                places = [right + each * (step * kernel.width + j * lanes) for j in range(vectors)]
                b = [x.load(kernel.kind, 8) if each == 8 else kernel.numbers_at(x, None) for x in places]
                for i, start in enumerate(rows):
                    x = (start + turn.index * 8 + 8 * step).load("double", 8).splat(lanes)
                    for j, vector in enumerate(b):
                        sums[i * vectors + j] = x.fma(vector, sums[i * vectors + j])
            turn.next(*sums, right + each * count * kernel.width)
        made, done = turn.carried, turn.index
    return made
