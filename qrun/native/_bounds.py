"""Generated part of proofs: between which numbers the inverse of a multiplier may lie (see search.py)."""

from __future__ import annotations

from qrun.native._flow import Flow
from qrun.native._ir import argument_loader
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

BOUNDS = ("inverse*", "low*", "high*", "halves*", "weights*", "split", "steps", "tiles")
"""One 8-byte word each. A tile is spec.rows channels; inverse, low and high are float64 [tiles * rows].

halves, weights  float64 [steps]: want - 1/2, ascending, and its inverse; split: how many are negative
"""
VECTORS = 4
_MAGIC = "0x4338000000000000"


class Bounds:
    """For each channel, with steps t = ceil(inverse * halves), in float64 throughout:

    low  = greatest of 0, t * weights where that is negative, and t * weights - weights elsewhere
    high = least of infinity, t * weights where that is positive, and t * weights - weights elsewhere
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.lanes = spec.rows // VECTORS
        self.kind = f"<{self.lanes} x double>"
        self.w = Flow()

    def text(self) -> str:
        w = self.w
        w.label("entry")
        a = argument_loader(w, BOUNDS)
        magic, one = (w.splat(self.lanes, "double", value) for value in (_MAGIC, "1.0"))
        start = [(self.kind, "zeroinitializer")] * VECTORS
        start += [(self.kind, w.splat(self.lanes, "double", "0x7FF0000000000000"))] * VECTORS
        with w.tiles(a["tiles"]) as tile:
            first = w.mul(tile, 8 * VECTORS * self.lanes)
            places = [8 * self.lanes * v for v in range(VECTORS)]
            inverses = [w.load(self.kind, w.at(w.at(a["inverse"], first), place), 8) for place in places]
            with w.loop("0", a["split"], 1, start) as turn:
                turn.next(self._step(turn.index, a, inverses, turn.carried, (magic, one), True))
            with w.loop(a["split"], a["steps"], 1, [(self.kind, value) for value in turn.carried]) as rest:
                rest.next(self._step(rest.index, a, inverses, rest.carried, (magic, one), False))
            for name, values in (("low", rest.carried[:VECTORS]), ("high", rest.carried[VECTORS:])):
                for place, value in zip(places, values, strict=True):
                    w.store(self.kind, value, w.at(w.at(a[name], first), place), 8)
        return w.kernel()

    def _step(
        self,
        index: str,
        a: dict[str, str],
        inverses: list[str],
        state: list[str],
        known: tuple[str, str],
        negative: bool,
    ) -> list[str]:
        w, kind = self.w, self.kind
        half, weight = (
            w.splat(self.lanes, "double", w.load("double", w.at(a[name], w.mul(index, 8)), 8))
            for name in ("halves", "weights")
        )
        lows, highs = [], []
        for vector, inverse in enumerate(inverses):
            steps = self._ceil(w.let(f"fmul {kind} {inverse}, {half}"), *known)
            at = w.let(f"fmul {kind} {steps}, {weight}")
            below = w.let(f"fsub {kind} {at}, {weight}")
            low, high = (at, below) if negative else (below, at)
            lows.append(self._chosen("ogt", low, state[vector]))
            highs.append(self._chosen("olt", high, state[VECTORS + vector]))
        return lows + highs

    def _ceil(self, value: str, magic: str, one: str) -> str:
        """For values below 2**51; other ones become some integer near them."""
        w, kind = self.w, self.kind
        nearest = w.let(f"fsub {kind} {w.let(f'fadd {kind} {value}, {magic}')}, {magic}")
        more = w.let(f"fcmp olt {kind} {nearest}, {value}")
        step = w.let(f"select <{self.lanes} x i1> {more}, {kind} {one}, {kind} zeroinitializer")
        return w.let(f"fadd {kind} {nearest}, {step}")

    def _chosen(self, compare: str, a: str, b: str) -> str:
        condition = self.w.let(f"fcmp {compare} {self.kind} {a}, {b}")
        return self.w.let(f"select <{self.lanes} x i1> {condition}, {self.kind} {a}, {self.kind} {b}")
