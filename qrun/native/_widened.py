"""The generated int8 matrix product for CPUs whose exact products are those of 16 bits: activations are copied as int16.

Weights are stored as int16: what is left per product is a multiplication and an addition.
"""

from __future__ import annotations

from qrun.native._copied import Copied
from qrun.native._dot import int16s, pairs
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

STEP = 2
"""Activations of a tap are a multiple of this."""
PIECE = 16
"""Activations that are copied together, the last ones of a tap again. Of shorter taps, what is too much is written over."""


class Widened(Copied):
    """Writes one kernel: a pair of k per turn of the inner loop; `depth` is a multiple of STEP.

    More per turn would be added in another order by LLVM, which takes more registers than there are.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.row = self.w.mul(self.w.mul(self.a["taps"], self.a["depth"]), 2)
        self.block = self.w.mul(self.row, spec.rows)
        rest = self.w.add(self.a["depth"], -PIECE)
        self.last = self.w.call("i64", "llvm.smax.i64", ("i64", rest), ("i64", "0"))

    def copies(self) -> list[tuple[str, str]]:
        return [("%scratch", self.block)]

    def panel_weights(self) -> str:
        return self.w.mul(self.row, self.width // 4)

    def copy_blocks(self, x: str, first: str, end: str) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        each = w.mul(a["taps"], 4 * rows)
        with w.loop(first, end, 1, [("ptr", "%scratch")]) as block:
            offsets = w.at(a["offsets"], w.mul(block.index, each))
            with w.loop("0", str(4 * rows), 4, [("ptr", block.carried[0])]) as row:
                with w.loop(row.index, each, 4 * rows, [("ptr", row.carried[0])]) as tap:
                    to = tap.carried[0]
                    self._copy(self.source(x, w.at(offsets, tap.index)), to)
                    tap.next([w.at(to, w.mul(a["depth"], 2))])
                row.next(tap.carried)
            block.next(row.carried)

    def _copy(self, source: str, to: str) -> None:
        """The activations of a tap."""
        w, extend = self.w, "sext" if self.spec.signed else "zext"
        with w.loop("0", self.a["depth"], PIECE) as k:
            place = w.least(k.index, self.last)
            codes = w.load(f"<{PIECE} x i8>", w.at(source, place))
            wide = w.let(f"{extend} <{PIECE} x i8> {codes} to <{PIECE} x i16>")
            w.store(f"<{PIECE} x i16>", wide, w.at(to, w.mul(place, 2)), 4)

    def sums(self, copies: list[str], bias: str, matrix: str) -> list[str]:
        w, spec, kind, half = self.w, self.spec, self.kind, int16s(self.isa)
        rows = [w.at(copies[0], w.mul(self.row, i)) if i else copies[0] for i in range(spec.rows)]
        start = [(kind, w.load(kind, w.at(bias, self.vector * j), 16)) for j in range(spec.vectors)]
        with w.loop("0", self.row, 4, [("ptr", matrix), *start * spec.rows]) as turn:
            place, *acc = turn.carried
            panel = [w.load(half, w.at(place, self.vector * j), 16) for j in range(spec.vectors)]
            made = []
            for i, row in enumerate(rows):
                two = w.splat(self.isa.lanes, "i32", w.load("i32", w.at(row, turn.index), 4))
                x = w.let(f"bitcast {kind} {two} to {half}")
                products = [pairs(w, self.isa, x, weights) for weights in panel]
                made += [
                    w.let(f"add {kind} {acc[i * spec.vectors + j]}, {product}") for j, product in enumerate(products)
                ]
            turn.next([w.at(place, self.width), *made])
        return turn.carried[1:]
