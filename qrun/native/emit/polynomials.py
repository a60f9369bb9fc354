"""Functions of float32 vectors as docs/numerics.md (F1) defines them, in the steps of `qrun.declare.polynomials`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.declare import polynomials as table
from qrun.native.emit.numbers import fma_once
from qrun.native.emit.spec import MAGIC_BITS
from qrun.native.emit.values import MAGIC32, Value


def polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """The constant term comes first; Horner's rule."""
    made = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made = fma_once(made, x, x.like(coefficient))
    return made


def power_of_two(n: Value) -> Value:
    """2**n for i32 of -126 to 127."""
    return ((n + 127) << 23).bitcast("float")


def reduced(x: Value, terms: Sequence[float], log2: Sequence[float] = table.LN2) -> tuple[Value, Value]:
    """n, i32, and m with exp(x) = 2**n * (1 + m), for a size of up to 105. terms: of the polynomial."""
    raised = fma_once(x, x.like(table.LOG2E), x.like(MAGIC32))
    count, rest = raised - MAGIC32, x
    for part in log2:
        rest = fma_once(count, x.like(-part), rest)
    return raised.bitcast("i32") - MAGIC_BITS, fma_once(rest * rest, polynomial(terms, rest), rest)


def limited(x: Value, low: float, high: float) -> Value:
    """x, or what is nearest to it within these limits; NaN stays NaN."""
    raised = x.test("olt", low).select(low, x)
    return raised.test("ogt", high).select(high, raised)


def exp(x: Value) -> Value:
    """e**x."""
    n, m = reduced(limited(x, *table.EXP_RANGE), table.EXPM1)
    half = n.ashr(1)
    return one_nan((1.0 + m) * power_of_two(half) * power_of_two(n - half))


def share(x: Value) -> Value:
    """exp(x) of x up to 0; 0 below SHARE_LEAST."""
    n, m = reduced(x, table.EXPM1_SHORT)
    return x.test("olt", table.SHARE_LEAST).select(0.0, (1.0 + m) * power_of_two(n))


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)), numerator and denominator times a power of two. What their sum with 2**n loses counts.
    NaN has any bits."""
    n, m = reduced(-limited(x, *table.SIGMOID_RANGE), table.EXPM1_SHORT)
    one, power = x.like(2.0**table.SIGMOID_EXPONENT), power_of_two(n + table.SIGMOID_EXPONENT)
    total = power + one
    return one / (fma_once(m, power, one - (total - power)) + total)


def tanh(x: Value) -> Value:
    """A polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1); the sign is that of x. NaN has any bits."""
    size = abs(x)
    size = size.test("ogt", table.TANH_FARTHEST).select(table.TANH_FARTHEST, size)
    n, m = reduced(size + size, table.EXPM1_SHORT, table.LN2[:1])
    power = power_of_two(n)
    far = 1.0 - 2.0 / fma_once(m, power, power + 1.0)
    square = size * size
    near = fma_once(size * square, polynomial(table.TANH, square), size)
    return size.test("olt", table.TANH_NEAR).select(near, far).intrinsic("copysign", x)


def one_nan(made: Value) -> Value:
    """The same, but every NaN has one bit pattern."""
    return made.test("uno", made).select(math.nan, made)
