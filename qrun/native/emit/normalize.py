"""Generated normalization of float32 rows, in float64: by mean and deviation, of rows and of channels, and by the root
mean square."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter
from qrun.native.emit.numbers import (
    RecheckEmitter,
    divided,
    product_error,
    rounded_to_odd,
    rounds_apart,
    two_sum,
)
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
        ends = self._ends(x, mean, inverse)

        def result(n: int, index: Value) -> tuple[Value, Value]:
            starts = self.a.scale, self.a.bias, self.a.slack
            return ends(n, index, *((start + index * 8).load(f"<{n} x double>", 8) for start in starts))

        return self.stored(y, result)

    def _ends(self, x: Value, mean: Value, inverse: Value) -> Callable[..., tuple[Value, Value]]:
        """(n, index, scale, bias, slack) to the ends of what n results of a row may be."""
        of_scale = self.number(SCALE_REACH) * (abs(mean) * inverse + "1.0")
        of_size = self.number(REACH)

        def ends(n: int, index: Value, scale: Value, bias: Value, slack: Value) -> tuple[Value, Value]:
            share = self._apart(x, mean, n, index) * inverse.splat(n)
            reach = abs(share).fma(of_size.splat(n), of_scale.splat(n))
            reach = abs(scale).fma(reach, slack)
            value = share.fma(scale, bias)
            return value - reach, value + reach

        return ends

    def doubted(self, x: Value, y: Value) -> None:
        """In pairs of float64, the second one what the first one lacks; rows that they leave in doubt are listed.

        The steps are those above; divisions and the root are corrected by what they leave. Of narrower types, of which
        few results are in doubt, they are listed at once: the reference has them in float64 alone.
        """
        w = self.w
        if w.narrowing:
            self.doubts.add(x, y)
            return
        length, none = self.number(LENGTH), w.value("double", "0.0")
        whole = self._long_sum(lambda n, at: (self.loaded(n, x, at), w.zero(f"<{n} x double>")))
        mean, mean_low = divided(*whole, length)

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
            nothing = scale.test("oeq", 0.0)  # what is lost, here and in a pair, would take the sign of -0
            plain = self._apart(x, mean, n, index) * scale + bias
            single = nothing.select(plain, rounded_to_odd(top, low)).single()
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


CHANNELS = (*STANDARDIZE, "groups", "channels", "piece")
"""Those of layer normalization, but scale, bias and slack are float64 [groups][channels]; then

groups    rows after which these begin again
channels  of a row, and `piece` elements of each
recheck   is told where all results begin, and for each row in doubt where it and its results are
"""


@emitter("standardize_channels")
class ChannelNormEmitter(LayerNormEmitter):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, scale and bias of each channel.
    Rows in doubt are listed."""

    own = CHANNELS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.first = self.a.y.address()
        self.doubts = RecheckEmitter(self.w, self.a.recheck, self.first, 0)

    def doubted(self, x: Value, y: Value) -> None:
        self.doubts.add(x, y)

    def _scaled(self, x: Value, mean: Value, inverse: Value, y: Value) -> Value:
        w, a, ends = self.w, self.a, self._ends(x, mean, inverse)
        first = (y.address() - self.first) // (a.length * 4) % a.groups * a.channels
        with w.loop(0, a.channels, 1, [w.value("i1", 0)]) as channel:
            place, begin = (first + channel.index) * 8, channel.index * a.piece
            affine = [(values + place).load("double", 8) for values in (a.scale, a.bias, a.slack)]

            def result(n: int, index: Value) -> tuple[Value, Value]:
                return ends(n, index, *(value.splat(n) for value in affine))

            part = begin, begin + (a.piece & -self.n), begin + a.piece
            channel.next(channel.carried[0] | self.stored(y, result, part))
        return channel.carried[0]


RMS = (*ROWS, "scale*")
"""One 8-byte word each.

scale    float64 [length]
numbers  what a result is multiplied with to be at its least and at its most, epsilon, and the length
"""
LEAST, MOST = 0, 8


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


class _Norms(RowwiseEmitter):
    """x / norm of its row; a row whose norm is 0 stays."""

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        norms = [self.norm(x) for x in xs]
        return [self._divided(*row) for row in zip(xs, norms, ys, strict=True)]

    def norm(self, x: Value) -> Value:
        raise NotImplementedError

    def _divided(self, x: Value, norm: Value, y: Value) -> Value:
        inverse = norm.test("une", 0.0).select("1.0" / norm, 1.0)
        reach = inverse * self.number(REACH)
        ends = {n: ((inverse - reach).splat(n), (inverse + reach).splat(n)) for n in (self.n, 1)}

        def result(n: int, index: Value) -> tuple[Value, Value]:
            value = self.loaded(n, x, index)
            return value * ends[n][0], value * ends[n][1]

        return self.stored(y, result)


@emitter("l1_rows")
class L1NormEmitter(_Norms):
    """The norm is the sum of magnitudes."""

    def norm(self, x: Value) -> Value:
        return self.sum(lambda n, index: abs(self.loaded(n, x, index)))


@emitter("l2_rows")
class L2NormEmitter(_Norms):
    """The norm is the root of the sum of squares."""

    def norm(self, x: Value) -> Value:
        def squared(n: int, index: Value) -> Value:
            value = self.loaded(n, x, index)
            return value * value

        return self.sum(squared).sqrt()
