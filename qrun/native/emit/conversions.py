"""Generated conversions of elements between types, as Cast makes them."""

from __future__ import annotations

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
