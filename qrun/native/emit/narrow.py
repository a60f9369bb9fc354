"""Numbers of float16 and bfloat16, kept as the float32 numbers that they are: rounding to them, and to and from their bits.

No instruction of an instruction set is needed for it, so that every one does the same. A number is rounded by adding half
of its last bit that stays, less one where that bit is not set, to the bits as a whole, and clearing those behind it; below
the least normal number, by adding what makes the last bit of the sum stand for the least subnormal one.

What float32 arithmetic makes of such numbers by one addition, subtraction, multiplication, division or square root, and
what is then rounded to their type, is what one rounding gives: 24 bits are twice 11 and two more (Figueroa, When is double
rounding innocuous?, SIGNUM Newsletter 30, 1995).
"""

from __future__ import annotations

from qrun.declare.frozen import frozen
from qrun.native.emit.values import Value

_SIGN, _REST, _INFINITE = -(1 << 31), (1 << 31) - 1, 0x7F800000


@frozen
class Format:
    """digits: bits of the significand, the first one included. least: the least normal number. most: from there on numbers
    are infinite; 0 if that is so of float32 as well."""

    digits: int
    least: float
    most: float

    @property
    def unit(self) -> float:
        """The least number above 0."""
        return self.least * 2.0 ** (1 - self.digits)


FORMATS = {"f16": Format(11, 2.0**-14, 2.0**16), "bf16": Format(8, 2.0**-126, 0.0)}
"""By what specifications call the types."""
_KINDS = {"double": ("i64", 53), "float": ("i32", 24)}


def rounded(value: Value, form: Format) -> Value:
    """float64 or float32 rounded to a number of this type, ties to even, as float32. NaN stays as it is."""
    whole, digits = _KINDS[value.element]
    bits, drop = value.bitcast(whole), digits - form.digits
    last = bits.lshr(drop) & 1
    moved = ((bits + last + ((1 << (drop - 1)) - 1)) & -(1 << drop)).bitcast(value.element)
    size = abs(value)
    if form.most or value.element == "double":
        magic = 1.5 * 2.0 ** (digits - 1) * form.unit
        small = (size + magic - magic).intrinsic("copysign", value)
        moved = size.test("olt", form.least).select(small, moved)
    if form.most:
        beyond = abs(moved).test("oge", form.most)
        moved = beyond.select(moved.like(float("inf")).intrinsic("copysign", value), moved)
    made = value.test("uno", value).select(value, moved)
    return made.float32() if value.element == "double" else made


def widened(bits: Value, kind: str) -> Value:
    """float32 numbers of the bits of such ones, i16 lanes."""
    whole = bits.zext("i32")
    if kind == "bf16":
        return (whole << 16).bitcast("float")
    sign = (whole << 16) & _SIGN
    size = ((whole & 0x7FFF) << 13).bitcast("float")
    special = size.bitcast("i32").test("sge", 0x7C00 << 13)
    finite = (size * 2.0**112).bitcast("i32")
    return (special.select(size.bitcast("i32") | _INFINITE, finite) | sign).bitcast("float")


def narrowed(value: Value, kind: str) -> Value:
    """The bits, i16 lanes, of float32 that are such numbers. NaN keeps its sign, and those of its bits that fit, or one more."""
    made = value.bitcast("i32")
    size, sign = made & _REST, (made & _SIGN).lshr(16)
    nan = size.test("sgt", _INFINITE)
    if kind == "bf16":
        bits, lost = size.lshr(16), 0x7F80
    else:
        finite = (size.bitcast("float") * 2.0**-112).bitcast("i32").lshr(13)
        special = size.test("sge", _INFINITE)
        bits, lost = special.select((size.lshr(13) & 0x3FF) | 0x7C00, finite), 0x7C00
    empty = nan & bits.test("eq", lost)
    return (empty.select(bits | 1, bits) | sign).trunc("i16")
