"""The generated int8 matrix product for CPUs whose exact products are those of 16 bits: activations are copied as int16.

Weights are stored as int16: what is left per product is a multiplication and an addition. A lane takes two k of its
channel; for channels a, b, ... of a vector and one row's activations x, all int16:

    weights       a0 a1 | b0 b1 | ...
    activations   x0 x1 | x0 x1 | ...
"""

from __future__ import annotations

from qrun.native._copied import Copied
from qrun.native._dot import int16s, pairs
from qrun.native._flow import row_at
from qrun.native._values import Operand, Value
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
        self.row = self.a.taps * self.a.depth * 2
        self.block = self.row * spec.rows
        self.last = (self.a.depth + -PIECE).intrinsic("smax", 0)

    def copies(self) -> list[tuple[Value, Operand]]:
        return [(self.scratch, self.block)]

    def panel_weights(self) -> Value:
        return self.row * (self.width // 4)

    def copy_blocks(self, x: Value, first: Value, end: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        each = a.taps * (4 * rows)
        with w.loop(first, end, 1, [self.scratch]) as block:
            offsets = a.offsets + block.index * each
            with w.loop(0, 4 * rows, 4, block.carried) as row:
                with w.loop(row.index, each, 4 * rows, row.carried) as tap:
                    to = tap.carried[0]
                    self._copy(row_at(x, offsets + tap.index, a.padding), to)
                    tap.next(to + a.depth * 2)
                row.next(*tap.carried)
            block.next(*row.carried)

    def _copy(self, source: Value, to: Value) -> None:
        """The activations of a tap."""
        with self.w.loop(0, self.a.depth, PIECE) as k:
            place = k.index.least(self.last)
            wide = (source + place).load(f"<{PIECE} x i8>").extended("i16", self.spec.signed)
            (to + place * 2).store(wide, 4)

    def sums(self, copies: list[Value], bias: Value, matrix: Value) -> list[Value]:
        spec, half = self.spec, int16s(self.isa)
        rows = [copies[0] + self.row * i if i else copies[0] for i in range(spec.rows)]
        start = [(bias + self.vector * j).load(self.kind, 16) for j in range(spec.vectors)]
        with self.w.loop(0, self.row, 4, [matrix, *start * spec.rows]) as turn:
            place, *acc = turn.carried
            panel = [(place + self.vector * j).load(half, 16) for j in range(spec.vectors)]
            made = []
            for i, row in enumerate(rows):
                x = (row + turn.index).load("i32", 4).splat(self.isa.lanes).bitcast(half)
                products = [pairs(self.isa, x, weights) for weights in panel]
                made += [acc[i * spec.vectors + j] + product for j, product in enumerate(products)]
            turn.next(place + self.width, *made)
        return turn.carried[1:]
