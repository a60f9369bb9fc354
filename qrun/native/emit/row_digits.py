"""Rows of float32 as integers of five digits, which products of digits.py take from the memory of the thread.

Some elements of a row, a piece, become integers q = round(a / quantum), quantum a power of two:

    q = d0 + d1 * 2**8 + d2 * 2**16 + d3 * 2**24 + d4 * 2**32,   -128 <= d <= 127

What a / quantum loses is nothing, or known: its length joins the reach of the sum.

A row's digits for a block of DEPTH k:

    group 0   digit 0: k 0 2 4 6, k 1 3 5 7 | digit 1 | .. | digit 4      8 bytes each
    group 1   ..
    numbers   quantum, sum of all q, float64; what the sums of lower and upper digits start from, int32 | ..,
              for each piece
    bits      those of all q's digits together, in 8 bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from qrun.native.emit.coded import CodedProductEmitter
from qrun.native.emit.floats import DEPTH, PITCH
from qrun.native.emit.kernel import Isa, KernelSpec, Value
from qrun.native.emit.values import MAGIC64
from qrun.native.emit.widen import first_lanes, folded

Values = Sequence[Value]
LANES, PIECE = 8, 32
"""k of a group: the codes of a word; of the longest piece, whose sums fit into int32."""
DIGITS = 5
_BITS = 38
"""A piece's greatest element becomes a number of up to 2**39 less a 65th part, which these digits have."""
_MARGIN = 1 + 2.0**-6
LOWER = 2
"""Digits that make the lower one of the two integers that q is made of;
UPPER_STEP: what the other one is multiplied with."""
UPPER_STEP = 2.0 ** (8 * LOWER)
MIDDLE = 8
"""Of the codes."""
_BIAS = sum(128 << 8 * n for n in range(DIGITS))
"""What makes all digits non-negative."""
UPPER_BIAS = _BIAS >> 8 * LOWER
_NUMBER = 24
"""Bytes of a piece's numbers."""
BITS_AT = 1024
"""From a row's start to the bits that its digits have."""
GROUP_BYTES = DIGITS * LANES
_NUMBERS = DEPTH // LANES * GROUP_BYTES
"""Bytes of a group's digits, and of all of them."""
EXPONENT = 0x7FF0000000000000
"""The bits of a float64 that are its exponent."""
_INVERSE = (2 * 1023 + _BITS) << 52
"""Less the bits of a power of two: those of 2**_BITS divided by it."""
_MAGIC = 0x4338000000000000
"""The bits of MAGIC64."""
_LEAST = 2.0**-149
_LOST = 1 + 2.0**-20
"""For the rounding of the length of what was lost."""


def _biggest(vectors: Values) -> Value:
    """The greatest magnitude in vectors of float32; anything if some are NaN."""
    sizes = reduce(lambda a, b: a.intrinsic("smax", b), (one.bitcast("i32") & 0x7FFFFFFF for one in vectors))
    return folded(sizes, lambda a, b: a.intrinsic("smax", b)).bitcast("float")


class RowDigitsEmitter(CodedProductEmitter):
    """What makes the digits. unroll: the groups of a piece, the elements that share a quantum."""

    shares: tuple[float, ...] = (1.0,)
    """For each loss of `losses`: the length of what it is multiplied with, relative to the column's length."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.groups = spec.unroll
        self.piece = LANES * self.groups

    def convert(self, first: Value, opening: Value) -> None:
        """Make the digits of a strip's rows if it opens; after the last block of k, their lengths are known."""
        w, zero = self.w, self.w.value("double", 0.0)
        with w.when(opening), w.loop(0, self.spec.rows, 1) as turn:
            row = first + turn.index
            target, held = self.converted + turn.index * PITCH, self.held_at(row)
            places = range(0, 8 * (1 + len(self.shares)), 8)
            before = [self.opens.select(zero, (held + place).load("double", 8)) for place in places]
            source = self.row_part(self.first + row, self.tap) + self.start * 4
            none = [w.zero(f"<{LANES} x i64>"), *[w.zero(f"<{LANES} x double>")] * len(before)]
            with w.loop(0, self.size, self.piece, none) as part:
                part.next(*self._piece(source, target, part.index, part.carried))
            bits, *sums = part.carried
            (target + BITS_AT).store(bits.reduced("or"), 8)
            totals = [total + folded(own) for total, own in zip(before, sums, strict=True)]
            for place, total in zip(places, totals, strict=True):
                (held + place).store(total, 8)
            with w.when(self.ends):
                squares, *rest = totals
                self.measured(row, squares)
                reach = self.lengths + row * 8
                length = reach.load("double", 8)
                held.store(length, 8)
                for lost, share in zip(rest, self.shares, strict=True):
                    length = lost.sqrt().fma(_LOST * share, length)
                reach.store(length, 8)

    def held_at(self, row: Value) -> Value:
        """Where a row's sums of squares are, of its elements and of what is lost of them; then its reach in float64."""
        return self.squares + row * (8 * self.lanes)

    def _piece(self, source: Value, target: Value, start: Value, before: Sequence[Value]) -> list[Value]:
        """Make the digits of a piece that starts at this k of the block. before: eight lanes of the bits that digits
        have, and of the sums of squares. Returns these with its own."""
        xs = []
        for n in range(0, self.piece, LANES):
            mask = first_lanes(self.size - start - n, LANES)
            xs.append((source + (start + n) * 4).masked_load(f"<{LANES} x float>", mask, 4))
        power = (_biggest(xs).double().where("ogt", _LEAST) * _MARGIN).bitcast("i64") & EXPONENT
        quantum = power.bitcast("double") * 2.0**-_BITS
        unit, inverse = quantum.splat(LANES), (_INVERSE - power).bitcast("double").splat(LANES)
        bits, *squares = before
        sums = [self.w.zero(f"<{LANES} x i64>")] * 2
        for n, x in enumerate(one.double() for one in xs):
            scaled = x * inverse
            magic = scaled + MAGIC64
            whole = magic - MAGIC64
            integers = magic.bitcast("i64") + (_BIAS - _MAGIC)
            upper = integers.lshr(8 * LOWER)
            bits = bits | self._digits(integers, target + (start // LANES + n) * GROUP_BYTES)
            lost = self.losses(upper, whole, (scaled - whole) * unit, unit)
            sums = [total + one for total, one in zip(sums, (integers, upper), strict=True)]
            squares = [one.fma(one, total) for total, one in zip(squares, (x, *lost), strict=True)]
        self._store_numbers(self.numbers_of(target, start), quantum, *map(folded, sums))
        return [bits, *squares]

    def _store_numbers(self, place: Value, quantum: Value, whole: Value, upper: Value) -> None:
        """Store a piece's numbers; whole, upper: the sums of its integers and of their upper digits, with the bias."""
        whole, upper = whole - self.piece * _BIAS, upper - self.piece * UPPER_BIAS
        place.store(quantum, 8)
        (place + 8).store(whole.sitofp("double"), 8)
        for n, total in enumerate((whole - (upper << 8 * LOWER), upper)):
            (place + 16 + 4 * n).store((total * -MIDDLE).trunc("i32"), 4)

    def losses(self, upper: Value, whole: Value, off: Value, unit: Value) -> list[Value]:
        """What digits lose of eight elements, one for each of `shares`.

        upper: the upper digits as integers, with the bias; whole: all digits, float64;
        off: what they are less than the elements."""
        return [off]

    def _digits(self, integers: Value, target: Value) -> Value:
        """Store the digits of eight integers, to which the bias was added: of even k, then of odd k. Returns them,
        eight bytes of each integer."""
        digits, order = integers ^ _BIAS, [*range(0, LANES, 2), *range(1, LANES, 2)]
        first = digits.trunc("i32").bitcast(f"<{4 * LANES} x i8>")
        target.store(first.shuffled([4 * k + n for n in range(4) for k in order]), 4)
        (target + 4 * LANES).store(digits.lshr(32).trunc("i8").shuffled(order), 4)
        return digits

    def numbers_of(self, row: Value, start: Value) -> Value:
        """Where the numbers are of the piece that starts at this k of the block; row: where its digits are."""
        return row + _NUMBERS + start // self.piece * _NUMBER

    def row_numbers(self, row: int, start: Value) -> Value:
        """The same, of a row of the strip."""
        return self.numbers_of(self.converted + row * PITCH, start)
