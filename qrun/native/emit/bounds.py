"""Generated part of proofs: between which numbers the inverse of a multiplier may lie (see proof/search.py)."""

from __future__ import annotations

import math

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter
from qrun.native.emit.spec import BOUND_VECTORS
from qrun.native.emit.values import MAGIC64, ZERO

BOUNDS = ("inverse*", "low*", "high*", "halves*", "weights*", "split", "steps", "tiles")
"""One 8-byte word each. A tile is spec.rows channels; inverse, low and high are float64 [tiles * rows].

halves, weights  float64 [steps]: want - 1/2, ascending, and its inverse; split: how many are negative
"""


@emitter("bounds")
class BoundsEmitter(KernelEmitter):
    """For each channel, with steps t = ceil(inverse * halves), in float64 throughout:

    low  = greatest of 0, t * weights where that is negative, and t * weights - weights elsewhere
    high = least of infinity, t * weights where that is positive, and t * weights - weights elsewhere
    """

    names = BOUNDS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.lanes = spec.rows // BOUND_VECTORS
        self.kind = f"<{self.lanes} x double>"
        self.magic, self.one, self.infinity = (
            self.w.value("double", value).splat(self.lanes) for value in (MAGIC64, "1.0", math.inf)
        )

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        first = tile * (8 * BOUND_VECTORS * self.lanes)
        places = [8 * self.lanes * v for v in range(BOUND_VECTORS)]
        inverses = [(a.inverse + first + place).load(self.kind, 8) for place in places]
        with w.loop(0, a.split, 1, [w.zero(self.kind)] * BOUND_VECTORS + [self.infinity] * BOUND_VECTORS) as turn:
            turn.next(*self._step(turn.index, inverses, turn.carried, True))
        with w.loop(a.split, a.steps, 1, turn.carried) as rest:
            rest.next(*self._step(rest.index, inverses, rest.carried, False))
        for start, values in ((a.low, rest.carried[:BOUND_VECTORS]), (a.high, rest.carried[BOUND_VECTORS:])):
            for place, value in zip(places, values, strict=True):
                (start + first + place).store(value, 8)

    def _step(self, index: Value, inverses: list[Value], state: list[Value], negative: bool) -> list[Value]:
        """The bounds after one more step. negative: whether the step's `halves` are negative."""
        half, weight = (
            (start + index * 8).load("double", 8).splat(self.lanes) for start in (self.a.halves, self.a.weights)
        )
        lows, highs = [], []
        for vector, inverse in enumerate(inverses):
            at = self._ceil(inverse * half) * weight
            below = at - weight
            low, high = (at, below) if negative else (below, at)
            lows.append(low.where("ogt", state[vector]))
            highs.append(high.where("olt", state[BOUND_VECTORS + vector]))
        return lows + highs

    def _ceil(self, value: Value) -> Value:
        """The least integer that is not below the value, if that is less than 2**51; else some integer near it."""
        nearest = value + self.magic - self.magic
        return nearest + nearest.test("olt", value).select(self.one, ZERO)
