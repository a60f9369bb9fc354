"""Generated start values of sums, for a zero point of the activations that is known at run time."""

from __future__ import annotations

from qrun.native._dot import int32s
from qrun.native._flow import Flow
from qrun.native._ir import argument_loader
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

STARTS = ("zero*", "y*", "first*", "sums*", "count", "tiles")
"""One 8-byte word each.

zero    the zero point, 8-bit
first   int32 [count], what to start from for a zero point of 0; count is a multiple of a vector's lanes
sums    int32 [count]: of the weights
"""


class Starts:
    """y = first - zero * sums, modulo 2**32."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow()
        self.w.label("entry")
        self.a = argument_loader(self.w, STARTS)

    def text(self) -> str:
        w, a, kind, lanes = self.w, self.a, int32s(self.isa), self.isa.lanes
        with w.tiles(a["tiles"]):
            extend = "sext" if self.spec.signed else "zext"
            zero = w.splat(lanes, "i32", w.let(f"{extend} i8 {w.load('i8', a['zero'])} to i32"))
            with w.loop("0", a["count"], lanes) as turn:
                place = w.mul(turn.index, 4)
                first, sums = (w.load(kind, w.at(a[name], place), 4) for name in ("first", "sums"))
                product = w.let(f"mul {kind} {zero}, {sums}")
                w.store(kind, w.let(f"sub {kind} {first}, {product}"), w.at(a["y"], place), 4)
        return w.kernel()
