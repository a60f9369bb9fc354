"""Generated softmax of rows of 8-bit codes, in float64 wherever that decides the rounding.

each   an element's own quotient
table  the quotients of all 256 distances from a row's greatest code first; rows in doubt go the way of ``each``
"""

from __future__ import annotations

from qrun.native._flow import Flow
from qrun.native._ir import Typed, argument_loader, every
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

NAMES = (
    "x*", "y*", "rows", "chunk", "length", "last", "tiles", "weights*", "levels*", "certain*", "equal", "high", "zero",
)  # fmt: skip
"""One 8-byte word each.

chunk             rows of a tile
length, last      codes of a row, and where its last block starts: it overlaps
weights, levels   float64 [256]: by 255 - distance, the exponential, and that over the result's scale
certain           float64: quotients nearer to an integer than this are rounded right
equal             the result where all codes of a row are equal
high, zero        the greatest result before the zero point is added, and the zero point
"""
_MOST = "0x4090000000000000"
_MAGIC = "0x4338000000000000"
_PARTS = 4
"""Partial sums of a row."""


class Softmax:
    """rows: bytes in which the greatest and the least code are sought, 0 for one at a time."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow()
        self.w.label("entry")
        self.a = argument_loader(self.w, NAMES)
        self.certain = self.w.load("double", self.a["certain"], 8)
        self.table = self.w.let("alloca [256 x i8], align 64") if spec.form == "table" else ""

    def text(self) -> str:
        w, a = self.w, self.a
        with w.tiles(a["tiles"]) as tile:
            first = w.mul(tile, a["chunk"])
            with w.loop(first, w.least(w.add(first, a["chunk"]), a["rows"]), 1) as row:
                start = w.mul(row.index, a["length"])
                self._row(w.at(a["x"], start), w.at(a["y"], start))
        return w.kernel()

    def _row(self, x: str, y: str) -> None:
        w, a = self.w, self.a
        most, least = self._ends(x)
        same = w.let(f"icmp eq i64 {most}, {least}")
        with w.when(same), w.loop("0", a["length"], 1) as at:
            w.store("i8", w.let(f"trunc i64 {a['equal']} to i8"), w.at(y, at.index))
        with w.when(w.let(f"xor i1 {same}, true")):
            shift = w.let(f"sub i64 255, {most}")
            inverse = w.let(f"fdiv double 1.0, {self._total(x, shift)}")
            if self.table:
                doubtful = self._fill(inverse)
                with w.when(doubtful):
                    self._each(x, y, shift, inverse)
                with w.when(w.let(f"xor i1 {doubtful}, true")):
                    self._look_up(x, y, w.at(self.table, shift))
            else:
                self._each(x, y, shift, inverse)

    def _code(self, pointer: str, index: str) -> str:
        extend = "sext" if self.spec.signed else "zext"
        return self.w.let(f"{extend} i8 {self.w.load('i8', self.w.at(pointer, index))} to i64")

    def _ends(self, x: str) -> tuple[str, str]:
        """The greatest and the least code of a row, i64."""
        w, a, n = self.w, self.a, self.spec.rows
        sign, extend = ("s", "sext") if self.spec.signed else ("u", "zext")
        if not n:
            code = self._code(x, "0")
            with w.loop("1", a["length"], 1, [("i64", code), ("i64", code)]) as turn:
                code = self._code(x, turn.index)
                turn.next([
                    w.call("i64", f"llvm.{sign}{which}.i64", ("i64", so_far), ("i64", code))
                    for which, so_far in zip(("max", "min"), turn.carried, strict=True)
                ])  # fmt: skip
            return turn.carried[0], turn.carried[1]
        kind = f"<{n} x i8>"
        block = w.load(kind, x)
        with w.loop("0", a["length"], n, [(kind, block), (kind, block)]) as turn:
            block = w.load(kind, w.at(x, w.least(turn.index, a["last"])))
            turn.next([
                w.call(kind, f"llvm.{sign}{which}.v{n}i8", (kind, so_far), (kind, block))
                for which, so_far in zip(("max", "min"), turn.carried, strict=True)
            ])  # fmt: skip
        ends = [
            w.call("i8", f"llvm.vector.reduce.{sign}{which}.v{n}i8", (kind, value))
            for which, value in zip(("max", "min"), turn.carried, strict=True)
        ]
        return w.let(f"{extend} i8 {ends[0]} to i64"), w.let(f"{extend} i8 {ends[1]} to i64")

    def _total(self, x: str, shift: str) -> str:
        """The sum of a row's weights, in four parts and what is left."""
        w, a = self.w, self.a
        weights = w.at(a["weights"], w.mul(shift, 8))

        def plus(total: str, index: str) -> str:
            weight = w.load("double", w.at(weights, w.mul(self._code(x, index), 8)), 8)
            return w.let(f"fadd double {total}, {weight}")

        whole = w.let(f"and i64 {a['length']}, {-_PARTS}")
        zeros: list[Typed] = [("double", "0.0")] * _PARTS
        with w.loop("0", whole, _PARTS, zeros) as turn:
            turn.next([plus(total, w.add(turn.index, part)) for part, total in enumerate(turn.carried)])
        first, *others = turn.carried
        for other in others:
            first = w.let(f"fadd double {first}, {other}")
        with w.loop(whole, a["length"], 1, [("double", first)]) as rest:
            rest.next([plus(rest.carried[0], rest.index)])
        return rest.carried[0]

    def _rounded(self, levels: str, inverse: str, count: int) -> tuple[str, str]:
        """The codes of `count` quotients, i8, and how far each quotient is from an integer."""
        w = self.w
        floats, wide, narrow = (f"<{count} x {element}>" for element in ("double", "i64", "i8"))
        most, magic = (every("double", number, count) for number in (_MOST, _MAGIC))
        quotient = w.let(f"fmul {floats} {levels}, {inverse}")
        below = w.let(f"fcmp olt {floats} {quotient}, {most}")
        quotient = w.let(f"select <{count} x i1> {below}, {floats} {quotient}, {floats} {most}")
        raised = w.let(f"fadd {floats} {quotient}, {magic}")
        error = w.let(f"fsub {floats} {quotient}, {w.let(f'fsub {floats} {raised}, {magic}')}")
        error = w.call(floats, f"llvm.fabs.v{count}f64", (floats, error))
        bits = w.let(f"trunc {wide} {w.let(f'bitcast {floats} {raised} to {wide}')} to <{count} x i32>")
        ints = f"<{count} x i32>"
        high, zero = (w.splat(count, "i32", w.let(f"trunc i64 {self.a[n]} to i32")) for n in ("high", "zero"))
        lower = w.let(f"icmp slt {ints} {bits}, {high}")
        bits = w.let(f"select <{count} x i1> {lower}, {ints} {bits}, {ints} {high}")
        return w.let(f"trunc {ints} {w.let(f'add {ints} {bits}, {zero}')} to {narrow}"), error

    def _fill(self, inverse: str) -> str:
        """Put the codes of all distances into the table; whether one of them may be wrong."""
        w, n = self.w, max(self.isa.lanes // 2, 2)
        floats = f"<{n} x double>"
        factor = w.splat(n, "double", inverse)
        with w.loop("0", "256", n, [(floats, "zeroinitializer")]) as turn:
            levels = w.load(floats, w.at(self.a["levels"], w.mul(turn.index, 8)), 8)
            codes, error = self._rounded(levels, factor, n)
            w.store(f"<{n} x i8>", codes, w.at(self.table, turn.index))
            more = w.let(f"fcmp ogt {floats} {error}, {turn.carried[0]}")
            turn.next([w.let(f"select <{n} x i1> {more}, {floats} {error}, {floats} {turn.carried[0]}")])
        worst = w.call("double", f"llvm.vector.reduce.fmax.v{n}f64", (floats, turn.carried[0]))
        return w.let(f"fcmp oge double {worst}, {self.certain}")

    def _look_up(self, x: str, y: str, table: str) -> None:
        w, a = self.w, self.a
        whole = w.let(f"and i64 {a['length']}, {-_PARTS}")
        with w.loop("0", whole, _PARTS) as turn:
            for part in range(_PARTS):
                index = w.add(turn.index, part)
                w.store("i8", w.load("i8", w.at(table, self._code(x, index))), w.at(y, index))
        with w.loop(whole, a["length"], 1) as rest:
            w.store("i8", w.load("i8", w.at(table, self._code(x, rest.index))), w.at(y, rest.index))

    def _each(self, x: str, y: str, shift: str, inverse: str) -> None:
        w = self.w
        levels = w.at(self.a["levels"], w.mul(shift, 8))
        factor = w.splat(1, "double", inverse)
        with w.loop("0", self.a["length"], 1) as turn:
            level = w.load("<1 x double>", w.at(levels, w.mul(self._code(x, turn.index), 8)), 8)
            code, error = self._rounded(level, factor, 1)
            w.store("<1 x i8>", code, w.at(y, turn.index))
            error = w.let(f"extractelement <1 x double> {error}, i32 0")
            with w.when(w.let(f"fcmp oge double {error}, {self.certain}")):
                w.undecided()
