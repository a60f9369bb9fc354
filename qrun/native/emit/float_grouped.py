"""The generated convolution of float32 with groups narrower than a vector, sums in float64 as in floats.py.

A group has as many channels of the image as of the result, so that these lie at the same places: a vector holds whole
groups of both. Each channel of a group is spread over the group's lanes, where it meets its weights:

    x         a0 a1 | b0 b1                   two groups of two channels
    spread    a0 a0 | b0 b0   a1 a1 | b1 b1
"""

from __future__ import annotations

from functools import reduce

from qrun.native.emit.float_depthwise import FloatDepthwiseEmitter
from qrun.native.emit.kernel import emitter
from qrun.native.emit.values import Value


@emitter("float_grouped")
class FloatGroupedEmitter(FloatDepthwiseEmitter):
    """`unroll` channels of each group; the lengths of the weights are `known`."""

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

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        x = self.numbers_at(part + self.column + vector * (4 * self.lanes), mask)
        left = x.shuffled(self._spread(0))
        for number in range(1, self.spec.unroll):
            left = k.test("eq", number).select(x.shuffled(self._spread(number)), left)
        return left, self.numbers_at(start + k * self.a.b_row, mask)
