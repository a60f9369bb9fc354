"""Generated normalization of the channels of float32 pixels, in float64: by the squares of neighbours,
and by constants."""

from __future__ import annotations

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names

LRN = names("x* y* x_row y_row rows chunk channels last before after taps tiles factor* bias*")
"""One 8-byte word each.

chunk             rows of a tile
channels, last    of a row, and where its last block starts: it overlaps
before, after     channels summed on either side; taps: before + 1 + after
factor, bias      float64: of the sum of squares, and what is added to it
"""


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
