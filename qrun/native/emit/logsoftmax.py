"""Generated logarithms of the shares that float32 rows' exponentials have of their sum, in float64."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.kernel import Value, emitter
from qrun.native.emit.logarithms import log
from qrun.native.emit.normalize import SoftmaxF32Emitter

REACH, SHARE = 0, 8
"""Places in `numbers`: the reach of a sum's logarithm, and that of a result relative to its size."""


@emitter("log_shares")
class LogSoftmaxEmitter(SoftmaxF32Emitter):
    """x - greatest - log(sum exp(x - greatest)). Neither part is above 0, so that nothing cancels."""

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        greatest = [self._greatest(x).double() for x in xs]
        totals = [self._total(*row, self.scratch) for row in zip(xs, greatest, strict=True)]
        return [self._logarithms(*row) for row in zip(xs, greatest, totals, ys, strict=True)]

    def _logarithms(self, x: Value, greatest: Value, total: Value, y: Value) -> Value:
        logarithm, counts = log(total.splat(1)).extract(0), (self.n, 1)
        tops, logarithms, reaches, shares = (
            {n: value.splat(n) for n in counts}
            for value in (greatest, logarithm, self.number(REACH), self.number(SHARE))
        )

        def result(n: int, index: Value) -> tuple[Value, Value]:
            made = (self.loaded(n, x, index) - tops[n]) - logarithms[n]
            return made * (1.0 + shares[n]) - reaches[n], made * (1.0 - shares[n]) + reaches[n]

        return self.stored(y, result)
