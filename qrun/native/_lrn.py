"""Generated local response normalization of float32 rows of channels, in float64."""

from __future__ import annotations

from qrun.native._flow import Flow
from qrun.native._ir import Arguments, Value
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

NAMES = (
    "x*", "y*", "x_row", "y_row", "rows", "chunk", "channels", "last", "before", "after", "taps", "tiles", "factor*",
    "bias*",
)  # fmt: skip
"""One 8-byte word each.

chunk             rows of a tile
channels, last    of a row, and where its last block starts: it overlaps
before, after     channels summed on either side; taps: before + 1 + after
factor, bias      float64: of the sum of squares, and what is added to it
"""


class Lrn:
    """`rows` channels at once. The squares of a row lie in the thread's memory, zeros on either side."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.w, self.n = spec, Flow(isa.fma), spec.rows
        self.kind = f"<{self.n} x double>"
        self.w.label("entry")
        self.a = a = Arguments(self.w, NAMES)
        self.scratch = self.w.value("ptr", "%scratch")
        self.factor, self.bias = (pointer.load("double", 8).splat(self.n) for pointer in (a.factor, a.bias))

    def text(self) -> str:
        w, a = self.w, self.a
        squares = self.scratch + a.before * 8
        with w.tiles(a.tiles) as tile:
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
        return w.kernel(scratch=True)

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
