"""Generated start values of sums, for a zero point of the activations that is known at run time."""

from __future__ import annotations

from qrun.native._flow import Kernel
from qrun.native._values import Value

STARTS = ("zero*", "y*", "first*", "sums*", "count", "tiles")
"""One 8-byte word each.

zero    the zero point, 8-bit
first   int32 [count], what to start from for a zero point of 0; count is a multiple of a vector's lanes
sums    int32 [count]: of the weights
"""


class Starts(Kernel):
    """y = first - zero * sums, modulo 2**32."""

    names = STARTS

    def tile(self, tile: Value) -> None:
        w, a, lanes = self.w, self.a, self.isa.lanes
        zero = a.zero.load("i8").extended("i32", self.spec.signed).splat(lanes)
        with w.loop(0, a.count, lanes) as turn:
            place = turn.index * 4
            first, sums = ((start + place).load(zero.kind, 4) for start in (a.first, a.sums))
            made = first - zero * sums
            (a.y + place).store(made, 4)
