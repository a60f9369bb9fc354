"""Generated logarithms of sums over float32 rows, in float64: of the elements, of their exponentials, and of the shares that
these have of their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.native.emit.kernel import Value, emitter
from qrun.native.emit.logarithms import log
from qrun.native.emit.normalize import SoftmaxF32Emitter
from qrun.native.emit.numbers import differ
from qrun.native.emit.reduce import SumEmitter
from qrun.native.emit.rowwise import RowwiseEmitter

REACH, SHARE = 0, 8
"""Places in `numbers`: the reach of a sum relative to that of all sizes, and of a logarithm relative to its size."""


def _sure(kernel: RowwiseEmitter, y: Value, low: Value, high: Value) -> Value:
    """Store a result between two numbers that may be off by their share. Returns an i1: whether it is in doubt."""
    share = kernel.number(SHARE)
    ends = [(end * factor).splat(1).single() for end in (low, high) for factor in (1.0 - share, 1.0 + share)]
    y.store(ends[0], 4)
    unsure = [differ(ends[0], end) for end in ends[1:]]
    return (unsure[0] | unsure[1] | unsure[2]).any()


def _log(x: Value) -> Value:
    """Of a scalar."""
    return log(x.splat(1)).extract(0)


@emitter("log_sum")
class LogSumEmitter(SumEmitter):
    """log(sum x)."""

    def made_row(self, x: Value, y: Value) -> Value:
        total = self.sum(lambda n, at: self.loaded(n, x, at))
        reach = self._sizes(x) * self.number(REACH)
        return _sure(self, y, _log(total - reach), _log(total + reach))

    def doubted(self, x: Value, y: Value) -> None:
        """A sum that is exact does not make its logarithm so."""
        self.doubts.add(x, y)


@emitter("log_sum_exp")
class LogSumExpEmitter(SoftmaxF32Emitter):
    """log(sum exp(x - greatest)) + greatest; rows whose greatest element is not finite are in doubt."""

    reduces = True

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        greatest = [self._greatest(x).double() for x in xs]
        totals = [self._total(*row) for row in zip(xs, greatest, strict=True)]
        return [self._joined(*row) for row in zip(greatest, totals, ys, strict=True)]

    def _joined(self, greatest: Value, total: Value, y: Value) -> Value:
        share, reach = self.number(SHARE), total * self.number(REACH)
        low, high = (_log(end) for end in (total - reach, total + reach))
        low, high = low - abs(low) * share, high + abs(high) * share
        return _sure(self, y, low + greatest, high + greatest) | ~abs(greatest).test("olt", math.inf)


@emitter("log_shares")
class LogSoftmaxEmitter(SoftmaxF32Emitter):
    """x - greatest - log(sum exp(x - greatest)). Neither part is above 0, so that nothing cancels."""

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        greatest = [self._greatest(x).double() for x in xs]
        totals = [self._total(*row) for row in zip(xs, greatest, strict=True)]
        return [self._logarithms(*row) for row in zip(xs, greatest, totals, ys, strict=True)]

    def _logarithms(self, x: Value, greatest: Value, total: Value, y: Value) -> Value:
        counts = (self.n, 1)
        tops, logarithms, reaches, shares = (
            {n: value.splat(n) for n in counts}
            for value in (greatest, _log(total), self.number(REACH), self.number(SHARE))
        )

        def result(n: int, index: Value) -> tuple[Value, Value]:
            made = (self.loaded(n, x, index) - tops[n]) - logarithms[n]
            return made.fma(1.0 + shares[n], -0.0 - reaches[n]), made.fma(1.0 - shares[n], reaches[n])

        return self.stored(y, result)
