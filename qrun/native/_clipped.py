"""The generated int8 matrix product for CPUs whose only product of bytes saturates: exact, for mostly small activations.

Four products are added in 16 bits, where they cannot overflow: see _clipping.py. What that leaves out of a block is
added apart; blocks with too much of it are computed in 32 bits.
"""

from __future__ import annotations

from qrun.native import _copied
from qrun.native._clipping import BLOCK, BYTES, ENTRY, LOW, VECTOR, WORDS, Clipping, multiplied
from qrun.native._dot import activations, dot, weights
from qrun.native._ir import constants
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

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa, ARGUMENTS)
        self.clipping = Clipping(self.w, spec, isa, self.a, self.width, self.source)
        self.row = self.clipping.row

    def copies(self) -> list[tuple[str, str]]:
        return [(self.clipping.copy, self.clipping.block), (self.clipping.table, str(BLOCK))]

    def panel_weights(self) -> str:
        return self.w.mul(self.row, self.width // 4)

    def copy_blocks(self, x: str, first: str, end: str) -> None:
        self.clipping.copy_blocks(x, first, end)

    def sums(self, copies: list[str], bias: str, matrix: str) -> list[str]:
        w, (copy, table) = self.w, copies
        count = w.load("i64", w.at(table, 8), 8)
        listed = w.let(f"icmp ne i64 {count}, 0")
        with w.when(listed):
            self._apart(count, w.load("ptr", table, 8), bias, matrix, copy)
        start = w.let(f"select i1 {listed}, ptr %scratch, ptr {bias}")
        step = w.let(f"select i1 {listed}, i64 {self.width}, i64 0")
        done = w.let(f"icmp slt i64 {count}, 0")
        rest = w.let(f"select i1 {done}, i64 0, i64 {self.row}")
        return self._products(start, step, rest, copy, matrix, exact=False)

    def _apart(self, count: str, entry: str, bias: str, matrix: str, copy: str) -> None:
        """What a block's sums start from: the bias and what is listed, or all of the products."""
        w, spec = self.w, self.spec
        for j in range(spec.vectors):
            start = w.load(self.kind, w.at(bias, VECTOR * j), 32)
            for i in range(spec.rows):
                w.store(self.kind, start, w.at("%scratch", i * self.width + VECTOR * j), 32)
        with w.loop("0", count, 1, [("ptr", entry)]) as turn:
            here = turn.carried[0]
            target, place = (
                w.at(base, w.let(f"zext i32 {w.load('i32', w.at(here, 4 * field), 4)} to i64"))
                for field, base in enumerate(("%scratch", matrix))
            )
            pair = [self._four(w.at(here, 8 + 4 * u)) for u in range(2)]
            for j in range(spec.vectors):
                total, one = self._eight(pair, self._pair_of_weights(place, j), 1 << LOW), w.at(target, VECTOR * j)
                w.store(self.kind, w.let(f"add {self.kind} {w.load(self.kind, one, 32)}, {total}"), one, 32)
            turn.next([w.at(here, ENTRY)])
        rest = w.let(f"select i1 {w.let(f'icmp slt i64 {count}, 0')}, i64 {self.row}, i64 0")
        sums = self._products("%scratch", str(self.width), rest, copy, matrix, exact=True)
        for number, total in enumerate(sums):
            w.store(self.kind, total, w.at("%scratch", VECTOR * number), 32)

    def _products(self, start: str, step: str, size: str, copy: str, matrix: str, exact: bool) -> list[str]:
        """The block's sums: those at `start`, rows `step` bytes apart, and the products of `size` bytes of each row."""
        w, spec = self.w, self.spec
        sums = []
        for i in range(spec.rows):
            line = w.at(start, w.mul(step, i)) if i else start
            sums += [(self.kind, w.load(self.kind, w.at(line, VECTOR * j), 32)) for j in range(spec.vectors)]
        rows = [w.at(copy, w.mul(self.row, i)) if i else copy for i in range(spec.rows)]
        with w.loop("0", size, 4 * spec.unroll, [("ptr", matrix), *sums]) as turn:
            place, *acc = turn.carried
            for u in range(0, spec.unroll, 2):
                here = w.at(place, u * self.width)
                add = self._exact if exact else self._fast
                acc = add(acc, [w.at(w.at(row, turn.index), 4 * u) for row in rows], here)
            turn.next([w.at(place, spec.unroll * self.width), *acc])
        return turn.carried[1:]

    def _fast(self, acc: list[str], rows: list[str], place: str) -> list[str]:
        w, made = self.w, []
        panel = [self._pair_of_weights(place, j) for j in range(self.spec.vectors)]
        for i, row in enumerate(rows):
            pair = [self._four(w.at(row, 4 * u)) for u in range(2)]
            for j, matrix in enumerate(panel):
                total = self._eight(pair, matrix, 1)
                made.append(w.let(f"add {self.kind} {acc[i * self.spec.vectors + j]}, {total}"))
        return made

    def _exact(self, acc: list[str], rows: list[str], place: str) -> list[str]:
        w, isa, vectors = self.w, self.isa, self.spec.vectors
        acc = list(acc)
        for u in range(2):
            panel = [
                weights(w, isa, w.load(self.kind, w.at(place, u * self.width + VECTOR * j), 32)) for j in range(vectors)
            ]
            for i, row in enumerate(rows):
                x = activations(w, isa, self._four(w.at(row, 4 * u)))
                for j in range(vectors):
                    acc[i * vectors + j] = dot(w, isa, acc[i * vectors + j], x, panel[j])
        return acc

    def _four(self, pointer: str) -> str:
        """Four activations in every lane."""
        return self.w.splat(self.isa.lanes, "i32", self.w.load("i32", pointer))

    def _pair_of_weights(self, place: str, j: int) -> list[str]:
        """Vector j of two quads' weights."""
        w = self.w
        return [w.load(BYTES, w.at(place, u * self.width + VECTOR * j), 32) for u in range(2)]

    def _eight(self, pair: list[str], matrix: list[str], scale: int) -> str:
        """`scale` times the products of two quads."""
        w = self.w
        words = [
            multiplied(w, w.let(f"bitcast {self.kind} {x} to {BYTES}"), weight)
            for x, weight in zip(pair, matrix, strict=True)
        ]
        both = w.let(f"add {WORDS} {words[0]}, {words[1]}")
        return w.call(self.kind, "llvm.x86.avx2.pmadd.wd", (WORDS, both), (WORDS, constants("i16", [scale] * 16)))
