"""The product of digits.py where (code - 8) * scale is rounded to float32, which columns look up.

Such a weight is ulp(scale) * (n * m + r), with m the integer that the scale's 24 bits are, n the code less 8, and r
what rounding adds, an integer from -4 to 4: a number for each code, of each column and block, which is looked up in
registers. r * ulp(scale) is so little that its sum needs the three upper digits only;
what the others would add joins the reach.

In vectors of 256 bits a column has four bytes of a table. Which of them a code needs, and whether r has the other sign,
say tables that all columns share:

    table     column 0: r of 3, 5, 6, 7 | column 1: .. | ..

With AVX512-VBMI tables have all r of sixteen columns, 8 added; their places are codes with the number of the column
above them. These places are factors of the digits themselves: what the number of the column adds is the same for all k,
and is taken away with the 8.

    places    bits 0 to 3: the code; 4 and 5: which 16 bytes of a register; 6: which register of a pair
    tables    column 0 | column 4 | column 8 | column 12; of the next register column 1 | ..; columns 2 and 3 have the
              other pair
"""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.digits import DigitProductEmitter, Parameters, joined
from qrun.native.emit.dot import Bytes4
from qrun.native.emit.kernel import Value, emitter
from qrun.native.emit.row_digits import DIGITS, EXPONENT, LOWER, MIDDLE, UPPER_BIAS, UPPER_STEP, Values
from qrun.native.emit.spec import VBMI
from qrun.native.emit.values import constants

_WIDE, _NARROW = 16, 8
"""Columns of a vector of 512 and of 256 bits."""
_FLOAT_EXPONENT = 0x7F800000
_HALF = 0x400000
"""With the exponent of a scale: the bits of a number to which adding n * ulp(scale) adds n to the bits."""
_FACTORS = (3, 5, 7)
"""Codes less 8 whose products are rounded; 6 is twice 3, and the others are powers of two."""
_ROUNDED = (3, 5, 6, 7)
"""The codes less 8 that a column's four bytes of a table are for."""
_NONE = 0x80
"""An index for which the lookup instruction gives 0."""
_PLACES = [(column // 4) << 4 | (column % 2) << 6 for column in range(_WIDE)]
_PICKED = {3: 0, 5: 1, 6: 2, 7: 3, -3: 4, -5: 5, -6: 6, -7: 7}
"""For each code less 8, the place of its r among a column's eight bytes."""


def _either(mask: int, one: Value, other: Value) -> Value:
    """The bits of one where the mask has them, else those of the other."""
    return one & mask | other & ~mask & 0xFFFFFFFF


class RoundedEmitter(DigitProductEmitter):
    """Zero points are ``half``. tables: what the columns of two vectors look up, by the number of the pair."""

    shares = (1.0, 2.0**-24)
    bodies = (LOWER, 0)
    totals = 2 * DIGITS - LOWER
    """Those of r times the upper digits come last."""
    tables: dict[int, list[Value]]

    def losses(self, upper: Value, whole: Value, off: Value, unit: Value) -> list[Value]:
        integers = (upper - UPPER_BIAS).sitofp("double")
        return [off, (whole - integers * UPPER_STEP).fma(unit, off)]

    def _firsts(self, numbers: Value) -> list[Value | None]:
        made = super()._firsts(numbers)
        made[DIGITS - self.lowest] = made[LOWER - self.lowest]
        return made

    def places_of(self, digit: int) -> tuple[int, ...]:
        return (digit, digit - LOWER + DIGITS) if digit >= LOWER else (digit,)

    def _integers(self, place: Value, start: Value, halves: Sequence[int]) -> list[list[list[Value]]]:
        self.tables = {half: self._tables(half) for half in halves}
        return super()._integers(place, start, halves)

    def _tables(self, half: int) -> list[Value]:
        raise NotImplementedError

    def _roundings(self, half: int, columns: int) -> Value:
        """-r of 3, 5, 6 and 7, as bytes of one int32, of each of the pair's columns."""
        a, place = self.a, (self.scales_at + half * columns) * 4
        scale = (a.scales + place).load(f"<{columns} x float>", 4)
        magic = (scale.bitcast("i32") & _FLOAT_EXPONENT | _HALF).bitcast("float")
        three, five, seven = ((scale.fma(float(n), -(scale * float(n))) + magic).bitcast("i32") for n in _FACTORS)
        lower, upper = _either(0xFF, three, five << 8), _either(0xFFFFFF, three << 17, seven << 24)
        return _either(0xFFFF, lower, upper)

    def _added(self, digits: Values, row: int, start: Value, parameters: Parameters, sums: Values) -> list[Value]:
        made, added = super()._added(digits, row, start, parameters, sums), joined(digits[DIGITS - self.lowest :])
        quantum = self.row_numbers(row, start).load("double", 8) * (UPPER_STEP * 2.0**-23)
        for n, (_, scale) in enumerate(parameters):
            power = (scale.bitcast("i64") & EXPONENT).bitcast("double")
            made[n] = self._lanes_of(added, n).fma(power * quantum.splat(self.lanes), made[n])
        return made


@emitter("rounded_digits_256")
class RoundedDigits256Emitter(RoundedEmitter):
    """Vectors have eight columns."""

    def _tables(self, half: int) -> list[Value]:
        roundings = self._roundings(half, _NARROW).bitcast("<32 x i8>")
        return [roundings.like(0) - roundings]

    def _factors(self, words: Value, half: int) -> list[Bytes4]:
        numbers = range(-MIDDLE, MIDDLE)
        places = [_ROUNDED.index(abs(n)) if abs(n) in _ROUNDED else _NONE for n in numbers]
        signs = [1 if n > 0 else 255 for n in numbers]
        codes, columns = words & 0x0F0F0F0F, [column % 4 * 0x04040404 for column in range(_NARROW)]
        place = self._constants(places, codes) | self.w.value(words.kind, constants("i32", columns))
        sizes = self._looked_up(self.tables[half][0], place).bitcast("<32 x i8>")
        sign = self._constants(signs, codes).bitcast(sizes.kind)
        added = self.w.call(sizes.kind, "llvm.x86.avx2.psign.b", sizes, sign) + MIDDLE
        return [self.factor(codes), self.factor(added.bitcast(words.kind))]

    def _constants(self, table: Sequence[int], codes: Value) -> Value:
        """For each code the byte of this table of sixteen."""
        return self._looked_up(self.w.value("<32 x i8>", constants("i8", [*table, *table])), codes)

    def _looked_up(self, table: Value, places: Value) -> Value:
        """In each half of sixteen bytes the table's bytes at these places, 0 where a place has _NONE."""
        made = self.w.call(table.kind, "llvm.x86.avx2.pshuf.b", table, places.bitcast(table.kind))
        return made.bitcast(places.kind)


@emitter("rounded_digits")
class RoundedDigitsEmitter(RoundedEmitter):
    """Vectors have sixteen columns."""

    feature = VBMI

    def _firsts(self, numbers: Value) -> list[Value | None]:
        made = super()._firsts(numbers)
        times = [1 + place // MIDDLE for place in _PLACES]
        for place in {0, LOWER - self.lowest}:
            first = made[place]
            assert first is not None
            made[place] = first * self.w.value(first.kind, constants("i32", times))
        return made

    def _tables(self, half: int) -> list[Value]:
        kind = f"<{_WIDE} x i32>"
        both = self._roundings(half, _WIDE).bitcast("<64 x i8>")
        middle = both.like(MIDDLE)
        plus, minus = ((middle - both).bitcast(kind), (both + middle).bitcast(kind))
        made = []
        for first in (0, 2):
            order = [n + more for n in range(0, _WIDE, 4) for m in range(2) for more in (first + m, first + m + _WIDE)]
            pairs = plus.shuffled(order, minus).bitcast(both.kind)
            for second in (0, 8):
                entries = [_PICKED.get(code - MIDDLE) for code in range(16)]
                bytes_of = [64 if e is None else 16 * lane + second + e for lane in range(4) for e in entries]
                made.append(pairs.shuffled(bytes_of, middle))
        return made

    def _factors(self, words: Value, half: int) -> list[Bytes4]:
        w = self.w
        columns = [place * 0x01010101 for place in _PLACES]
        places = words & 0x0F0F0F0F | w.value(words.kind, constants("i32", columns))
        found = []
        for first in (0, 2):
            left, right = self.tables[half][first : first + 2]
            looked_up = w.call(left.kind, "llvm.x86.avx512.vpermi2var.qi.512", left, places.bitcast(left.kind), right)
            found.append(looked_up.bitcast(words.kind))
        lower = w.value(f"<{_WIDE} x i1>", constants("i1", [int(column % 4 < 2) for column in range(_WIDE)]))
        return [self.factor(places), self.factor(lower.select(*found))]
