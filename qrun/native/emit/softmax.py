"""Generated softmax of rows of 8-bit codes, in float64 wherever that decides the rounding.

each   an element's own quotient
table  the quotients of all 256 distances from a row's greatest code first; rows in doubt go the way of ``each``
"""

from __future__ import annotations

from functools import reduce
from operator import add

from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import KernelEmitter, emitter
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import MAGIC64, Operand, Value

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
_MOST = 1024.0
"""Quotients are cut to this: it is more than any result, and little enough to be rounded by MAGIC64."""
_PARTS = 4
"""Partial sums of a row."""


@emitter("softmax")
class SoftmaxEmitter(KernelEmitter):
    """rows: bytes in which the greatest and the least code are sought, 0 for one at a time."""

    names = NAMES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.certain = self.a.certain.load("double", 8)
        self.table = self.w.let("ptr", "alloca [256 x i8], align 64") if spec.form == "table" else None

    def tile(self, tile: Value) -> None:
        a = self.a
        with self.w.part(tile, a.chunk, a.rows) as row:
            start = row * a.length
            self._row(a.x + start, a.y + start)

    def _row(self, x: Value, y: Value) -> None:
        w, a = self.w, self.a
        most, least = self._ends(x)
        same = most.test("eq", least)
        with w.when(same), w.loop(0, a.length, 1) as at:
            equal = a.equal.trunc("i8")
            (y + at.index).store(equal)
        with w.when(~same):
            shift = 255 - most
            inverse = "1.0" / self._total(x, shift)
            if self.table is None:
                self._each(x, y, shift, inverse)
                return
            doubtful = self._fill(self.table, inverse)
            with w.when(doubtful):
                self._each(x, y, shift, inverse)
            with w.when(~doubtful):
                self._look_up(x, y, self.table + shift)

    def _code(self, pointer: Value, index: Operand) -> Value:
        return (pointer + index).load("i8").extended("i64", self.spec.signed)

    def _ends(self, x: Value) -> tuple[Value, Value]:
        """The greatest and the least code of a row, i64."""
        w, a, n = self.w, self.a, self.spec.rows
        names = [f"{'s' if self.spec.signed else 'u'}{which}" for which in ("max", "min")]
        if n:
            first = x.load(f"<{n} x i8>")
            with w.loop(0, a.length, n, [first, first]) as turn:
                block = (x + turn.index.least(a.last)).load(first.kind)
                turn.next(*(so_far.intrinsic(name, block) for name, so_far in zip(names, turn.carried, strict=True)))
            ends = [value.reduced(name) for name, value in zip(names, turn.carried, strict=True)]
            most, least = (end.extended("i64", self.spec.signed) for end in ends)
            return most, least
        code = self._code(x, "0")
        with w.loop(1, a.length, 1, [code, code]) as turn:
            code = self._code(x, turn.index)
            turn.next(*(so_far.intrinsic(name, code) for name, so_far in zip(names, turn.carried, strict=True)))
        return turn.carried[0], turn.carried[1]

    def _total(self, x: Value, shift: Value) -> Value:
        """The sum of a row's weights: four partial sums, which do not wait for each other, then what is left."""
        w, a = self.w, self.a
        weights = a.weights + shift * 8

        def plus(total: Value, index: Value) -> Value:
            weight = (weights + self._code(x, index) * 8).load("double", 8)
            return total + weight

        whole = a.length & -_PARTS
        with w.loop(0, whole, _PARTS, [w.value("double", "0.0")] * _PARTS) as turn:
            turn.next(*(plus(total, turn.index + part) for part, total in enumerate(turn.carried)))
        with w.loop(whole, a.length, 1, [reduce(add, turn.carried)]) as rest:
            rest.next(plus(rest.carried[0], rest.index))
        return rest.carried[0]

    def _rounded(self, levels: Value, inverse: Value) -> tuple[Value, Value]:
        """The codes of quotients, i8, and how far each quotient is from an integer."""
        quotient = (levels * inverse).where("olt", _MOST)
        raised = quotient + MAGIC64
        error = abs(quotient - (raised - MAGIC64))
        bits = raised.bitcast("i64").trunc("i32")
        high, zero = (number.trunc("i32").splat(levels.lanes) for number in (self.a.high, self.a.zero))
        return (bits.where("slt", high) + zero).trunc("i8"), error

    def _fill(self, table: Value, inverse: Value) -> Value:
        """Put the codes of all 256 distances into the table. Returns an i1: whether one of them may be wrong."""
        w, n = self.w, max(self.isa.lanes // 2, 2)
        factor = inverse.splat(n)
        with w.loop(0, 256, n, [w.zero(factor.kind)]) as turn:
            levels = (self.a.levels + turn.index * 8).load(factor.kind, 8)
            codes, error = self._rounded(levels, factor)
            (table + turn.index).store(codes)
            turn.next(error.where("ogt", turn.carried[0]))
        return turn.carried[0].reduced("fmax").test("oge", self.certain)

    def _look_up(self, x: Value, y: Value, table: Value) -> None:
        w, a = self.w, self.a

        def copy(index: Value) -> None:
            code = (table + self._code(x, index)).load("i8")
            (y + index).store(code)

        whole = a.length & -_PARTS
        with w.loop(0, whole, _PARTS) as turn:
            for part in range(_PARTS):
                copy(turn.index + part)
        with w.loop(whole, a.length, 1) as rest:
            copy(rest.index)

    def _each(self, x: Value, y: Value, shift: Value, inverse: Value) -> None:
        """Results one by one, each from its own quotient."""
        w = self.w
        levels = self.a.levels + shift * 8
        factor = inverse.splat(1)
        with w.loop(0, self.a.length, 1) as turn:
            level = (levels + self._code(x, turn.index) * 8).load(factor.kind, 8)
            code, error = self._rounded(level, factor)
            (y + turn.index).store(code)
            with w.when(error.extract(0).test("oge", self.certain)):
                w.undecided()
