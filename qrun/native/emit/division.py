"""Generated quotients and remainders of integers; what they are where the divisor is 0 does not count."""

from __future__ import annotations

from qrun.native.emit.conversions import converted
from qrun.native.emit.expression import KINDS, UNSIGNED
from qrun.native.emit.values import Value


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
