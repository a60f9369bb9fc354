"""Generated packing of weights that are known at run time: [K, N] to what the product kernels read, and column sums."""

from __future__ import annotations

from qrun.native._dot import activations, dot, int32s, weights
from qrun.native._flow import Flow
from qrun.native._ir import argument_loader, indices
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

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


class _Pack:
    names: tuple[str, ...]

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w, self.kind = spec, isa, Flow(), int32s(isa)
        self.w.label("entry")
        self.a = argument_loader(self.w, self.names)
        self.flip = self.w.splat(isa.lanes, "i32", self.a["flip"])
        self.ones = activations(self.w, isa, self.w.splat(isa.lanes, "i32", str(_ONES)))
        self.width = spec.vectors * isa.lanes

    def text(self) -> str:
        w, a = self.w, self.a
        with w.tiles(a["panels"]) as panel:
            to = w.at(a["weights"], w.mul(w.mul(panel, a["quads"]), 4 * self.width))
            self._panel(w.mul(panel, self.width), to, w.at(a["sums"], w.mul(panel, 4 * self.width)))
        return w.kernel()

    def _panel(self, column: str, to: str, sums: str) -> None:
        """Pack the panel that starts at this column."""
        raise NotImplementedError

    def _source(self, quad: str, step: str, tail_step: str) -> tuple[str, str]:
        """Where the quad is read, `step` bytes per quad in b; and an i1: whether that is in b."""
        w, a = self.w, self.a
        inside = w.let(f"icmp slt i64 {quad}, {a['main']}")
        further = w.let(f"sub i64 {quad}, {a['main']}")
        near, far = w.at(a["b"], w.mul(quad, step)), w.at(a["tail"], w.mul(further, tail_step))
        return w.let(f"select i1 {inside}, ptr {near}, ptr {far}"), inside

    def _put(self, packed: str, to: str, total: str) -> str:
        """Store a vector of quads; the sums with it."""
        w = self.w
        packed = w.let(f"xor {self.kind} {packed}, {self.flip}")
        w.store(self.kind, packed, to, 16)
        return dot(w, self.isa, total, self.ones, weights(w, self.isa, packed))


class PackRows(_Pack):
    """Rows of contiguous columns: four rows at a time are interleaved."""

    names = ROWS

    def _panel(self, column: str, to: str, sums: str) -> None:
        w, a, spec, n = self.w, self.a, self.spec, self.isa.lanes
        four, tail_four = w.mul(a["line"], 4), w.mul(a["tail_line"], 4)
        zeros = [(self.kind, "zeroinitializer")] * spec.vectors
        with w.loop("0", a["quads"], 1, [("ptr", to), *zeros]) as quad:
            here, *totals = quad.carried
            base, inside = self._source(quad.index, four, tail_four)
            line = w.let(f"select i1 {inside}, i64 {a['line']}, i64 {a['tail_line']}")
            rows = [w.at(base, column)]
            for _ in range(3):
                rows.append(w.at(rows[-1], line))
            for place in range(spec.vectors):
                parts = []
                for number, row in enumerate(rows):
                    codes = w.load(f"<{n} x i8>", w.at(row, place * n))
                    part = w.let(f"zext <{n} x i8> {codes} to {self.kind}")
                    shift = indices([8 * number] * n)
                    parts.append(w.let(f"shl {self.kind} {part}, {shift}") if number else part)
                low, high = (w.let(f"or {self.kind} {x}, {y}") for x, y in (parts[:2], parts[2:]))
                packed = w.let(f"or {self.kind} {low}, {high}")
                totals[place] = self._put(packed, w.at(here, 4 * place * n), totals[place])
            quad.next([w.at(here, 4 * self.width), *totals])
        for place, total in enumerate(quad.carried[1:]):
            w.store(self.kind, total, w.at(sums, 4 * place * n), 16)


class PackColumns(_Pack):
    """Columns of contiguous rows: `unroll` quads of each (1 or 4) at a time are transposed."""

    names = COLUMNS

    def _panel(self, column: str, to: str, sums: str) -> None:
        w, a, spec, n = self.w, self.a, self.spec, self.isa.lanes
        with w.loop("0", str(self.width), n) as vector:
            first = w.mul(w.add(column, vector.index), 8)
            here = w.at(to, w.mul(vector.index, 4))
            start = [("ptr", here), (self.kind, "zeroinitializer")]
            with w.loop("0", a["quads"], spec.unroll, start) as quad:
                target, total = quad.carried
                base, inside = self._source(quad.index, "4", "4")
                lines = w.let(f"select i1 {inside}, ptr {a['lines']}, ptr {a['tail_lines']}")
                lines = w.at(lines, first)
                rows = [w.at(base, w.load("i64", w.at(lines, 8 * lane), 8)) for lane in range(n)]
                for packed in self._transposed(rows):
                    total = self._put(packed, target, total)
                    target = w.at(target, 4 * self.width)
                quad.next([target, total])
            w.store(self.kind, quad.carried[1], w.at(sums, w.mul(vector.index, 4)), 16)

    def _transposed(self, rows: list[str]) -> list[str]:
        """`unroll` vectors with one quad of every row."""
        w = self.w
        if self.spec.unroll == 1:
            vector = "poison"
            for lane, row in enumerate(rows):
                vector = w.let(f"insertelement {self.kind} {vector}, i32 {w.load('i32', row)}, i32 {lane}")
            return [vector]
        loaded = [w.load("<4 x i32>", row) for row in rows]
        a, b, c, d = (self._joined(loaded[i::4]) for i in range(4))
        ab, cd = (self._blocks(a, b), self._blocks(c, d))
        return [self._blocks(ab[i], cd[i], 2)[half] for i in (0, 1) for half in (0, 1)]

    def _joined(self, parts: list[str]) -> str:
        w, size = self.w, 4
        while len(parts) > 1:
            kind, both = f"<{size} x i32>", indices(range(2 * size))
            parts = [
                w.let(f"shufflevector {kind} {x}, {kind} {y}, <{2 * size} x i32> {both}")
                for x, y in zip(parts[::2], parts[1::2], strict=True)
            ]
            size *= 2
        return parts[0]

    def _blocks(self, a: str, b: str, run: int = 1) -> list[str]:
        """In each block of four lanes, runs of `run` elements of a and b by turns: from the lower, then the upper half."""
        n = self.isa.lanes
        made = []
        for half in (0, 2):
            order = []
            for block in range(0, n, 4):
                lanes = range(block + half, block + half + 2)
                pairs = [lanes] if run == 2 else [[lane] for lane in lanes]
                order += [lane + source for part in pairs for source in (0, n) for lane in part]
            made.append(self.w.let(f"shufflevector {self.kind} {a}, {self.kind} {b}, {self.kind} {indices(order)}"))
        return made
