"""Generated normalization of float32, in float64: of rows and of channels by mean and deviation, and by the root mean
square; of a pixel's channels by the squares of neighbours, and by constants."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.rowwise import PARTS, ROWS, RowwiseEmitter

STANDARDIZE = (*ROWS, "numbers*", "scale*", "bias*")
"""One 8-byte word each.

numbers      float64: epsilon, and the length
scale, bias  float64 [length]
"""
EPSILON, LENGTH = 0, 8

LRN = names("x* y* x_row y_row rows chunk channels last before after taps tiles factor* bias*")
"""One 8-byte word each.

chunk             rows of a tile
channels, last    of a row, and where its last block starts: it overlaps
before, after     channels summed on either side; taps: before + 1 + after
factor, bias      float64: of the sum of squares, and what is added to it
"""


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


@emitter("lrn")
class LrnEmitter(KernelEmitter):
    """`rows` channels at once. The squares of a row lie in the thread's memory, zeros on either side."""

    names = LRN
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.n, self.kind = spec.rows, f"<{spec.rows} x double>"
        self.factor, self.bias = (start.load("double", 8).splat(self.n) for start in (self.a.factor, self.a.bias))
        self.squares = self.scratch + self.a.before * 8

    def tile(self, tile: Value) -> None:
        w, a, squares = self.w, self.a, self.squares
        for start, count in ((self.scratch, a.before), (squares + a.channels * 8, a.after)):
            with w.loop(0, count, 1) as at:
                (start + at.index * 8).store(w.value("double", "0.0"), 8)
        with w.part(tile, a.chunk, a.rows) as row:
            x, y = a.x + row * a.x_row, a.y + row * a.y_row
            with w.loop(0, a.channels, self.n) as at:
                channel = at.index.least(a.last)
                value = self._numbers(x, channel)
                square = value * value
                (squares + channel * 8).store(square, 8)
            with w.loop(0, a.channels, self.n) as at:
                self._divide(x, y, at.index.least(a.last))

    def _numbers(self, x: Value, channel: Value) -> Value:
        return (x + channel * 4).load(f"<{self.n} x float>", 4).double()

    def _divide(self, x: Value, y: Value, channel: Value) -> None:
        """x / (bias + factor * sum)**0.75, the power as a root times the root's root."""
        start = self.scratch + channel * 8
        with self.w.loop(1, self.a.taps, 1, [start.load(self.kind, 8)]) as tap:
            square = (start + tap.index * 8).load(self.kind, 8)
            tap.next(tap.carried[0] + square)
        root = (self.bias + self.factor * tap.carried[0]).sqrt()
        power = root * root.sqrt()
        result = (self._numbers(x, channel) / power).single()
        (y + channel * 4).store(result, 4)


BATCH_NORM = names("x* y* x_row y_row rows chunk channels last tiles mean* factor* bias*")
"""One 8-byte word each.

chunk             rows of a tile
channels, last    of a row, and where its last block starts: it overlaps the one before
mean, factor, bias  float64 [channels]
"""


@emitter("batch_norm")
class BatchNormEmitter(KernelEmitter):
    """(x - mean) * factor + bias, each step rounded to float64, the last to float32; `rows` channels at once."""

    names = BATCH_NORM

    def tile(self, tile: Value) -> None:
        w, a, n = self.w, self.a, self.spec.rows
        with w.part(tile, a.chunk, a.rows) as row, w.loop(0, a.channels, n) as at:
            channel = at.index.least(a.last)
            mean, factor, bias = (
                (start + channel * 8).load(f"<{n} x double>", 8) for start in (a.mean, a.factor, a.bias)
            )
            x = (a.x + row * a.x_row + channel * 4).load(f"<{n} x float>", 4).double()
            made = (x - mean) * factor + bias
            (a.y + row * a.y_row + channel * 4).store(made.single(), 4)
