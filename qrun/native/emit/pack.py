"""Generated packing of weights that are known at run time: [K, N] to what the product kernels read, and column sums.

A vector of packed weights holds a quad, four rows, of as many columns as it has lanes. From rows k to k + 3 and columns
a, b, c, ...:

    in b       row k:  ak bk ck ...          packed   ak ak+1 ak+2 ak+3 | bk bk+1 bk+2 bk+3 | ck ...
"""

from __future__ import annotations

from qrun.native.emit.dot import activations, dot, int32s, weights
from qrun.native.emit.flow import unpacking
from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import KernelEmitter, emitter
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import Operand, Value

_COMMON = ("b*", "tail*", "weights*", "sums*", "quads", "main", "panels", "flip!")
ROWS = (*_COMMON, "line", "tail_line")
COLUMNS = (*_COMMON, "lines*", "tail_lines*")
"""One 8-byte word each.

b             [K, N] bytes: rows `line` bytes apart, or columns at the offsets int64 `lines` [N to whole vectors]
tail          the same from row 4 * main on, K padded to 4 * quads with codes that stand for 0: what lies at b's end
weights       [panels][quads][width][4] int8; sums int32 [panels][width], of the int8 weights
flip          xor of four codes that makes them int8
"""
_ONES = 0x01010101


class _Pack(KernelEmitter):
    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.kind = int32s(isa)
        self.flip = self.a.flip.splat(isa.lanes)
        self.ones = activations(isa, self.w.value("i32", _ONES).splat(isa.lanes))
        self.width = spec.vectors * isa.lanes

    def text(self) -> str:
        a = self.a
        with self.w.tiles(a.panels) as panel:
            to = a.weights + panel * a.quads * (4 * self.width)
            self._panel(panel * self.width, to, a.sums + panel * (4 * self.width))
        return self.finished()

    def _panel(self, column: Value, to: Value, sums: Value) -> None:
        """Pack the panel that starts at this column."""
        raise NotImplementedError

    def _source(self, quad: Value, step: Operand, tail_step: Operand) -> tuple[Value, Value]:
        """Where the quad is read, `step` bytes per quad in b; and an i1: whether that is in b."""
        a = self.a
        inside = quad.test("slt", a.main)
        further = quad - a.main
        return inside.select(a.b + quad * step, a.tail + further * tail_step), inside

    def _put(self, packed: Value, to: Value, total: Value) -> Value:
        """Store a vector of quads; the sums with it."""
        packed = packed ^ self.flip
        to.store(packed, 16)
        return dot(self.isa, total, self.ones, weights(self.isa, packed))


@emitter("pack_rows")
class PackRowsEmitter(_Pack):
    """Rows of contiguous columns: four rows at a time are interleaved, each byte shifted to its place in the lane."""

    names = ROWS

    def _panel(self, column: Value, to: Value, sums: Value) -> None:
        w, a, spec, n = self.w, self.a, self.spec, self.isa.lanes
        four, tail_four = a.line * 4, a.tail_line * 4
        with w.loop(0, a.quads, 1, [to, *[w.zero(self.kind)] * spec.vectors]) as quad:
            here, *totals = quad.carried
            base, inside = self._source(quad.index, four, tail_four)
            line = inside.select(a.line, a.tail_line)
            rows = [base + column]
            for _ in range(3):
                rows.append(rows[-1] + line)
            for place in range(spec.vectors):
                parts = []
                for number, row in enumerate(rows):
                    part = (row + place * n).load(f"<{n} x i8>").zext("i32")
                    parts.append(part << 8 * number if number else part)
                low, high = (x | y for x, y in (parts[:2], parts[2:]))
                packed = low | high
                totals[place] = self._put(packed, here + 4 * place * n, totals[place])
            quad.next(here + 4 * self.width, *totals)
        for place, total in enumerate(quad.carried[1:]):
            (sums + 4 * place * n).store(total, 16)


@emitter("pack_columns")
class PackColumnsEmitter(_Pack):
    """Columns of contiguous rows: `unroll` quads of each (1 or 4) at a time are transposed."""

    names = COLUMNS

    def _panel(self, column: Value, to: Value, sums: Value) -> None:
        w, a, spec, n = self.w, self.a, self.spec, self.isa.lanes
        with w.loop(0, self.width, n) as vector:
            first = (column + vector.index) * 8
            here = to + vector.index * 4
            with w.loop(0, a.quads, spec.unroll, [here, w.zero(self.kind)]) as quad:
                target, total = quad.carried
                base, inside = self._source(quad.index, 4, 4)
                lines = inside.select(a.lines, a.tail_lines) + first
                rows = [base + (lines + 8 * lane).load("i64", 8) for lane in range(n)]
                for packed in self._transposed(rows):
                    total = self._put(packed, target, total)
                    target = target + 4 * self.width
                quad.next(target, total)
            (sums + vector.index * 4).store(quad.carried[1], 16)

    def _transposed(self, rows: list[Value]) -> list[Value]:
        """`unroll` vectors with one quad of every row.

        Four quads: a has those of rows 0, 4, 8, ..., one row to a block; b has those of rows 1, 5, 9, ...; c and d the rest.
        Of each block    a0 a1 a2 a3   b0 b1 b2 b3   c0 c1 c2 c3   d0 d1 d2 d3
        by turns         a0 b0 a1 b1   a2 b2 a3 b3   c0 d0 c1 d1   c2 d2 c3 d3
        in twos          a0 b0 c0 d0   a1 b1 c1 d1   a2 b2 c2 d2   a3 b3 c3 d3
        """
        if self.spec.unroll == 1:
            vector = self.w.value(self.kind, "poison")
            for lane, row in enumerate(rows):
                vector = vector.insert(row.load("i32"), lane)
            return [vector]
        loaded = [row.load("<4 x i32>") for row in rows]
        a, b, c, d = (self._joined(loaded[i::4]) for i in range(4))
        ab, cd = (self._blocks(a, b), self._blocks(c, d))
        return [self._blocks(ab[i], cd[i], 2)[half] for i in (0, 1) for half in (0, 1)]

    @staticmethod
    def _joined(parts: list[Value]) -> Value:
        """Vectors one after the other as one."""
        while len(parts) > 1:
            both = range(2 * parts[0].lanes)
            parts = [x.shuffled(both, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    @staticmethod
    def _blocks(a: Value, b: Value, run: int = 1) -> list[Value]:
        """In each block of four lanes, runs of `run` elements of a and b by turns: from the lower, then the upper half."""
        return [a.shuffled(unpacking(a.lanes, 4, half, run), b) for half in (0, 1)]
