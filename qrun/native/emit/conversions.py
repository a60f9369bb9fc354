"""Generated conversions of elements between types, numbers rounded to integers, and quotients of integers."""

from __future__ import annotations

from collections.abc import Callable

from qrun.native.emit.expression import KINDS, SHORT, UNSIGNED
from qrun.native.emit.narrow import widened
from qrun.native.emit.values import ZERO, Value


def converted(value: Value, source: str, to: str) -> Value:
    """Elements of one kind as those of another: integers as real numbers, rounded once; of integers the low bits; of real
    numbers the integer toward zero."""
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
    """A real number toward zero, as x86 converts: the least int32, or int64, where it does not fit, whose low bits are kept
    for narrower types; 0 where it is too large for uint32 and uint64."""
    if to not in "mq":
        wide = "i64" if to == "l" else "i32"
        made = _signed(x, wide)
        return made.trunc(KINDS[to][0]) if KINDS[to][1] < 4 else made
    element, size = KINDS[to]
    bits = 8 * size
    fits = x.test("oge", 0.0)
    below = x.test("olt", 2.0**bits)
    positive = below.select(fits.select(x, x.like(0.0)), x.like(0.0)).fptoui(element)
    return fits.select(positive, _signed(x, element))


def _signed(x: Value, element: str) -> Value:
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
"""up and down: away from 0 and towards it, as half_up and half_down do with halves. sign: 1, or -1 below 0 and for NaN."""


def quotient(a: Value, b: Value, kind: str) -> Value:
    """a / b toward zero, which wraps.

    Of up to 32 bits the float64 quotient, cut off: what is no integer is further from one than float64 rounds. Of 64 bits
    the instruction, which traps for a divisor of 0, and for -1 where the quotient wraps.
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
