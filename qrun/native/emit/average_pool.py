"""The generated mean of float32 over windows, in float64."""

from __future__ import annotations

from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import emitter
from qrun.native.emit.numbers import RecheckEmitter, finer, rounds_apart
from qrun.native.emit.pool import POOL, PoolEmitter
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import Value, constants

AVERAGE = (*POOL, "constants*", "recheck*")
"""As in pool.py.

constants    16 bytes per pixel: two float64, how many elements the mean is of, and its reach relative to all magnitudes
recheck      makes results by their addresses, which nothing else decides
"""


@emitter("average_pool")
class AveragePoolEmitter(PoolEmitter):
    """Sums begin at -0, to which any number may be added. `unroll` divides the taps."""

    names = AVERAGE

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        args = self.w.let("i64", "ptrtoint ptr %args to i64")
        self.doubts = RecheckEmitter(self.w, self.a.recheck, args, 0)

    def tile(self, tile: Value) -> None:
        super().tile(tile)
        self.doubts.end()

    def _pixel(self, number: Value) -> None:
        place = self.a.constants + number * 16
        self.divisor, self.reach = ((place + at).load("double", 8).splat(self.lanes) for at in (0, 8))

    def _window(self, x: Value, offsets: Value) -> list[Value]:
        w, kind, count = self.w, f"<{self.lanes} x double>", self.vectors
        with w.loop(
            0, self.a.taps, self.spec.unroll, [*[w.value(kind, -0.0)] * count, *[w.zero(kind)] * count]
        ) as turn:
            carried = turn.carried
            for tap in self._taps(x, offsets, turn.index):
                numbers = [value.bitcast(self.bytes.floats).double() for value in tap]
                terms = [*numbers, *(abs(value) for value in numbers)]
                carried = [total + term for total, term in zip(carried, terms, strict=True)]
            turn.next(*carried)
        self.place = x, offsets
        self.sizes = turn.carried[count:]
        self.means = [total / self.divisor for total in turn.carried[:count]]
        return [mean.single().bitcast(self.kind) for mean in self.means]

    def _store(self, values: list[Value], y: Value) -> None:
        super()._store(values, y)
        for vector, (mean, sizes) in enumerate(zip(self.means, self.sizes, strict=True)):
            off = sizes * self.reach
            apart = rounds_apart(mean - off, mean + off)
            if not self.spec.vectors:
                left = self.a.columns.lshr(2).trunc("i32").splat(self.lanes)
                apart = apart & left.like(constants("i32", range(self.lanes))).test("slt", left)
            with self.w.when(apart.any()):
                self._settle(apart, sizes, vector, y + vector * self.spec.rows)

    def _settle(self, apart: Value, sizes: Value, vector: Value | int, y: Value) -> None:
        """List the results in doubt but for those whose sums are exact in any order."""
        w, (x, offsets) = self.w, self.place
        with w.loop(0, self.a.taps, 1, [w.zero(apart.kind)]) as tap:
            offset = (offsets + tap.index * 4).load("i32", 4)
            row = offset.test("slt", 0).select(self.a.padding, x + offset.sext("i64"))
            value = (row + vector * self.spec.rows).load(self.bytes.floats, 4).double()
            tap.next(tap.carried[0] | finer(value, sizes))
        unsure = (apart & tap.carried[0]).bits().zext("i64")
        with w.loop(0, self.lanes, 1) as lane, w.when((unsure.lshr(lane.index) & 1).test("ne", 0)):
            self.doubts.add(w.let("i64", f"ptrtoint ptr {y + lane.index * 4} to i64"), w.value("i64", 0))
