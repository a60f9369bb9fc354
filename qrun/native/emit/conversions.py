"""Generated conversions of elements between types, numbers rounded to integers, and quotients of integers.

Numbers of float16 and bfloat16, kept as the float32 numbers that they are:
rounding to them, and to and from their bits.

Instruction sets with a fused multiply-add have an instruction that rounds float32 to float16. All else is done without:
half of the last bit that stays, less one where that bit is not set, is added to the bits of a number as a whole, and
those behind it are cleared; below the least normal number, adding makes the last bit of the sum stand for the least
subnormal one.

What float32 arithmetic makes of such numbers by one addition, subtraction, multiplication, division or square root, and
what is then rounded to their type, is what one rounding gives: 24 bits are twice 11 and two more (Figueroa, When is
double rounding innocuous?, SIGNUM Newsletter 30, 1995).
"""

from __future__ import annotations

from collections.abc import Callable

from qrun.declare.frozen import frozen
from qrun.native.emit.expression import KINDS, SHORT, UNSIGNED
from qrun.native.emit.values import ZERO, Value

_SIGN, _REST, _INFINITE = -(1 << 31), (1 << 31) - 1, 0x7F800000


@frozen
class Format:
    """digits: bits of the significand, the first one included. least: the least normal number. most: from there on
    numbers are infinite; 0 if that is so of float32 as well."""

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
    if value.w.fused and value.element == "float" and form is FORMATS["f16"]:
        return value.test("uno", value).select(value, value.through("half"))
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
    """The bits, i16 lanes, of float32 that are such numbers.
    NaN keeps its sign, and those of its bits that fit, or one more."""
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


def converted(value: Value, source: str, to: str) -> Value:
    """Elements of one kind as those of another: integers as real numbers, rounded once; of integers the low bits; of
    real numbers the integer toward zero."""
    if source in SHORT:
        value, source = widened(value, SHORT[source]), "f"
    if source == to:
        return value
    element, size = KINDS[to]
    if to == "t":
        return value.test("une" if value.real else "ne", ZERO)
    if to in "fd":
        if value.real:
            return value.double() if to == "d" else value.float32()
        return value.uitofp(element) if source in UNSIGNED else value.sitofp(element)
    if value.real:
        return _whole_number(value, to)
    own = 0 if source == "t" else KINDS[source][1]
    if own == size:
        return value
    return value.trunc(element) if own > size else value.extended(element, source not in UNSIGNED)


def _whole_number(x: Value, to: str) -> Value:
    """A real number toward zero, as x86 converts: the least int32, or int64, where it does not fit, whose low bits are
    kept for narrower types; 0 where it is too large for uint32 and uint64."""
    if to not in "mq":
        wide = "i64" if to == "l" else "i32"
        made = _to_signed(x, wide)
        return made.trunc(KINDS[to][0]) if KINDS[to][1] < 4 else made
    element, size = KINDS[to]
    bits = 8 * size
    fits = x.test("oge", 0.0)
    below = x.test("olt", 2.0**bits)
    positive = below.select(fits.select(x, x.like(0.0)), x.like(0.0)).fptoui(element)
    return fits.select(positive, _to_signed(x, element))


def _to_signed(x: Value, element: str) -> Value:
    """A real number toward zero, or the least integer of i32 or i64 where that does not hold it."""
    half = 2.0 ** (int(element[1:]) - 1)
    # The number below -half that still ends there has a fraction: float32 has none of that size, nor float64 for i64.
    low = x.test("ogt", -half - 1) if x.element == "double" and element == "i32" else x.test("oge", -half)
    fits = low & x.test("olt", half)
    return fits.select(fits.select(x, x.like(0.0)).fptosi(element), int(-half))


_WHOLE = 2.0**23
"""From here on float32 numbers are integers."""
Way = Callable[[Value], Value]


def whole(x: Value) -> Value:
    """x rounded to an integer, ties to even, with the sign of x; NaN stays NaN.

    Numbers from 2**23 on are integers. Below it, adding 2**23 rounds; llvm.roundeven is no instruction on every CPU.
    """
    size = abs(x)
    rounded = ((size + _WHOLE) - _WHOLE).intrinsic("copysign", x)
    return size.test("olt", _WHOLE).select(rounded, x)


def beside(x: Value, how: str, step: float) -> Value:
    """The integer next to x in the direction of `step`: `whole`, and one step more where that compares so with x."""
    rounded = whole(x)
    return rounded.test(how, x).select((rounded + step).intrinsic("copysign", x), rounded)


def floor(x: Value) -> Value:
    return beside(x, "ogt", -1.0)


def ceil(x: Value) -> Value:
    return beside(x, "olt", 1.0)


def _of_size(way: Way) -> Way:
    return lambda x: way(abs(x)).intrinsic("copysign", x)


def _halves(how: str) -> Way:
    """The integer below, or the one above where what is left compares so with a half."""

    def way(x: Value) -> Value:
        below = floor(x)
        return (x - below).test(how, 0.5).select(below + 1.0, below)

    return way


ROUNDINGS: dict[str, Way] = {
    "half_even": whole,
    "ceil": ceil,
    "floor": floor,
    "up": _of_size(ceil),
    "down": _of_size(floor),
    "half_up": _of_size(_halves("oge")),
    "half_down": _of_size(_halves("ogt")),
    "sign": lambda x: x.test("oge", ZERO).select(x.like(1.0), x.like(-1.0)),
}
"""up and down: away from 0 and towards it, as half_up and half_down do with halves.
sign: 1, or -1 below 0 and for NaN."""


def quotient(a: Value, b: Value, kind: str) -> Value:
    """a / b toward zero, which wraps.

    Of up to 32 bits the float64 quotient, cut off: what is no integer is further from one than float64 rounds. Of 64
    bits the instruction, which traps for a divisor of 0, and for -1 where the quotient wraps.
    """
    if KINDS[kind][1] < 8:
        return converted(converted(a, kind, "d") / converted(b, kind, "d"), "d", kind)
    zero = b.test("eq", 0)
    if kind in UNSIGNED:
        return a // zero.select(1, b)
    negated = b.test("eq", -1)
    return negated.select(a.like(0) - a, a.op("sdiv", (zero | negated).select(1, b)))


def remainder(a: Value, b: Value, kind: str) -> Value:
    """What division toward zero leaves, of a's sign."""
    return a - quotient(a, b, kind) * b


def modulo(a: Value, b: Value, kind: str) -> Value:
    """What division toward minus infinity leaves, of b's sign."""
    left = remainder(a, b, kind)
    if kind in UNSIGNED:
        return left
    other = left.test("ne", 0) & (left ^ b).test("slt", 0)
    return other.select(left + b, left)
