"""The generated product of few float32 rows with weights in codes of 4 bits, as sums of integers.

Where (code - zero point) * scale needs no rounding, a block's part of a sum is scale * sum a * (code - zero point).
Pieces of a row become integers in five digits (row_digits.py). Each digit times the codes less 8 is a sum of products
of bytes. Of these sums the three upper ones make one int32, modulo 2**32, and the two lower ones another: of the upper
digits as one integer, and of the lower ones. Without an instruction that adds products of four bytes, those of a whole
piece are added in 16 bits, each at most 15 * 128, so 16 of them in a lane. Digits that are 0 in all of a row's block of
k, as the lowest of most numbers that were float16 or int8, are left out: the loop over pieces is written for each
number of them. Sums in doubt, and those of rows with infinities or NaN, are made again in float64 as coded.py makes
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product

from qrun.native.emit.dot import Bytes4, activations, dot, int16s, int32s, neighbours, pairs, weights
from qrun.native.emit.floats import DEPTH, PITCH
from qrun.native.emit.kernel import Value, emitter
from qrun.native.emit.row_digits import (
    BITS_AT,
    DIGITS,
    GROUP_BYTES,
    LANES,
    LOWER,
    MIDDLE,
    UPPER_STEP,
    RowDigitsEmitter,
    Values,
)
from qrun.native.emit.values import ZERO
from qrun.native.emit.widen import first_lanes

Parameters = Sequence[tuple[Value | None, Value]]
"""The zero points, unless they are those in the middle, and the scales of each vector of columns."""
_AHEAD = 4096
"""Bytes of codes before those that are fetched meanwhile: two panels of 32 columns and DEPTH k."""
_CHAINS = 4
"""Sums that do not wait for each other, where they are made again in float64."""


def joined(sums: Values) -> Value:
    """The sum of products with integers modulo 2**32, of those with their digits, the lowest first."""
    return reduce(lambda upper, lower: lower + (upper << 8), reversed(sums))


@emitter("digit_product")
class DigitProductEmitter(RowDigitsEmitter):
    """Codes have 4 bits, zero points are ``half`` or ``bytes``;
    behind the codes `unroll` groups of a panel may be read."""

    totals = DIGITS
    """Sums of integers, of a row and a column."""
    bodies: tuple[int, ...] = (LOWER, 1, 0)
    """How many digits may be left out, the most first."""
    lowest = 0
    """The first digit that is not left out because those below are all 0."""
    scales_at: Value
    """How many scales come before the piece's first one."""

    def strip_sums(self, row: Value) -> list[Value]:
        w = self.w
        sums, end = [w.zero(self.kind)] * (self.spec.rows * self.spec.vectors), self.size
        if self.spec.rows > 1:
            return self._block_sums(sums, end)
        bits, done = (self.converted + BITS_AT).load("i64", 8), w.value("i1", "false")
        for lowest in self.bodies:
            self.lowest = lowest
            serves = (bits & ((1 << 8 * self.lowest) - 1)).test("eq", 0) & ~done
            sums, done = self._block_sums(sums, serves.select(end, 0)), done | serves
        return sums

    def _block_sums(self, before: Sequence[Value], size: Value) -> list[Value]:
        """These sums with those of so many k of the block, without the digits below the lowest one."""
        w, rows, halves = self.w, self.spec.rows, self.spec.vectors // 2
        parts = [range(halves)] if rows == 1 else [range(half, half + 1) for half in range(halves)]
        codes, scales = self._codes(self.start, self.size), self._scaled(self.start.lshr(self.block_bits))
        with w.loop(0, size, self.piece, before) as part:
            place, sums = codes + part.index // LANES * (self.width * self.word), list(part.carried)
            self.scales_at = scales + part.index.lshr(self.block_bits) * self.width
            for some in parts:
                for half, made in zip(some, self._integers(place, part.index, some), strict=True):
                    parameters = [self._scaling(2 * half + n) for n in range(2)]
                    for i, digits in enumerate(made):
                        first = i * self.spec.vectors + 2 * half
                        sums[first : first + 2] = self._added(
                            digits, i, part.index, parameters, sums[first : first + 2]
                        )
            part.next(*sums)
        return part.carried

    def _integers(self, place: Value, start: Value, halves: Sequence[int]) -> list[list[list[Value]]]:
        """The sums of products with each digit, [halves][rows][digits]; place: of the codes of the piece, which starts
        at this k of the block."""
        each = self.totals - self.lowest
        count = self.spec.rows * each
        at, firsts = start // LANES * GROUP_BYTES, list[Value | None]()
        for _ in halves:
            for row in range(self.spec.rows):
                firsts += self._firsts(self.row_numbers(row, start))
        kind = int32s(self.isa) if self.isa.dots else int16s(self.isa)
        opening = [self.w.zero(kind) if first is None or not self.isa.dots else first for first in firsts]
        with self.w.loop(0, self.groups, 1, opening) as turn:
            codes = place + turn.index * (self.width * self.word)
            turn.next(*self._group(codes, at + turn.index * GROUP_BYTES, halves, turn.carried))
        made = turn.carried
        if not self.isa.dots:
            sums = [pairs(total, total.like(1)) for total in made]
            made = [total if first is None else total + first for first, total in zip(firsts, sums, strict=True)]
        return [[made[i : i + each] for i in range(n, n + count, each)] for n in range(0, len(made), count)]

    def _firsts(self, numbers: Value) -> list[Value | None]:
        """What the sums of a row start from, if not 0, so that codes count from their middle;
        numbers: of the row's piece."""
        made: list[Value | None] = [None] * (self.totals - self.lowest)
        lower, upper = ((numbers + 16 + 4 * n).load("i32", 4).splat(2 * self.lanes) for n in range(2))
        if self.lowest < LOWER:
            made[0] = lower.ashr(8 * self.lowest)
        made[LOWER - self.lowest] = upper
        return made

    def _group(self, place: Value, at: Value, halves: Sequence[int], sums: Sequence[Value]) -> list[Value]:
        """These sums, [halves * rows * totals], with a group's products;
        at: from a row's start to the group's digits."""
        wide, made = 2 * self.lanes, list(sums)
        words = [self._word(place + half * wide * self.word, wide) for half in halves]
        for half in halves if self.spec.prefetch else ():
            self.w.prefetch(place + (half * wide * self.word + _AHEAD), near=True)
        factors = [
            [self._factors(part, half) for part in (w, w.lshr(4))] for half, w in zip(halves, words, strict=True)
        ]
        for row, digit in product(range(self.spec.rows), range(self.lowest, DIGITS)):
            for odd in range(2):
                x = (self.converted + row * PITCH + at + digit * LANES + 4 * odd).load("i32", 4).splat(wide)
                for h, both in enumerate(factors):
                    first = (h * self.spec.rows + row) * (self.totals - self.lowest) - self.lowest
                    for place_of, factor in zip(self.places_of(digit), both[odd], strict=False):
                        made[first + place_of] = self._multiplied(made[first + place_of], factor, x)
        return made

    def _multiplied(self, total: Value, factor: Bytes4, x: Value) -> Value:
        """The total with the products of a factor and four digits in each lane."""
        if self.isa.dots:
            return dot(self.isa, total, factor, weights(self.isa, x))
        return total + neighbours(factor[0], x)

    def places_of(self, digit: int) -> tuple[int, ...]:
        """The sums that products with a digit are added to, one for each factor: numbers where no digit is left out."""
        return (digit,)

    def _factors(self, words: Value, half: int) -> list[Bytes4]:
        """What digits of k are multiplied with: the codes in the low bits of each byte."""
        return [self.factor(words & 0x0F0F0F0F)]

    def factor(self, codes: Value) -> Bytes4:
        """Four bytes to a lane, none of them negative, as the products take them."""
        return activations(self.isa, codes) if self.isa.dots else (codes,)

    def _scaling(self, vector: int) -> tuple[Value | None, Value]:
        """The zero points of a vector of columns less the middle, unless they are that, and the scales, float64."""
        a, lanes = self.a, self.lanes
        place = self.scales_at + vector * lanes
        zeros = (
            None
            if self.zeros == "half"
            else ((a.zeros + place).load(f"<{lanes} x i8>").zext("i32") - MIDDLE).sitofp("double")
        )
        return zeros, (a.scales + place * 4).load(self.narrow, 4).double()

    def _added(self, digits: Values, row: int, start: Value, parameters: Parameters, sums: Values) -> list[Value]:
        """Two vectors of sums with a piece's part; digits: the sums of products with each digit of a row."""
        numbers = self.row_numbers(row, start)
        quantum = numbers.load("double", 8).splat(self.lanes)
        above, least = LOWER - self.lowest, 2.0 ** (8 * self.lowest)
        lower, upper = digits[:above], joined(digits[above:][: DIGITS - LOWER])
        made = []
        for n, (zeros, scale) in enumerate(parameters):
            total = self._lanes_of(upper, n)
            if lower:
                total = total.fma(UPPER_STEP / least, self._lanes_of(joined(lower), n))
            if zeros is not None:
                total = zeros.fma(((numbers + 8).load("double", 8) * (-1 / least)).splat(self.lanes), total)
            made.append(total.fma(scale * (quantum * least), sums[n]))
        return made

    def _lanes_of(self, integers: Value, vector: int) -> Value:
        """One of two vectors of int32 as float64."""
        return integers.shuffled(range(vector * self.lanes, (vector + 1) * self.lanes)).sitofp("double")

    def settle(self, row: Value, vector: Value, total: Value, reach: Value) -> None:
        """As in rounding.py; sums in doubt are first made in float64, where their reach is less."""
        w, mask = self.w, self.mask(vector)
        _, low, high = self._ends(total, reach, self._addend(row, vector, mask))
        (self._result(row) + vector * (4 * self.lanes)).masked_store(self._limited(high), mask)
        apart = low.bitcast("i32").test("ne", high.bitcast("i32"))
        unknown = reach.test("olt", math.inf).test("eq", ZERO)
        with w.when(((apart | unknown) & mask).any()):
            length = self.held_at(row).load("double", 8).splat(self.lanes)
            columns = (self.panel_lengths + vector * (8 * self.lanes)).load(self.kind, 8)
            super().settle(row, vector, self._float64_sum(row, vector * self.lanes), length * columns)

    def _float64_sum(self, row: Value, column: Value) -> Value:
        """The sum of a vector of columns, which begins at this one of the panel, block of k by block of k."""
        w, a, zero = self.w, self.a, self.w.zero(self.kind)
        x = self.tap_at(row, w.value("i64", 0))
        with w.loop(0, a.depth, DEPTH, [zero]) as block:
            size = (a.depth - block.index).least(DEPTH)
            codes = self._codes(block.index, size) + column * self.word
            with w.loop(0, size, LANES, [zero] * _CHAINS) as group:
                first = block.index + group.index
                word = self._word(codes + group.index // LANES * (self.width * self.word), self.lanes)
                numbers = (x + first * 4).masked_load(f"<{LANES} x float>", first_lanes(a.depth - first, LANES), 4)
                parameters = self._parameters(first.lshr(self.block_bits), column, self.lanes)
                left, sums = numbers.double(), list(group.carried)
                for n in range(LANES):
                    b = self._weights(word.lshr(4 * n) if n else word, *parameters).double()
                    sums[n % _CHAINS] = left.shuffled([n] * self.lanes).fma(b, sums[n % _CHAINS])
                group.next(*sums)
            block.next(reduce(Value.__add__, [*group.carried, block.carried[0]]))
        return block.carried[0]
