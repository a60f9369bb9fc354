"""Generated normalization of float32 rows by what they hold, in float64: by mean and deviation, and as shares of a sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import add

from qrun.native.emit.expression import operand_names
from qrun.native.emit.functions import StepsEmitter
from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import KernelEmitter, emitter
from qrun.native.emit.numbers import (
    RecheckEmitter,
    decay,
    differ,
    divided,
    product_error,
    rounded_to_odd,
    rounds_apart,
    two_sum,
)
from qrun.native.emit.spec import OUTER, KernelSpec
from qrun.native.emit.values import Value

_SOURCE = ("n1", "n2", "strides*", "constants*", "slots")
_ROWS = ("y*", "rows", "chunk", "tiles", "length", "recheck*", "numbers*")
STANDARDIZE = (*_ROWS, "scale*", "bias*", "slack*")
"""One 8-byte word each.

n1, n2       of rows that a form makes: lengths of the second and third of the axes that they are along
strides      int64 [operands][OUTER]: the operands' bytes along these
constants    of the form, as in emit/elementwise.py
slots        rows for which the thread's memory has room
chunk        rows of a tile; length: elements of a row
scale, bias  float64 [length]; slack: the reach of a result that is due to its bias alone
recheck       makes rows, of their elements, where float64 does not decide how a result rounds
numbers      float64: the reach of a result relative to its size, or of a mean relative to that of all sizes; then for
             ``standardize`` its reach relative to the scale, epsilon, the length, and the reach of pairs of float64
"""
REACH, SCALE_REACH, EPSILON, LENGTH, PAIR_REACH = range(0, 40, 8)
_SURE = 2.0**-55
"""A pair whose reach is at most so much of it lies less than one unit of its first number from that."""


Term = Callable[[int, Value], Value]
"""(n, index) to what is added: n float64 of a row, from this index on."""
Result = Callable[[int, Value], tuple[Value, Value]]
"""(n, index) to the ends of what n results may be."""
_SUMS = 2
"""Partial sums of a row, vectors that do not wait for each other."""


class _Rows(KernelEmitter):
    """Rows one after another, `rows` elements at once and what is left one by one.

    A row is read where it lies, or, with operands (then the form is the steps), made of these into the thread's memory,
    behind as many float64: into the first slot whose row is not in doubt.
    """

    own: tuple[str, ...] = _ROWS
    own_memory = True
    reduces = False
    """Whether a row becomes one result."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.operands = operand_names(len(spec.operands))[:-1] or ("x",)
        self.names = (*(f"{name}*" for name in self.operands), *(_SOURCE if spec.operands else ()), *self.own)
        super().__init__(spec, isa)
        self.n, a = spec.rows, self.a
        self.whole = a.length & -self.n
        self.made = self.w.value("i64", 1) if self.reduces else a.length
        self.doubts = RecheckEmitter(self.w, a.recheck, a.length, self.made)
        self.steps = (
            [StepsEmitter(spec.form, spec.operands, n, a.constants) for n in (self.n, 1)] if spec.operands else []
        )

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            x = self._source(row) if self.steps else a.x + row * a.length * 4
            y = a.y + row * self.made * 4
            with w.when(self._row(x, y)):
                self._doubted(x, y)
                if self.steps:
                    self.doubts.end(a.slots)
        self.doubts.end()

    def _source(self, row: Value) -> Value:
        """Make a row of what the operands hold for it; where it is."""
        w, a = self.w, self.a
        slot = self.doubts.count.load("i64", 8)
        made, (rest, i2) = self.scratch + (slot * 4 + 8) * a.length, divmod(row, a.n2)
        starts = [a[name] for name in self.operands]
        for axis, index in enumerate((*divmod(rest, a.n1), i2)):
            for number, start in enumerate(starts):
                starts[number] = start + index * (a.strides + 8 * (number * OUTER + axis)).load("i64", 8)
        kinds = list(enumerate(self.spec.operands))
        same = [{n: steps.same(n, starts[n]) for n, kind in kinds if kind.isupper()} for steps in self.steps]
        for at, count in w.runs(w.value("i64", 0), a.length, (self.n, 1)):
            steps = self.steps[count != self.n]
            values = [
                same[count != self.n][n] if kind.isupper() else steps.loaded(n, starts[n], at) for n, kind in kinds
            ]
            for number in range(steps.read, steps.last + 1):
                values.append(steps.made(number, [values[value] for value in steps.step(number).values]))
            (made + at * 4).store(values[-1], 4)
        return made

    def _doubted(self, x: Value, y: Value) -> None:
        """Make a row again that float64 leaves in doubt."""
        self.doubts.add(x, y)

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

        def made(n: int, index: Value) -> Value:
            low, high = (end.single() for end in result(n, index))
            (y + index * 4).store(low, 4)
            return differ(low, high)

        return self._some(made)

    def _some(self, made: Term) -> Value:
        """Whether one of the i1 is true that are made for the elements of a row: an i1."""
        w = self.w
        with w.loop(0, self.whole, self.n, [w.zero(f"<{self.n} x i1>")]) as turn:
            turn.next(turn.carried[0] | made(self.n, turn.index))
        some = turn.carried[0].any().splat(1)
        with w.loop(self.whole, self.a.length, 1, [some]) as rest:
            rest.next(rest.carried[0] | made(1, rest.index))
        return rest.carried[0].any()


@emitter("standardize")
class LayerNormEmitter(_Rows):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""

    own = STANDARDIZE

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

    def _doubted(self, x: Value, y: Value) -> None:
        """In pairs of float64, the second one what the first one lacks; rows that they leave in doubt are listed.

        The steps are those above; divisions and the root are corrected by what they leave.
        """
        w = self.w
        length, none = self._number(LENGTH), w.value("double", "0.0")
        mean, mean_low = divided(
            *self._long_sum(lambda n, at: (self._loaded(n, x, at), w.zero(f"<{n} x double>"))), length
        )

        def apart(n: int, index: Value) -> tuple[Value, Value]:
            high, low = two_sum(self._loaded(n, x, index), -mean.splat(n))
            return two_sum(high, low - mean_low.splat(n))

        def squared(n: int, index: Value) -> tuple[Value, Value]:
            high, low = apart(n, index)
            square = high * high
            return square, product_error(high, high, square) + (high + high) * low

        variance, variance_low = divided(*self._long_sum(squared), length)
        raised, lost = two_sum(variance, self._number(EPSILON))
        root = raised.sqrt()
        square = root * root
        rest = raised - square - product_error(root, root, square) + (lost + variance_low)
        root_low = root.test("ogt", none).select(rest / (root + root), none)
        of_scale = abs(mean) / root + 1.0
        reach = self._number(PAIR_REACH)

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
            single = rounded_to_odd(top, low).single()
            (y + index * 4).store(single, 4)
            unsure = far.test("ugt", abs(top) * _SURE)
            return unsure | rounds_apart(*(rounded_to_odd(top, end) for end in (low - far, low + far)))

        with w.when(self._some(made)):
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
class SoftmaxF32Emitter(_Rows):
    """exp(x - greatest) / sum exp(x - greatest). The exponentials of a row lie in the thread's memory."""

    def _row(self, x: Value, y: Value) -> Value:
        greatest = self._greatest(x).double()

        def exponential(n: int, index: Value) -> Value:
            made = decay(self._loaded(n, x, index) - greatest.splat(n))
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
        w, n = self.w, self.n
        least = w.value(f"<{n} x float>", -math.inf)
        block = self.a.length & -(_SUMS * n)
        with w.loop(0, block, _SUMS * n, [least] * _SUMS) as turns:
            blocks = [(x + (turns.index + number * n) * 4).load(least.kind, 4) for number in range(_SUMS)]
            turns.next(*(more.where("ogt", so_far) for more, so_far in zip(blocks, turns.carried, strict=True)))
        with w.loop(block, self.whole, n, [reduce(_greater, turns.carried)]) as turn:
            turn.next((x + turn.index * 4).load(least.kind, 4).where("ogt", turn.carried[0]))
        with w.loop(self.whole, self.a.length, 1, [turn.carried[0].reduced("fmax")]) as rest:
            value = (x + rest.index * 4).load("float", 4)
            rest.next(value.where("ogt", rest.carried[0]))
        return rest.carried[0]


def _greater(a: Value, b: Value) -> Value:
    return a.where("ogt", b)


@emitter("mean")
class MeanEmitter(_Rows):
    """sum x / length."""

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
