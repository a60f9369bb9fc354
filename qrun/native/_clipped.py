"""The generated int8 matrix product for CPUs whose only product of bytes saturates: exact, for mostly small activations.

Four products are added in 16 bits, where they cannot overflow: see _clipping.py. What that leaves out of a block is
added apart; blocks with too much of it are computed in 32 bits.

A turn takes two quads of k. For channel a and one row's activations x, a lane of 32 bits does

    quad 0   x0 a0 + x1 a1 | x2 a2 + x3 a3    16 bits each, by vpmaddubsw
    quad 1   x4 a4 + x5 a5 | x6 a6 + x7 a7    the same
    both     the sums of the two, in 16 bits: what must not overflow
    product  lower plus upper half, in 32 bits, by vpmaddwd with 1 in each, or with what the upper bits stand for
"""

from __future__ import annotations

from qrun.native import _copied
from qrun.native._clipping import BLOCK, BYTES, ENTRY, LOW, VECTOR, Clipping, multiplied
from qrun.native._dot import activations, dot, weights
from qrun.native._values import Operand, Value
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ARGUMENTS = (*_copied.ARGUMENTS, "each*", "first*", "limit", "stride")
"""Those of _copied.py, where `depth` is a multiple of 8, and

each, first  int8 [rows][taps][depth]: a lane's four activations give at most `each` times their sum, plus `first`
             (0 at odd places) times the largest of them
limit        listed eights of a block, at most
stride       a row's bytes if they fill vectors, else a vector's: the order of the list, so that a sum is rarely added to
             twice in a row
"""


def scratch_bytes(spec: KernelSpec, block: int, chunk: int, limit: int) -> int:
    """Memory that a thread brings: sums of a block, then the copy of a chunk, the table of its blocks, and the list.

    block: bytes of a block's copy. chunk: blocks.
    """
    return spec.rows * spec.vectors * VECTOR + chunk * (block + BLOCK + limit * ENTRY) + 4 * ENTRY


class Clipped(_copied.Copied):
    """Writes one kernel: `unroll` quads per turn, even; vectors have 8 lanes."""

    names = ARGUMENTS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.clipping = Clipping(self.w, spec, isa, self.a, self.width)
        self.row = self.clipping.row

    def copies(self) -> list[tuple[Value, Operand]]:
        return [(self.clipping.copy, self.clipping.block), (self.clipping.table, BLOCK)]

    def panel_weights(self) -> Value:
        return self.row * (self.width // 4)

    def copy_blocks(self, x: Value, first: Value, end: Value) -> None:
        self.clipping.copy_blocks(x, first, end)

    def sums(self, copies: list[Value], bias: Value, matrix: Value) -> list[Value]:
        copy, table = copies
        count = (table + 8).load("i64", 8)
        listed = count.test("ne", 0)
        with self.w.when(listed):
            self._apart(count, table.load("ptr", 8), bias, matrix, copy)
        start = listed.select(self.scratch, bias)
        step = listed.select(self.w.value("i64", self.width), 0)
        rest = count.test("slt", 0).select(0, self.row)
        return self._products(start, step, rest, copy, matrix, exact=False)

    def _apart(self, count: Value, entry: Value, bias: Value, matrix: Value, copy: Value) -> None:
        """What a block's sums start from: the bias and what is listed, or all of the products."""
        w, spec, scratch = self.w, self.spec, self.scratch
        for j in range(spec.vectors):
            start = (bias + VECTOR * j).load(self.kind, 32)
            for i in range(spec.rows):
                (scratch + (i * self.width + VECTOR * j)).store(start, 32)
        with w.loop(0, count, 1, [entry]) as turn:
            here = turn.carried[0]
            target, place = (
                base + (here + 4 * field).load("i32", 4).zext("i64") for field, base in enumerate((scratch, matrix))
            )
            pair = [self._four(here + (8 + 4 * u)) for u in range(2)]
            for j in range(spec.vectors):
                total, one = self._eight(pair, self._pair_of_weights(place, j), 1 << LOW), target + VECTOR * j
                one.store(one.load(self.kind, 32) + total, 32)
            turn.next(here + ENTRY)
        rest = count.test("slt", 0).select(self.row, 0)
        sums = self._products(scratch, w.value("i64", self.width), rest, copy, matrix, exact=True)
        for number, total in enumerate(sums):
            (scratch + VECTOR * number).store(total, 32)

    def _products(self, start: Value, step: Value, size: Value, copy: Value, matrix: Value, exact: bool) -> list[Value]:
        """The block's sums: those at `start`, rows `step` bytes apart, and the products of `size` bytes of each row."""
        spec, sums = self.spec, []
        for i in range(spec.rows):
            line = start + step * i if i else start
            sums += [(line + VECTOR * j).load(self.kind, 32) for j in range(spec.vectors)]
        rows = [copy + self.row * i if i else copy for i in range(spec.rows)]
        with self.w.loop(0, size, 4 * spec.unroll, [matrix, *sums]) as turn:
            place, *acc = turn.carried
            add = self._exact if exact else self._fast
            for u in range(0, spec.unroll, 2):
                here = place + u * self.width
                acc = add(acc, [row + turn.index + 4 * u for row in rows], here)
            turn.next(place + spec.unroll * self.width, *acc)
        return turn.carried[1:]

    def _fast(self, acc: list[Value], rows: list[Value], place: Value) -> list[Value]:
        panel, made = [self._pair_of_weights(place, j) for j in range(self.spec.vectors)], []
        for i, row in enumerate(rows):
            pair = [self._four(row + 4 * u) for u in range(2)]
            for j, matrix in enumerate(panel):
                made.append(acc[i * self.spec.vectors + j] + self._eight(pair, matrix, 1))
        return made

    def _exact(self, acc: list[Value], rows: list[Value], place: Value) -> list[Value]:
        isa, vectors, acc = self.isa, self.spec.vectors, list(acc)
        for u in range(2):
            panel = [weights(isa, (place + (u * self.width + VECTOR * j)).load(self.kind, 32)) for j in range(vectors)]
            for i, row in enumerate(rows):
                x = activations(isa, self._four(row + 4 * u))
                for j in range(vectors):
                    acc[i * vectors + j] = dot(isa, acc[i * vectors + j], x, panel[j])
        return acc

    def _four(self, pointer: Value) -> Value:
        """Four activations in every lane."""
        return pointer.load("i32").splat(self.isa.lanes)

    def _pair_of_weights(self, place: Value, j: int) -> list[Value]:
        """Vector j of two quads' weights."""
        return [(place + (u * self.width + VECTOR * j)).load(BYTES, 32) for u in range(2)]

    def _eight(self, pair: list[Value], matrix: list[Value], scale: int) -> Value:
        """`scale` times the products of two quads."""
        low, high = [multiplied(x.bitcast(BYTES), weight) for x, weight in zip(pair, matrix, strict=True)]
        both = low + high
        return self.w.call(self.kind, "llvm.x86.avx2.pmadd.wd", both, both.like(scale))
