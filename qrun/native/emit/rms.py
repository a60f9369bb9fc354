"""Generated normalization of float32 rows by their root mean square, in float64, and the inverses of these."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.kernel import Value, emitter
from qrun.native.emit.numbers import rounds_apart
from qrun.native.emit.rowwise import ROWS, RowwiseEmitter

RMS = (*ROWS, "scale*")
"""One 8-byte word each.

scale    float64 [length]
numbers  what a result is multiplied with to be at its least and at its most, epsilon, and the length
"""
LEAST, MOST, EPSILON, LENGTH = range(0, 32, 8)


class _Squares(RowwiseEmitter):
    def inverse(self, x: Value) -> Value:
        """1 / sqrt(mean of the squares + epsilon) of a row."""

        def squared(n: int, index: Value) -> Value:
            value = self.loaded(n, x, index)
            return value * value

        return "1.0" / (self.sum(squared) / self.number(LENGTH) + self.number(EPSILON)).sqrt()


@emitter("rms")
class RmsNormEmitter(_Squares):
    """x / sqrt(mean of the squares + epsilon) * scale."""

    own = RMS

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        """Several rows at once: while one waits for its inverse, the others go on."""
        inverses = [self.inverse(x) for x in xs]
        return [self._scaled(*row) for row in zip(xs, inverses, ys, strict=True)]

    def _scaled(self, x: Value, inverse: Value, y: Value) -> Value:
        ends = [self.number(place) for place in (LEAST, MOST)]

        def result(n: int, index: Value) -> tuple[Value, Value]:
            scale = (self.a.scale + index * 8).load(f"<{n} x double>", 8)
            value = self.loaded(n, x, index) * inverse.splat(n) * scale
            low, high = (value * end.splat(n) for end in ends)
            return low, high

        return self.stored(y, result)


@emitter("inverse_rms")
class InverseRmsEmitter(_Squares):
    """1 / sqrt(mean of the squares + epsilon)."""

    reduces = True

    def made_row(self, x: Value, y: Value) -> Value:
        value = self.inverse(x).splat(1)
        y.store(value.single(), 4)
        return rounds_apart(*(value * self.number(end).splat(1) for end in (LEAST, MOST))).any()
