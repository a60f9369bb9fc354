"""The generated product of few float32 rows with weights in codes of 4 bits, as sums of integers.

Where (code - zero point) * scale needs no rounding, a block's part of a sum is scale * sum a * (code - zero point). Some
elements of a row become integers q = round(a / quantum), quantum a power of two, in five digits:

    q = d0 + d1 * 2**8 + d2 * 2**16 + d3 * 2**24 + d4 * 2**32,   -128 <= d <= 127

Each digit times the codes less 8 is a sum of products of bytes. Of these sums the three upper ones make one int32, modulo
2**32, and the two lower ones another: of the upper digits as one integer, and of the lower ones.
What a / quantum loses is nothing, or known: its length joins the reach of the sum. Sums in doubt, and those of rows with
infinities or NaN, are made again in float64 as coded.py makes them.

A row's digits for a block of DEPTH k, in the thread's memory:

    group 0   digit 0: k 0 2 4 6, k 1 3 5 7 | digit 1 | .. | digit 4      8 bytes each
    group 1   ..
    numbers   quantum, sum of all q, float64; what the sums of lower and upper digits start from, int32 | ..   for each piece
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from qrun.native.emit.coded import CodedProductEmitter
from qrun.native.emit.dot import Bytes4, activations, dot, int32s, weights
from qrun.native.emit.floats import DEPTH, PITCH
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter
from qrun.native.emit.values import MAGIC64, ZERO
from qrun.native.emit.widen import first_lanes, folded

Values = Sequence[Value]
Parameters = Sequence[tuple[Value | None, Value]]
"""The zero points, unless they are those in the middle, and the scales of each vector of columns."""
LANES, PIECE = 8, 32
"""k of a group: the codes of a word; of the longest piece, whose sums fit into int32."""
DIGITS = 5
_BITS = 38
"""A piece's greatest element becomes a number of up to 2**39 less a 65th part, which these digits have."""
_MARGIN = 1 + 2.0**-6
LOWER = 2
"""Digits that make the lower one of two integers; UPPER_STEP: what the other one counts."""
UPPER_STEP = 2.0 ** (8 * LOWER)
MIDDLE = 8
"""Of the codes."""
_BIAS = sum(128 << 8 * n for n in range(DIGITS))
"""What makes all digits non-negative."""
UPPER_BIAS = _BIAS >> 8 * LOWER
_NUMBER = 24
"""Bytes of a piece's numbers."""
_GROUP = DIGITS * LANES
_NUMBERS = DEPTH // LANES * _GROUP
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


def joined(sums: Values) -> Value:
    """The sum of products with integers modulo 2**32, of those with their digits, the lowest first."""
    return reduce(lambda upper, lower: lower + (upper << 8), reversed(sums))


def _biggest(vectors: Values) -> Value:
    """The greatest magnitude in vectors of float32; anything if some are NaN."""
    sizes = reduce(lambda a, b: a.intrinsic("smax", b), (one.bitcast("i32") & 0x7FFFFFFF for one in vectors))
    while sizes.lanes > 1:
        half = sizes.lanes // 2
        sizes = sizes.shuffled(range(half)).intrinsic("smax", sizes.shuffled(range(half, 2 * half)))
    return sizes.extract(0).bitcast("float")


@emitter("digit_product")
class DigitProductEmitter(CodedProductEmitter):
    """unroll: the groups of a piece, the elements that share a quantum. Codes have 4 bits, zero points are ``half`` or
    ``bytes``; behind the codes `unroll` groups of a panel may be read."""

    shares: tuple[float, ...] = (1.0,)
    """How much of a column meets each of what digits lose, relative to its length."""
    totals = DIGITS
    """Sums of integers, of a row and a column."""
    block: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.groups = spec.unroll
        self.piece = LANES * self.groups

    def convert(self, first: Value, opening: Value) -> None:
        """Make the digits of a strip's rows if it opens; after the last block of k, their lengths are known."""
        w, zero = self.w, self.w.value("double", 0.0)
        with w.when(opening), w.loop(0, self.spec.rows, 1) as turn:
            row = first + turn.index
            target, held = self.converted + turn.index * PITCH, self._held(row)
            places = range(0, 8 * (1 + len(self.shares)), 8)
            before = [self.opens.select(zero, (held + place).load("double", 8)) for place in places]
            source = self.row_part(self.first + row, self.tap) + self.start * 4
            with w.loop(0, self.size, self.piece, [w.zero(f"<{LANES} x double>")] * len(before)) as part:
                part.next(*self._piece(source, target, part.index, part.carried))
            totals = [total + folded(own) for total, own in zip(before, part.carried, strict=True)]
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

    def _held(self, row: Value) -> Value:
        """Where a row's sums of squares are, of its elements and of what is lost of them; then its reach in float64."""
        return self.squares + row * (8 * self.lanes)

    def _piece(self, source: Value, target: Value, start: Value, before: Sequence[Value]) -> list[Value]:
        """Make the digits of a piece that starts at this k of the block. Returns these sums of squares, eight lanes of each,
        with its own."""
        xs = []
        for n in range(0, self.piece, LANES):
            mask = first_lanes(self.size - start - n, LANES)
            xs.append((source + (start + n) * 4).masked_load(f"<{LANES} x float>", mask, 4))
        power = (_biggest(xs).double().where("ogt", _LEAST) * _MARGIN).bitcast("i64") & EXPONENT
        quantum = power.bitcast("double") * 2.0**-_BITS
        unit, inverse = quantum.splat(LANES), (_INVERSE - power).bitcast("double").splat(LANES)
        squares, sums = list(before), [self.w.zero(f"<{LANES} x i64>")] * 2
        for n, x in enumerate(one.double() for one in xs):
            scaled = x * inverse
            magic = scaled + MAGIC64
            whole = magic - MAGIC64
            integers = magic.bitcast("i64") + (_BIAS - _MAGIC)
            upper = integers.lshr(8 * LOWER)
            self._digits(integers, target + (start // LANES + n) * _GROUP)
            lost = self._losses(upper, whole, (scaled - whole) * unit, unit)
            sums = [total + one for total, one in zip(sums, (integers, upper), strict=True)]
            squares = [one.fma(one, total) for total, one in zip(squares, (x, *lost), strict=True)]
        self._store_numbers(self._numbers_of(target, start), quantum, *map(folded, sums))
        return squares

    def _store_numbers(self, place: Value, quantum: Value, whole: Value, upper: Value) -> None:
        """Store a piece's numbers; whole, upper: the sums of its integers and of their upper digits, with the bias."""
        whole, upper = whole - self.piece * _BIAS, upper - self.piece * UPPER_BIAS
        place.store(quantum, 8)
        (place + 8).store(whole.sitofp("double"), 8)
        for n, total in enumerate((whole - (upper << 8 * LOWER), upper)):
            (place + 16 + 4 * n).store((total * -MIDDLE).trunc("i32"), 4)

    def _losses(self, upper: Value, whole: Value, off: Value, unit: Value) -> list[Value]:
        """What digits lose of eight elements, one for each of `shares`.

        upper: the upper digits as integers, with the bias; whole: all digits, float64; off: what they are less than the elements."""
        return [off]

    def _digits(self, integers: Value, target: Value) -> None:
        """Store the digits of eight integers, to which the bias was added: of even k, then of odd k."""
        digits, order = integers ^ _BIAS, [*range(0, LANES, 2), *range(1, LANES, 2)]
        first = digits.trunc("i32").bitcast(f"<{4 * LANES} x i8>")
        target.store(first.shuffled([4 * k + n for n in range(4) for k in order]), 4)
        (target + 4 * LANES).store(digits.lshr(32).trunc("i8").shuffled(order), 4)

    def _numbers_of(self, row: Value, start: Value) -> Value:
        """Where the numbers are of the piece that starts at this k of the block; row: where its digits are."""
        return row + _NUMBERS + start // self.piece * _NUMBER

    def _row_numbers(self, row: int, start: Value) -> Value:
        """The same, of a row of the strip."""
        return self._numbers_of(self.converted + row * PITCH, start)

    def strip_sums(self, row: Value) -> list[Value]:
        w, rows, halves = self.w, self.spec.rows, self.spec.vectors // 2
        parts = [range(halves)] if rows == 1 else [range(half, half + 1) for half in range(halves)]
        count = rows * self.spec.vectors
        with w.loop(0, self.size, self.piece, [w.zero(self.kind)] * count) as part:
            place = self._codes(self.start, self.size) + part.index // LANES * (self.width * self.word)
            block, sums = (self.start + part.index).lshr(self.block_bits), list(part.carried)
            self.block = block
            for some in parts:
                for half, made in zip(some, self._integers(place, part.index, some), strict=True):
                    parameters = [self._scaling(block, 2 * half + n) for n in range(2)]
                    for i, digits in enumerate(made):
                        first = i * self.spec.vectors + 2 * half
                        sums[first : first + 2] = self._added(
                            digits, i, part.index, parameters, sums[first : first + 2]
                        )
            part.next(*sums)
        return part.carried

    def _integers(self, place: Value, start: Value, halves: Sequence[int]) -> list[list[list[Value]]]:
        """The sums of products with each digit, [halves][rows][digits]; place: of the codes of the piece, which starts at
        this k of the block."""
        each = self.totals
        count = self.spec.rows * each
        first, made = start // LANES * _GROUP, []
        for _ in halves:
            for row in range(self.spec.rows):
                made += self._firsts(self._row_numbers(row, start))
        with self.w.loop(0, self.groups, 1, made) as turn:
            codes = place + turn.index * (self.width * self.word)
            turn.next(*self._group(codes, first + turn.index * _GROUP, halves, turn.carried))
        made = turn.carried
        return [[made[i : i + each] for i in range(n, n + count, each)] for n in range(0, len(made), count)]

    def _firsts(self, numbers: Value) -> list[Value]:
        """What the sums of a row start from, so that codes count from their middle; numbers: of the row's piece."""
        wide, made = 2 * self.lanes, [self.w.zero(int32s(self.isa))] * self.totals
        for n, place in enumerate((0, LOWER)):
            made[place] = (numbers + 16 + 4 * n).load("i32", 4).splat(wide)
        return made

    def _group(self, place: Value, at: Value, halves: Sequence[int], sums: Sequence[Value]) -> list[Value]:
        """These sums, [halves * rows * totals], with a group's products; at: from a row's start to the group's digits."""
        wide, made = 2 * self.lanes, list(sums)
        words = [self._word(place + half * wide * self.word, wide) for half in halves]
        factors = [
            [self._factors(part, half) for part in (w, w.lshr(4))] for half, w in zip(halves, words, strict=True)
        ]
        for n in range(self.spec.rows * DIGITS):
            row, digit = divmod(n, DIGITS)
            for odd in range(2):
                x = (self.converted + row * PITCH + at + digit * LANES + 4 * odd).load("i32", 4).splat(wide)
                for h, both in enumerate(factors):
                    first = (h * self.spec.rows + row) * self.totals
                    for place_of, factor in zip(self.places_of(digit), both[odd], strict=False):
                        made[first + place_of] = dot(self.isa, made[first + place_of], factor, weights(self.isa, x))
        return made

    def places_of(self, digit: int) -> tuple[int, ...]:
        """The sums, by number, that products with a digit are added to, one for each factor."""
        return (digit,)

    def _factors(self, words: Value, half: int) -> list[Bytes4]:
        """What digits of k are multiplied with: the codes in the low bits of each byte."""
        return [activations(self.isa, words & 0x0F0F0F0F)]

    def _scaling(self, block: Value, vector: int) -> tuple[Value | None, Value]:
        """The zero points of a vector of columns less the middle, unless they are that, and the scales, float64."""
        a, lanes = self.a, self.lanes
        place = self._scaled(block) + vector * lanes
        zeros = (
            None
            if self.zeros == "half"
            else ((a.zeros + place).load(f"<{lanes} x i8>").zext("i32") - MIDDLE).sitofp("double")
        )
        return zeros, (a.scales + place * 4).load(self.narrow, 4).double()

    def _added(self, digits: Values, row: int, start: Value, parameters: Parameters, sums: Values) -> list[Value]:
        """Two vectors of sums with a piece's part; digits: the sums of products with each digit of a row."""
        numbers = self._row_numbers(row, start)
        quantum = numbers.load("double", 8).splat(self.lanes)
        lower, upper = joined(digits[:LOWER]), joined(digits[LOWER:DIGITS])
        made = []
        for n, (zeros, scale) in enumerate(parameters):
            total = self._lanes_of(upper, n).fma(UPPER_STEP, self._lanes_of(lower, n))
            if zeros is not None:
                total = zeros.fma((-(numbers + 8).load("double", 8)).splat(self.lanes), total)
            made.append(total.fma(scale * quantum, sums[n]))
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
            length = self._held(row).load("double", 8).splat(self.lanes)
            columns = (self.panel_lengths + vector * (8 * self.lanes)).load(self.kind, 8)
            super().settle(row, vector, self._float64_sum(row, vector * self.lanes), length * columns)

    def _float64_sum(self, row: Value, column: Value) -> Value:
        """The sum of a vector of columns, which begins at this one of the panel, block of k by block of k."""
        w, a, zero = self.w, self.a, self.w.zero(self.kind)
        x = self.tap_at(row, w.value("i64", 0))
        with w.loop(0, a.depth, DEPTH, [zero]) as block:
            size = (a.depth - block.index).least(DEPTH)
            codes = self._codes(block.index, size) + column * self.word
            with w.loop(0, size, LANES, [zero]) as group:
                first = block.index + group.index
                word = self._word(codes + group.index // LANES * (self.width * self.word), self.lanes)
                numbers = (x + first * 4).masked_load(f"<{LANES} x float>", first_lanes(a.depth - first, LANES), 4)
                parameters, total = self._parameters(first.lshr(self.block_bits), column, self.lanes), group.carried[0]
                for n in range(LANES):
                    b = self._weights(word.lshr(4 * n) if n else word, *parameters).double()
                    total = numbers.extract(n).double().splat(self.lanes).fma(b, total)
                group.next(total)
            block.next(block.carried[0] + group.carried[0])
        return block.carried[0]
