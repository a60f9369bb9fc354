"""Generated normalization of float32 rows, in float64: by mean and deviation, of rows and of channels, and by the root
mean square."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.kernel import Value, emitter
from qrun.native.emit.rowwise import PARTS, ROWS, RowwiseEmitter

STANDARDIZE = (*ROWS, "numbers*", "scale*", "bias*")
"""One 8-byte word each.

numbers      float64: epsilon, and the length
scale, bias  float64 [length]
"""
EPSILON, LENGTH = 0, 8


def inverse_deviation(rows: RowwiseEmitter, x: Value, mean: Value | None = None) -> Value:
    """1 / sqrt(mean of the squares + epsilon) of a row, or of its distances from the mean."""

    def squared(index: Value, on: Value | None) -> Value:
        value = rows.loaded(x, index, on) if mean is None else rows.loaded(x, index, on) - mean
        return value * value

    length, epsilon = ((rows.a.numbers + place).load("double", 8) for place in (LENGTH, EPSILON))
    return "1.0" / (rows.sum(squared) / length + epsilon).sqrt()


@emitter("standardize")
class LayerNormEmitter(RowwiseEmitter):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""

    own: tuple[str, ...] = STANDARDIZE

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Several rows at once: while one waits for its mean, or for its deviation, the others go on."""
        length = (self.a.numbers + LENGTH).load("double", 8)
        means = [(self._total(x) / length).splat(PARTS) for x in xs]
        inverses = [inverse_deviation(self, x, mean).splat(PARTS) for x, mean in zip(xs, means, strict=True)]
        for row in zip(xs, means, inverses, ys, strict=True):
            self._scale(*row)

    def _total(self, x: Value) -> Value:
        return self.sum(lambda index, on: self.loaded(x, index, on))

    def _scale(self, x: Value, mean: Value, inverse: Value, y: Value) -> None:
        def result(index: Value, on: Value | None) -> Value:
            scale, bias = (self.wide(start, index, on) for start in (self.a.scale, self.a.bias))
            return (self.loaded(x, index, on) - mean) * inverse * scale + bias

        self.stored(y, result)


CHANNELS = (*STANDARDIZE, "groups", "channels", "piece")
"""Those of layer normalization, but scale and bias are float64 [groups][channels]; then

groups    rows after which these begin again
channels  of a row, and `piece` elements of each
"""


@emitter("standardize_channels")
class ChannelNormEmitter(LayerNormEmitter):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, scale and bias of each channel."""

    own = CHANNELS

    def _scale(self, x: Value, mean: Value, inverse: Value, y: Value) -> None:
        w, a = self.w, self.a
        first = (y.address() - a.y.address()) // (a.length * 4) % a.groups * a.channels
        with w.loop(0, a.channels, 1) as channel:
            place, begin = (first + channel.index) * 8, channel.index * a.piece
            scale, bias = ((values + place).load("double", 8).splat(PARTS) for values in (a.scale, a.bias))

            def result(index: Value, on: Value | None) -> Value:
                return (self.loaded(x, index, on) - mean) * inverse * scale + bias

            self.stored(y, result, (begin, begin + a.piece))


RMS = (*ROWS, "numbers*", "scale*")
"""As those of layer normalization."""


@emitter("rms")
class RmsNormEmitter(RowwiseEmitter):
    """x / sqrt(mean of the squares + epsilon) * scale."""

    own = RMS

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Several rows at once: while one waits for its inverse, the others go on."""
        inverses = [inverse_deviation(self, x).splat(PARTS) for x in xs]
        for x, inverse, y in zip(xs, inverses, ys, strict=True):

            def result(index: Value, on: Value | None, x: Value = x, inverse: Value = inverse) -> Value:
                return self.loaded(x, index, on) * inverse * self.wide(self.a.scale, index, on)

            self.stored(y, result)


@emitter("inverse_rms")
class InverseRmsEmitter(RowwiseEmitter):
    """1 / sqrt(mean of the squares + epsilon)."""

    own = (*ROWS, "numbers*")
    reduces = True

    def make_row(self, x: Value, y: Value) -> None:
        y.store(inverse_deviation(self, x).splat(1).single(), 4)
