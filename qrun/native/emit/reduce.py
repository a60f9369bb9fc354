"""Generated reductions of float32 rows to one number each: sums in float64, and extremes."""

from __future__ import annotations

import math

from qrun.native.emit.kernel import Value, emitter
from qrun.native.emit.numbers import finer, rounds_apart
from qrun.native.emit.rowwise import RowwiseEmitter

REACH = 0
"""The one of `numbers`: the reach of a sum relative to that of all sizes."""


@emitter("sum")
class SumEmitter(RowwiseEmitter):
    """sum x."""

    reduces = True
    signed = True
    """Whether terms may be negative."""

    def term(self, x: Value) -> Value:
        """What an element adds to the sum."""
        return x

    def result(self, total: Value) -> Value:
        """What the kernel makes of a sum. It does not grow the sum's relative error by more than a few roundings."""
        return total

    def _sizes(self, x: Value) -> Value:
        return self.sum(lambda n, at: abs(self.term(self.loaded(n, x, at))))

    def made_row(self, x: Value, y: Value) -> Value:
        total = self.sum(lambda n, at: self.term(self.loaded(n, x, at)))
        sizes = self._sizes(x) if self.signed else total
        made, far = (self.result(value.splat(1)) for value in (total, sizes))
        y.store(made.single(), 4)
        reach = far * self.number(REACH).splat(1)
        return rounds_apart(made - reach, made + reach).any()

    def doubted(self, x: Value, y: Value) -> None:
        """Ties are common where few elements are added, or divided by a small number. The result stays if all sums are exact."""
        sizes = self._sizes(x)
        some = self.some(lambda n, at: finer(self.term(self.loaded(n, x, at)), sizes.splat(n)))
        with self.w.when(some):
            self.doubts.add(x, y)


@emitter("mean")
class MeanEmitter(SumEmitter):
    """sum x / length."""

    def result(self, total: Value) -> Value:
        return total / self.a.length.uitofp("double").splat(1)


@emitter("sum_abs")
class SumAbsEmitter(SumEmitter):
    """sum |x|."""

    signed = False

    def term(self, x: Value) -> Value:
        return abs(x)


@emitter("sum_square")
class SumSquareEmitter(SumEmitter):
    """sum x * x. float64 has the squares of float32 numbers."""

    signed = False

    def term(self, x: Value) -> Value:
        return x * x


@emitter("norm")
class NormEmitter(SumSquareEmitter):
    """sqrt(sum x * x)."""

    def result(self, total: Value) -> Value:
        return total.sqrt()


@emitter("greatest")
class GreatestEmitter(RowwiseEmitter):
    """The greatest element, +0 being greater than -0; NaN if there is one."""

    reduces = True
    better, worst = "maximum", -math.inf

    def made_row(self, x: Value, y: Value) -> Value:
        y.store(self.extreme(x, self.worst, lambda a, b: a.intrinsic(self.better, b)), 4)
        return self.w.value("i1", 0)

    def doubted(self, x: Value, y: Value) -> None:
        """Extremes are exact."""


@emitter("least")
class LeastEmitter(GreatestEmitter):
    """The least element, -0 being less than +0; NaN if there is one."""

    better, worst = "minimum", math.inf
