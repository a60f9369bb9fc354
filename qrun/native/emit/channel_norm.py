"""Generated instance and group normalization of float32: rows whose elements belong to channels, in float64."""

from __future__ import annotations

from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter
from qrun.native.emit.normalize import REACH, SCALE_REACH, STANDARDIZE, LayerNormEmitter
from qrun.native.emit.numbers import RecheckEmitter, differ

NAMES = (*STANDARDIZE, "groups", "channels", "piece")
"""Those of layer normalization, but scale, bias and slack are float64 [groups][channels]; then

groups    rows after which these begin again
channels  of a row, and `piece` elements of each
recheck   is told where all results begin, and for each row in doubt where it and its results are
"""


@emitter("standardize_channels")
class ChannelNormEmitter(LayerNormEmitter):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, scale and bias of each channel. Rows in doubt are listed."""

    own = NAMES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.first = self.w.let("i64", f"ptrtoint ptr {self.a.y} to i64")
        self.doubts = RecheckEmitter(self.w, self.a.recheck, self.first, 0)

    def doubted(self, x: Value, y: Value) -> None:
        self.doubts.add(x, y)

    def _scaled(self, x: Value, mean: Value, inverse: Value, y: Value) -> Value:
        w, a = self.w, self.a
        of_scale = self.number(SCALE_REACH) * (abs(mean) * inverse + "1.0")
        of_size = self.number(REACH)
        here = w.let("i64", f"ptrtoint ptr {y} to i64")
        first = (here - self.first) // (a.length * 4) % a.groups * a.channels

        def made(n: int, index: Value, affine: list[Value]) -> Value:
            scale, bias, slack = affine
            share = self._apart(x, mean, n, index) * inverse.splat(n)
            reach = abs(share).fma(of_size.splat(n), of_scale.splat(n))
            reach = abs(scale.splat(n)).fma(reach, slack.splat(n))
            value = share.fma(scale.splat(n), bias.splat(n))
            low, high = (value - reach).single(), (value + reach).single()
            (y + index * 4).store(low, 4)
            return differ(low, high)

        with w.loop(0, a.channels, 1, [w.value("i1", 0)]) as channel:
            place, begin = (first + channel.index) * 8, channel.index * a.piece
            affine = [(values + place).load("double", 8) for values in (a.scale, a.bias, a.slack)]
            whole = begin + (a.piece & -self.n)
            with w.loop(begin, whole, self.n, [w.zero(f"<{self.n} x i1>")]) as turn:
                turn.next(turn.carried[0] | made(self.n, turn.index, affine))
            with w.loop(whole, begin + a.piece, 1, [turn.carried[0].any().splat(1)]) as rest:
                rest.next(rest.carried[0] | made(1, rest.index, affine))
            channel.next(channel.carried[0] | rest.carried[0].any())
        return channel.carried[0]
