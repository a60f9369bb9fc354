"""Generated normalization of float32 rows by what they hold, in float64: by mean and deviation, and as shares of a sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import add

from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import KernelEmitter, emitter
from qrun.native.emit.numbers import RecheckEmitter, differ, exp, rounds_apart
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import Value

_ROWS = ("x*", "y*", "rows", "chunk", "tiles", "length", "recheck*", "numbers*")
STANDARDIZE = (*_ROWS, "scale*", "bias*", "slack*")
SHARES = MEAN = _ROWS
"""One 8-byte word each.

chunk        rows of a tile; length: elements of a row
scale, bias  float64 [length]; slack: the reach of a result that is due to its bias alone
recheck       makes rows, of their elements, where float64 does not decide how a result rounds
numbers      float64: the reach of a result relative to its size, or of a mean relative to that of all sizes; then for
             ``standardize`` its reach relative to the scale, epsilon, and the length
"""
REACH, SCALE_REACH, EPSILON, LENGTH = range(0, 32, 8)


Term = Callable[[int, Value], Value]
"""(n, index) to what is added: n float64 of a row, from this index on."""
Result = Callable[[int, Value], tuple[Value, Value]]
"""(n, index) to the ends of what n results may be."""
_SUMS = 2
"""Partial sums of a row, vectors that do not wait for each other."""


class _Rows(KernelEmitter):
    """Rows one after another, `rows` elements at once and what is left one by one."""

    own_memory = True
    reduces = False
    """Whether a row becomes one result."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.n, a = spec.rows, self.a
        self.whole = a.length & -self.n
        self.made = self.w.value("i64", 1) if self.reduces else a.length
        self.doubts = RecheckEmitter(self.w, a.recheck, a.length, self.made)

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            x, y = a.x + row * a.length * 4, a.y + row * self.made * 4
            with w.when(self._row(x, y)):
                self.doubts.add(x, y)
        self.doubts.end()

    def _row(self, x: Value, y: Value) -> Value:
        """Make the row at x, into y. Returns an i1: whether float64 leaves some result in doubt."""
        raise NotImplementedError

    def _number(self, place: int) -> Value:
        return (self.a.numbers + place).load("double", 8)

    def _loaded(self, n: int, start: Value, index: Value) -> Value:
        return (start + index * 4).load(f"<{n} x float>", 4).double()

    def _sum(self, term: Term) -> Value:
        """The sum of all terms: in each lane, then of lanes, then of the rest."""
        w, n = self.w, self.n
        block = self.a.length & -(_SUMS * n)
        with w.loop(0, block, _SUMS * n, [w.zero(f"<{n} x double>")] * _SUMS) as turns:
            terms = [term(n, turns.index + number * n) for number in range(_SUMS)]
            turns.next(*(total + more for total, more in zip(turns.carried, terms, strict=True)))
        with w.loop(block, self.whole, n, [reduce(add, turns.carried)]) as turn:
            turn.next(turn.carried[0] + term(n, turn.index))
        total = turn.carried[0]
        while total.lanes > 1:
            half = total.lanes // 2
            low, high = (total.shuffled(range(start, start + half)) for start in (0, half))
            total = low + high
        with w.loop(self.whole, self.a.length, 1, [total]) as rest:
            rest.next(rest.carried[0] + term(1, rest.index))
        return rest.carried[0].extract(0)

    def _stored(self, y: Value, result: Result) -> Value:
        """Store all results of a row. Returns an i1: whether some are in doubt."""
        w = self.w

        def made(n: int, index: Value) -> Value:
            low, high = (end.single() for end in result(n, index))
            (y + index * 4).store(low, 4)
            return differ(low, high)

        with w.loop(0, self.whole, self.n, [w.zero(f"<{self.n} x i1>")]) as turn:
            turn.next(turn.carried[0] | made(self.n, turn.index))
        some = turn.carried[0].any().splat(1)
        with w.loop(self.whole, self.a.length, 1, [some]) as rest:
            rest.next(rest.carried[0] | made(1, rest.index))
        return rest.carried[0].any()


@emitter("standardize")
class LayerNormEmitter(_Rows):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""

    names = STANDARDIZE

    def _row(self, x: Value, y: Value) -> Value:
        a, length = self.a, self._number(LENGTH)
        mean = self._sum(lambda n, at: self._loaded(n, x, at)) / length

        def apart(n: int, index: Value) -> Value:
            return self._loaded(n, x, index) - mean.splat(n)

        def squared(n: int, index: Value) -> Value:
            value = apart(n, index)
            return value * value

        variance = self._sum(squared) / length
        inverse = "1.0" / (variance + self._number(EPSILON)).sqrt()
        away = abs(mean) * inverse
        of_scale = self._number(SCALE_REACH) * (away + "1.0")
        of_size = self._number(REACH)

        def result(n: int, index: Value) -> tuple[Value, Value]:
            scale, bias, slack = (
                (start + index * 8).load(f"<{n} x double>", 8) for start in (a.scale, a.bias, a.slack)
            )
            share = apart(n, index) * inverse.splat(n)
            reach = abs(share).fma(of_size.splat(n), of_scale.splat(n))
            reach = abs(scale).fma(reach, slack)
            value = share.fma(scale, bias)
            return value - reach, value + reach

        return self._stored(y, result)


@emitter("shares")
class SoftmaxF32Emitter(_Rows):
    """exp(x - greatest) / sum exp(x - greatest). The exponentials of a row lie in the thread's memory."""

    names = SHARES

    def _row(self, x: Value, y: Value) -> Value:
        greatest = self._greatest(x).double()

        def exponential(n: int, index: Value) -> Value:
            made = exp(self._loaded(n, x, index) - greatest.splat(n))
            (self.scratch + index * 8).store(made, 8)
            return made

        inverse = "1.0" / self._sum(exponential)
        reach = inverse * self._number(REACH)
        least, most = inverse - reach, inverse + reach

        def result(n: int, index: Value) -> tuple[Value, Value]:
            made = (self.scratch + index * 8).load(f"<{n} x double>", 8)
            return made * least.splat(n), made * most.splat(n)

        return self._stored(y, result)

    def _greatest(self, x: Value) -> Value:
        """Of a row's elements, float; of those that are no NaN, if there are others."""
        w = self.w
        least = w.value(f"<{self.n} x float>", -math.inf)
        with w.loop(0, self.whole, self.n, [least]) as turn:
            block = (x + turn.index * 4).load(least.kind, 4)
            turn.next(block.where("ogt", turn.carried[0]))
        with w.loop(self.whole, self.a.length, 1, [turn.carried[0].reduced("fmax")]) as rest:
            value = (x + rest.index * 4).load("float", 4)
            rest.next(value.where("ogt", rest.carried[0]))
        return rest.carried[0]


@emitter("mean")
class MeanEmitter(_Rows):
    """sum x / length."""

    names = MEAN
    reduces = True

    def _row(self, x: Value, y: Value) -> Value:
        total = self._sum(lambda n, at: self._loaded(n, x, at)).splat(1)
        sizes = self._sum(lambda n, at: abs(self._loaded(n, x, at))).splat(1)
        count = self.a.length.uitofp("double").splat(1)
        mean = total / count
        single = mean.single()
        y.store(single, 4)
        reach = sizes / count * self._number(REACH).splat(1)
        return rounds_apart(mean - reach, mean + reach).any()


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


@emitter("lrn")
class LrnEmitter(KernelEmitter):
    """`rows` channels at once. The squares of a row lie in the thread's memory, zeros on either side."""

    names = NAMES
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
