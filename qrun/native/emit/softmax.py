"""Generated softmax of rows of 8-bit codes, and of float32. Codes are computed in float64 where the rounding needs it:

each    one quotient per element
table   first the quotients for all 256 distances from a row's greatest code, in float32; in float64 if a result
        is near a tie; rows with a result near one even then are computed as by ``each``
planes  the same, but 64 codes are looked up at once (AVX512-VBMI). A row's sum is a sum of integers: weights are
        multiples of 2**-31, and each of their four bytes is looked up and summed separately
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from qrun.formulas.wide import log
from qrun.native.emit.bytes import byte_sums, look_up_bytes
from qrun.native.emit.functions import share
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.rowwise import PARTS, RowwiseEmitter
from qrun.native.emit.spec import MAGIC_BITS, VBMI
from qrun.native.emit.values import MAGIC32, MAGIC64, ZERO, Operand, constants

NAMES = names("x* y* rows chunk length last tiles weights* levels* certain* equal high zero singles* reach! planes*")
"""The argument words, 8 bytes each.

chunk             rows of a tile
length, last      codes of a row, and where its last block starts: it overlaps
weights, levels   float64 [256], indexed by 255 - distance: the exponential; and the exponential over the result's scale
certain           float64: quotients nearer to an integer than this are rounded correctly
equal             the result where all codes of a row are equal
high, zero        the greatest result before the zero point is added, and the zero point
singles, reach    levels as float32, and the relative error of a quotient in float32 (``table`` and ``planes``)
planes            bytes [4, 256] of the weights as multiples of 2**-31, the lowest byte first
"""
WEIGHT = 2.0**31
_MOST = 1024.0
"""The upper limit of quotients: above any result, and small enough for rounding by MAGIC32 and MAGIC64."""
_PARTS = 4
"""Partial sums of a row."""


@emitter("softmax")
class SoftmaxEmitter(KernelEmitter):
    """rows: bytes that are searched at once for the greatest and the least code; 0: one code at a time."""

    names = NAMES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.certain = self.a.certain.load("double", 8)
        self.planes = spec.form == "planes"
        self.feature = VBMI if self.planes else ""
        self.table = self.w.let("ptr", "alloca [256 x i8], align 64") if spec.form != "each" else None

    def write_tile(self, tile: Value) -> None:
        a = self.a
        with self.w.part(tile, a.chunk, a.rows) as row:
            start = row * a.length
            self._row(a.x + start, a.y + start)

    def _row(self, x: Value, y: Value) -> None:
        """Write the softmax of a row of codes."""
        w, a = self.w, self.a
        most, least = self._ends(x)
        same = most.test("eq", least)
        with w.when(same), w.loop(0, a.length, 1) as at:
            equal = a.equal.trunc("i8")
            (y + at.index).store(equal)
        with w.when(~same):
            shift = 255 - most
            if self.table is None:
                self._each(x, y, shift, "1.0" / self._total(x, shift))
                return
            total = self._plane_total(x, shift) if self.planes else self._total(x, shift)
            doubtful = self._fill_single(self.table, "1.0" / total)
            with w.when(doubtful):
                self._precise(x, y, shift, self.table)
            with w.when(~doubtful):
                self._look_up(x, y, self.table, shift)

    def _precise(self, x: Value, y: Value, shift: Value, table: Value) -> None:
        """Compute a row in float64, since float32 does not decide its results."""
        w = self.w
        inverse = "1.0" / self._total(x, shift)
        doubtful = self._fill(table, inverse)
        with w.when(doubtful):
            self._each(x, y, shift, inverse)
        with w.when(~doubtful):
            self._look_up(x, y, table, shift)

    def _code(self, pointer: Value, index: Operand) -> Value:
        """Load one code as int64."""
        return (pointer + index).load("i8").extend("i64", self.spec.signed)

    def _ends(self, x: Value) -> tuple[Value, Value]:
        """The greatest and the least code of a row, i64."""
        w, a, n = self.w, self.a, self.spec.rows
        names = [f"{'s' if self.spec.signed else 'u'}{which}" for which in ("max", "min")]
        if n:
            first = x.load(f"<{n} x i8>")
            with w.loop(0, a.length, n, [first, first]) as turn:
                block = (x + turn.index.least(a.last)).load(first.kind)
                turn.next(*(so_far.intrinsic(name, block) for name, so_far in zip(names, turn.carried, strict=True)))
            ends = [value.reduce_lanes(name) for name, value in zip(names, turn.carried, strict=True)]
            most, least = (end.extend("i64", self.spec.signed) for end in ends)
            return most, least
        code = self._code(x, "0")
        with w.loop(1, a.length, 1, [code, code]) as turn:
            code = self._code(x, turn.index)
            turn.next(*(so_far.intrinsic(name, code) for name, so_far in zip(names, turn.carried, strict=True)))
        return turn.carried[0], turn.carried[1]

    def _total(self, x: Value, shift: Value) -> Value:
        """The sum of a row's weights: four independent partial sums, then the remaining elements."""
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

    def _plane_total(self, x: Value, shift: Value) -> Value:
        """The sum of a row's weights, each rounded to a multiple of 1 / WEIGHT."""
        w, a, n = self.w, self.a, self.spec.rows
        tables = [
            [(a.planes + 256 * plane + i).load(f"<{n} x i8>", 16) for i in range(0, 256, 64)] for plane in range(4)
        ]
        moved, lanes = shift.trunc("i8").splat(n), w.value(f"<{n} x i8>", constants("i8", range(n)))
        with w.loop(0, a.length, n, [w.zero("<8 x i64>")] * 4) as turn:
            position = turn.index.least(a.last)
            index = (x + position).load(lanes.kind) + moved
            fresh = lanes.test("uge", (turn.index - position).trunc("i8").splat(n))
            found = (fresh.select(look_up_bytes(table, index), ZERO) for table in tables)
            turn.next(*(total + byte_sums(plane) for total, plane in zip(turn.carried, found, strict=True)))
        parts = [total.reduce_lanes("add") << 8 * plane for plane, total in enumerate(turn.carried)]
        return reduce(add, parts).uitofp("double") * (1 / WEIGHT)

    def _round_quotients(self, levels: Value, inverse: Value) -> tuple[Value, Value, Value]:
        """The codes of the quotients (i8), the quotients (at most _MOST), and each one's distance from an integer."""
        magic, bits = (MAGIC32, "i32") if levels.element == "float" else (MAGIC64, "i64")
        quotient = (levels * inverse).where("olt", _MOST)
        raised = quotient + magic
        error = abs(quotient - (raised - magic))
        whole = raised.bitcast(bits)
        whole = whole - MAGIC_BITS if bits == "i32" else whole.trunc("i32")
        high, zero = (number.trunc("i32").splat(levels.lanes) for number in (self.a.high, self.a.zero))
        return (whole.where("slt", high) + zero).trunc("i8"), quotient, error

    def _fill_single(self, table: Value, inverse: Value) -> Value:
        """As `_fill`, computed in float32."""
        w, n = self.w, self.isa.lanes
        factor = inverse.single().splat(n)
        reach = self.a.reach.bitcast("float").splat(n)
        with w.loop(0, 256, n, [w.zero(factor.kind)]) as turn:
            levels = (self.a.singles + turn.index * 4).load(factor.kind, 4)
            codes, quotient, error = self._round_quotients(levels, factor)
            (table + turn.index).store(codes)
            turn.next(quotient.fma(reach, error).where("ogt", turn.carried[0]))
        return turn.carried[0].reduce_lanes("fmax").test("oge", 0.5)

    def _fill(self, table: Value, inverse: Value) -> Value:
        """Fill the table with the codes of all 256 distances. Returns an i1: whether one of them may be wrong."""
        w, n = self.w, max(self.isa.lanes // 2, 2)
        factor = inverse.splat(n)
        with w.loop(0, 256, n, [w.zero(factor.kind)]) as turn:
            levels = (self.a.levels + turn.index * 8).load(factor.kind, 8)
            codes, _, error = self._round_quotients(levels, factor)
            (table + turn.index).store(codes)
            turn.next(error.where("ogt", turn.carried[0]))
        return turn.carried[0].reduce_lanes("fmax").test("oge", self.certain)

    def _look_up(self, x: Value, y: Value, table: Value, shift: Value) -> None:
        """Look up and store the result of each code. The table's index is 255 minus the distance to the greatest
        code."""
        w, a, n = self.w, self.a, self.spec.rows
        if self.planes:
            pieces = [(table + i).load(f"<{n} x i8>", 16) for i in range(0, 256, 64)]
            moved = shift.trunc("i8").splat(n)
            with w.loop(0, a.length, n) as turn:
                address = turn.index.least(a.last)
                (y + address).store(look_up_bytes(pieces, (x + address).load(moved.kind) + moved))
            return
        table = table + shift

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
        """Compute the results one by one, each from its own quotient. The run ends undecided if one is near a tie."""
        w = self.w
        levels = self.a.levels + shift * 8
        factor = inverse.splat(1)
        with w.loop(0, self.a.length, 1) as turn:
            level = (levels + self._code(x, turn.index) * 8).load(factor.kind, 8)
            code, _, error = self._round_quotients(level, factor)
            (y + turn.index).store(code)
            with w.when(error.extract(0).test("oge", self.certain)):
                w.mark_undecided()


@emitter("shares")
class SoftmaxF32Emitter(RowwiseEmitter):
    """exp(x - greatest) * (1 / sum exp(x - greatest)) in float32; the sum and its inverse are float64.
    A row's exponentials are stored in the place of its results."""

    exponential = staticmethod(share)

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Interleave several rows: while one waits for its greatest element or its sum, the others go on."""
        greatest = [self.greatest(x) for x in xs]
        totals = [self.total(*row) for row in zip(xs, greatest, ys, strict=True)]
        for total, y in zip(totals, ys, strict=True):
            inverse = ("1.0" / total).float32().splat(PARTS)

            def share(index: Value, on: Value | None, y: Value = y, inverse: Value = inverse) -> Value:
                return self.single(y, index, on) * inverse

            self.store_row(y, share)

    def total(self, x: Value, greatest: Value, kept: Value | None = None) -> Value:
        """The sum of a row's exponentials. kept: the address where they are stored; None to store none."""
        top = greatest.splat(PARTS)

        def term(index: Value, on: Value | None) -> Value:
            made: Value = self.exponential(self.single(x, index, on) - top)
            if kept is not None:
                self.store(made, kept, index, on)
            return made.double()

        return self.sum(term)

    def greatest(self, x: Value) -> Value:
        """The greatest element of a row, float. NaN elements are skipped; -inf if all are NaN."""
        return self.extreme(x, -math.inf, lambda so_far, more: more.where("ogt", so_far))


@emitter("log_shares")
class LogSoftmaxEmitter(SoftmaxF32Emitter):
    """x - greatest - log(sum exp(x - greatest)) in float32; the sum and its logarithm are float64."""

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Store x - max - log(sum(exp(x - max))) of several rows."""
        greatest = [self.greatest(x) for x in xs]
        totals = [self.total(*row) for row in zip(xs, greatest, strict=True)]
        for x, top, total, y in zip(xs, greatest, totals, ys, strict=True):
            ends = top.splat(PARTS), log(total.splat(1)).float32().extract(0).splat(PARTS)

            def logarithm(index: Value, on: Value | None, x: Value = x, ends: Sequence[Value] = ends) -> Value:
                return self.single(x, index, on) - ends[0] - ends[1]

            self.store_row(y, logarithm)
