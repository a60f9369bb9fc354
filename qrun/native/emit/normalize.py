"""Generated normalization of float32 rows by what they hold, in float64: by mean and deviation, as shares of a sum, and by
the squares of neighbouring channels; and of their channels by constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.numbers import decay, divided, product_error, rounded_to_odd, rounds_apart, two_sum
from qrun.native.emit.rowwise import ROWS, RowwiseEmitter

STANDARDIZE = (*ROWS, "scale*", "bias*", "slack*")
"""One 8-byte word each.

scale, bias  float64 [length]; slack: the reach of a result that is due to its bias alone
numbers      the reach of a result relative to its size, or of a mean relative to that of all sizes; then for
             ``standardize`` its reach relative to the scale, epsilon, the length, and the reach of pairs of float64
"""
REACH, SCALE_REACH, EPSILON, LENGTH, PAIR_REACH = range(0, 40, 8)
_SURE = 2.0**-55
"""A pair whose reach is at most so much of it lies less than one unit of its first number from that."""


@emitter("standardize")
class LayerNormEmitter(RowwiseEmitter):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""

    own: tuple[str, ...] = STANDARDIZE

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        """Several rows at once: while one waits for its mean, or for its deviation, the others go on."""
        means = [self._mean(x) for x in xs]
        inverses = [self._inverse(x, mean) for x, mean in zip(xs, means, strict=True)]
        return [self._scaled(*row) for row in zip(xs, means, inverses, ys, strict=True)]

    def _mean(self, x: Value) -> Value:
        return self.sum(lambda n, at: self.loaded(n, x, at)) / self.number(LENGTH)

    def _apart(self, x: Value, mean: Value, n: int, index: Value) -> Value:
        return self.loaded(n, x, index) - mean.splat(n)

    def _inverse(self, x: Value, mean: Value) -> Value:
        """1 / sqrt(variance + epsilon) of a row."""

        def squared(n: int, index: Value) -> Value:
            value = self._apart(x, mean, n, index)
            return value * value

        variance = self.sum(squared) / self.number(LENGTH)
        return "1.0" / (variance + self.number(EPSILON)).sqrt()

    def _scaled(self, x: Value, mean: Value, inverse: Value, y: Value) -> Value:
        a, away = self.a, abs(mean) * inverse
        of_scale = self.number(SCALE_REACH) * (away + "1.0")
        of_size = self.number(REACH)

        def result(n: int, index: Value) -> tuple[Value, Value]:
            scale, bias, slack = (
                (start + index * 8).load(f"<{n} x double>", 8) for start in (a.scale, a.bias, a.slack)
            )
            share = self._apart(x, mean, n, index) * inverse.splat(n)
            reach = abs(share).fma(of_size.splat(n), of_scale.splat(n))
            reach = abs(scale).fma(reach, slack)
            value = share.fma(scale, bias)
            return value - reach, value + reach

        return self.stored(y, result)

    def doubted(self, x: Value, y: Value) -> None:
        """In pairs of float64, the second one what the first one lacks; rows that they leave in doubt are listed.

        The steps are those above; divisions and the root are corrected by what they leave. Of narrower types, of which few
        results are in doubt, they are listed at once: the reference has them in float64 alone.
        """
        w = self.w
        if w.narrowing:
            self.doubts.add(x, y)
            return
        length, none = self.number(LENGTH), w.value("double", "0.0")
        mean, mean_low = divided(
            *self._long_sum(lambda n, at: (self.loaded(n, x, at), w.zero(f"<{n} x double>"))), length
        )

        def apart(n: int, index: Value) -> tuple[Value, Value]:
            high, low = two_sum(self.loaded(n, x, index), -mean.splat(n))
            return two_sum(high, low - mean_low.splat(n))

        def squared(n: int, index: Value) -> tuple[Value, Value]:
            high, low = apart(n, index)
            square = high * high
            return square, product_error(high, high, square) + (high + high) * low

        variance, variance_low = divided(*self._long_sum(squared), length)
        raised, lost = two_sum(variance, self.number(EPSILON))
        root = raised.sqrt()
        square = root * root
        rest = raised - square - product_error(root, root, square) + (lost + variance_low)
        root_low = root.test("ogt", none).select(rest / (root + root), none)
        of_scale = abs(mean) / root + 1.0
        reach = self.number(PAIR_REACH)

        def made(n: int, index: Value) -> Value:
            kind, place = f"<{n} x double>", index * 8
            scale, bias = ((start + place).load(kind, 8) for start in (self.a.scale, self.a.bias))
            high, low = apart(n, index)
            product = high * scale
            error = product_error(high, scale, product) + low * scale
            quotient, quotient_low = divided(product, error, root.splat(n), root_low.splat(n))
            top, lost = two_sum(quotient, bias)
            top, low = two_sum(top, lost + quotient_low)
            far = (abs(scale) * of_scale.splat(n) + abs(quotient) + abs(bias)) * reach.splat(n)
            nothing = scale.test("oeq", 0.0)  # what is lost there would take the sign of -0
            single = nothing.select(product + bias, rounded_to_odd(top, low)).single()
            (y + index * 4).store(single, 4)
            unsure = far.test("ugt", abs(top) * _SURE)
            return unsure | rounds_apart(*(rounded_to_odd(top, end) for end in (low - far, low + far)))

        with w.when(self.some(made)):
            self.doubts.add(x, y)

    def _long_sum(self, term: Callable[[int, Value], tuple[Value, Value]]) -> tuple[Value, Value]:
        """The sum of pairs as a pair: in each lane, then of lanes, then of the rest."""
        w = self.w

        def added(total: Value, low: Value, more: Value, more_low: Value) -> tuple[Value, Value]:
            total, lost = two_sum(total, more)
            return total, low + (lost + more_low)

        with w.loop(0, self.whole, self.n, [w.zero(f"<{self.n} x double>")] * 2) as turn:
            total, low = turn.carried
            turn.next(*added(total, low, *term(self.n, turn.index)))
        total, low = (value.extract(0) for value in turn.carried)
        for lane in range(1, self.n):
            more, more_low = (value.extract(lane) for value in turn.carried)
            total, low = added(total, low, more, more_low)
        with w.loop(self.whole, self.a.length, 1, [total, low]) as rest:
            more, more_low = (value.extract(0) for value in term(1, rest.index))
            total, low = rest.carried
            rest.next(*added(total, low, more, more_low))
        total, low = rest.carried
        return two_sum(total, low)


@emitter("shares")
class SoftmaxF32Emitter(RowwiseEmitter):
    """exp(x - greatest) / sum exp(x - greatest). The exponentials of a row lie in the thread's memory."""

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        """Several rows at once: while one waits for its greatest element, or for its sum, the others go on."""
        kept = [self.scratch + self.a.length * (8 * place) for place in range(len(xs))]
        greatest = [self._greatest(x).double() for x in xs]
        totals = [self._total(*row) for row in zip(xs, greatest, kept, strict=True)]
        return [self._shares(*row) for row in zip(kept, totals, ys, strict=True)]

    def _total(self, x: Value, greatest: Value, kept: Value | None = None) -> Value:
        """The sum of a row's exponentials, which are stored at `kept`, if at all."""

        top = {n: greatest.splat(n) for n in (self.n, 1)}

        def exponential(n: int, index: Value) -> Value:
            made = decay(self.loaded(n, x, index) - top[n])
            if kept is not None:
                (kept + index * 8).store(made, 8)
            return made

        return self.sum(exponential)

    def _shares(self, kept: Value, total: Value, y: Value) -> Value:
        inverse = "1.0" / total
        reach = inverse * self.number(REACH)
        ends = {n: ((inverse - reach).splat(n), (inverse + reach).splat(n)) for n in (self.n, 1)}

        def result(n: int, index: Value) -> tuple[Value, Value]:
            made = (kept + index * 8).load(f"<{n} x double>", 8)
            least, most = ends[n]
            return made * least, made * most

        return self.stored(y, result)

    def _greatest(self, x: Value) -> Value:
        """The greatest element of a row, float; elements that are NaN count only where all are."""
        return self.extreme(x, -math.inf, lambda more, so_far: more.where("ogt", so_far))


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
