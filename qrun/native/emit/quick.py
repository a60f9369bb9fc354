"""Sigmoid and tanh of numbers that are not large, in few steps."""

from __future__ import annotations

import math

from qrun.native.emit import tabled
from qrun.native.emit.numbers import beside_a_middle, series
from qrun.native.emit.values import MAGIC64, Value

FARTHEST = 80.0
"""The greatest size of a number; no result but of tanh is then so small that float32 has fewer bits."""
_NEAR = 1 << 12
"""Last places of a float64 to the middle between two float32: twice what the functions may be off, 2**-42 of them."""
_TERMS = {"sigmoid": (10, 4), "tanh": (10, 5)}
"""How many terms of exp beyond the first two are enough, without and with powers of 2**(1/16) from a table."""


def quick_sigmoid(x: Value) -> tuple[Value, Value]:
    """1 / (1 + exp(-x))."""
    power, small = _powers(x.double() * -1.0, "sigmoid")
    made = 1.0 / power.fma(small, power + 1.0)
    return made.single(), beside_a_middle(made, _NEAR) | abs(x).test("ugt", FARTHEST)


def quick_tanh(x: Value) -> tuple[Value, Value]:
    """(e - 1) / (e + 1), e = exp(2 x). Tiny numbers have no middle near: they round to themselves."""
    wide = x.double()
    power, small = _powers(wide + wide, "tanh")
    less = power.fma(small, power - 1.0)
    made = less / (less + 2.0)
    return made.single().intrinsic("copysign", x), beside_a_middle(made, _NEAR) | abs(x).test("ugt", FARTHEST)


QUICK = {"sigmoid": quick_sigmoid, "tanh": quick_tanh}
"""Functions of float32 that are not large, as those of gates are not: float64 in few steps.

Each returns what float64 rounds to, and an i1 in each lane: where that may not be the result, because the number is large, or
because the middle between two float32 is near. Those lanes are made again, in the steps of numbers.py.
"""


def _powers(x: Value, function: str) -> tuple[Value, Value]:
    """2**n and p with exp(x) = 2**n * (1 + p), for a size of up to 160. n is a multiple of 1 / 16 where there are tables."""
    table = x.w.permutes
    steps = tabled.SIZE if table else 1
    raised = x.fma(steps / math.log(2), MAGIC64)
    rest = (raised - MAGIC64).fma(-math.log(2) / steps, x)
    terms = _TERMS[function][table]
    small = (rest * rest).fma(series([1 / math.factorial(n) for n in range(2, 2 + terms)], rest), rest)
    return tabled.power(raised, steps), small
