"""Generated conversions of elements between types, rounding to integers, and division of integers.

float16 and bfloat16 numbers are kept in float32 lanes. This module rounds float32 and float64 to them, and converts
them to and from their bits.

Instruction sets with a fused multiply-add have an instruction that rounds float32 to float16. All other rounding is
integer arithmetic on the bits: half of the last kept bit, minus one where that bit is not set, is added, and the bits
below are cleared. Below the least normal number, a constant is added and subtracted whose last bit is the least
subnormal number.

One float32 addition, subtraction, multiplication, division or square root of such numbers, rounded to their type, gives
the same as a single rounding: 24 bits are twice 11 and two more (Figueroa, When is double rounding innocuous?, SIGNUM
Newsletter 30, 1995).
"""

from __future__ import annotations

from collections.abc import Callable

from qrun.declare.frozen import frozen
from qrun.native.emit.expression import KINDS, SHORT, UNSIGNED
from qrun.native.emit.values import ZERO, Value

_SIGN, _REST, _INFINITE = -(1 << 31), (1 << 31) - 1, 0x7F800000


@frozen
class Format:
    """A float type narrower than float32. digits: bits of the significand, including the implicit one. least: the least
    normal number. most: numbers from here on round to infinity; 0 if the range is that of float32."""

    digits: int
    least: float
    most: float

    @property
    def unit(self) -> float:
        """The least number above 0."""
        return self.least * 2.0 ** (1 - self.digits)


FORMATS = {"f16": Format(11, 2.0**-14, 2.0**16), "bf16": Format(8, 2.0**-126, 0.0)}
"""The formats, by the names that kernel specifications use."""
_KINDS = {"double": ("i64", 53), "float": ("i32", 24)}


def round_to_format(value: Value, form: Format) -> Value:
    """Round float64 or float32 to a number of this format, ties to even; the result is float32. NaN stays as it is."""
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


def widen_to_float32(bits: Value, kind: str) -> Value:
    """The float32 values of float16 or bfloat16 numbers, given as their bits in i16 lanes."""
    whole = bits.zext("i32")
    if kind == "bf16":
        return (whole << 16).bitcast("float")
    sign = (whole << 16) & _SIGN
    size = ((whole & 0x7FFF) << 13).bitcast("float")
    special = size.bitcast("i32").test("sge", 0x7C00 << 13)
    finite = (size * 2.0**112).bitcast("i32")
    return (special.select(size.bitcast("i32") | _INFINITE, finite) | sign).bitcast("float")


def narrow_to_bits(value: Value, kind: str) -> Value:
    """The bits, in i16 lanes, of float32 values that are float16 or bfloat16 numbers.
    NaN keeps its sign and the payload bits that fit; if none of those is set, the lowest bit is."""
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


def convert(value: Value, source: str, to: str) -> Value:
    """Convert elements from kind `source` to kind `to`. Integers become real numbers, rounded once. Integers become
    narrower ones by keeping the low bits. Real numbers become integers by truncation toward zero."""
    if source in SHORT:
        value, source = widen_to_float32(value, SHORT[source]), "f"
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
    return value.trunc(element) if own > size else value.extend(element, source not in UNSIGNED)


def _whole_number(x: Value, to: str) -> Value:
    """Truncate a real number toward zero, as x86 does. A number that does not fit becomes the least int32, or int64;
    narrower types keep its low bits. A number too large for uint32 or uint64 becomes 0."""
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
    """Truncate a real number toward zero to i32 or i64; the least integer of that type where it does not fit."""
    half = 2.0 ** (int(element[1:]) - 1)
    # Numbers below -half that truncate to it have a fraction; at that size float32 has none, nor float64 for i64.
    low = x.test("ogt", -half - 1) if x.element == "double" and element == "i32" else x.test("oge", -half)
    fits = low & x.test("olt", half)
    return fits.select(fits.select(x, x.like(0.0)).fptosi(element), int(-half))


_WHOLE = 2.0**23
"""From here on float32 numbers are integers."""
Way = Callable[[Value], Value]


def whole(x: Value) -> Value:
    """x rounded to an integer, ties to even, with the sign of x; NaN stays NaN.

    Numbers from 2**23 on are integers. Below, adding 2**23 rounds; llvm.roundeven is not an instruction on every CPU.
    """
    size = abs(x)
    rounded = ((size + _WHOLE) - _WHOLE).intrinsic("copysign", x)
    return size.test("olt", _WHOLE).select(rounded, x)


def whole_beside(x: Value, how: str, step: float) -> Value:
    """The integer next to x in the direction of `step`: `whole(x)`, plus `step` where it compares `how` with x."""
    rounded = whole(x)
    return rounded.test(how, x).select((rounded + step).intrinsic("copysign", x), rounded)


def floor(x: Value) -> Value:
    return whole_beside(x, "ogt", -1.0)


def ceil(x: Value) -> Value:
    return whole_beside(x, "olt", 1.0)


def _of_size(way: Way) -> Way:
    """Apply a function of non-negative numbers to abs(x) and give the result x's sign."""
    return lambda x: way(abs(x)).intrinsic("copysign", x)


def _halves(how: str) -> Way:
    """Round to the integer below, or to the one above where the fraction compares `how` with 0.5."""

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
"""up and down round away from 0 and towards it; half_up and half_down round to nearest, and halves in these directions.
sign: 1, or -1 below 0 and for NaN."""


def quotient(a: Value, b: Value, kind: str) -> Value:
    """a / b, truncated toward zero; it wraps on overflow.

    Up to 32 bits this truncates the float64 quotient: a quotient that is no integer is further from one than float64's
    rounding. 64 bits use the instruction; since it traps for divisors of 0, and -1 on overflow, those are replaced.
    """
    if KINDS[kind][1] < 8:
        return convert(convert(a, kind, "d") / convert(b, kind, "d"), "d", kind)
    zero = b.test("eq", 0)
    if kind in UNSIGNED:
        return a // zero.select(1, b)
    negated = b.test("eq", -1)
    return negated.select(a.like(0) - a, a.op("sdiv", (zero | negated).select(1, b)))


def remainder(a: Value, b: Value, kind: str) -> Value:
    """The remainder of division toward zero; it has the sign of a."""
    return a - quotient(a, b, kind) * b


def modulo(a: Value, b: Value, kind: str) -> Value:
    """The remainder of division toward minus infinity; it has the sign of b."""
    left = remainder(a, b, kind)
    if kind in UNSIGNED:
        return left
    other = left.test("ne", 0) & (left ^ b).test("slt", 0)
    return other.select(left + b, left)
