"""Functions of float32 that are not large, as those of gates are not: float64 in few steps.

Each returns what float64 rounds to, and an i1 in each lane: where that may not be the result, because the number is
large, or because the middle between two float32 is near. Those lanes are made again, in the steps of numbers.py.
"""

from __future__ import annotations

import math

from qrun.native.emit import tabled
from qrun.native.emit.numbers import beside_a_middle, side_by_side
from qrun.native.emit.values import MAGIC64, Value

FARTHEST = 80.0
"""The greatest size of a number; no result but of tanh is then so small that float32 has fewer bits."""
_NEAR = 1 << 12
"""Last places of a float64 to the middle between two float32: twice what the functions may be off, 2**-42 of them."""
POLYNOMIALS = {
    "sigmoid": (
        0.4999999999995511, 0.16666666666662586, 0.04166666678626573, 0.00833333334420298, 0.0013888839110572009,
        0.00019841224599656011, 2.4867870179687846e-05, 2.7617564785876196e-06,
    ),
    "tanh": (
        0.5, 0.16666666666648303, 0.041666666666651364, 0.008333333353717156, 0.0013888888905871347,
        0.0001984120875699232, 2.4801536409064087e-05, 2.762510200538823e-06, 2.761379555451996e-07,
    ),
}  # fmt: skip
"""(exp(r) - 1 - r) / r**2 in powers of r, for |r| <= log(2) / 2: what has its values where Chebyshev's polynomial is
0."""
_FINE_TERMS = {"sigmoid": 4, "tanh": 5}
"""With powers of 2**(1/16) from a table, |r| <= log(2) / 32: how many terms of the Taylor series are enough."""


def quick_sigmoid(x: Value) -> tuple[Value, Value]:
    """1 / (1 + exp(-x))."""
    power, small = _powers(x.double() * -1.0, "sigmoid")
    made = 1.0 / power.fma(small, power + 1.0)
    return made.single(), beside_a_middle(made, _NEAR) | abs(x).test("ugt", FARTHEST)


def quick_tanh(x: Value) -> tuple[Value, Value]:
    """(e - 1) / (e + 1), e = exp(2 x). Tiny numbers have no middle near: they round to themselves."""
    power, small = _powers((wide := x.double()) + wide, "tanh")
    less = power.fma(small, power - 1.0)
    made = less / (less + 2.0)
    return made.single().intrinsic("copysign", x), beside_a_middle(made, _NEAR) | abs(x).test("ugt", FARTHEST)


QUICK = {"sigmoid": quick_sigmoid, "tanh": quick_tanh}


def _powers(x: Value, function: str) -> tuple[Value, Value]:
    """2**n and p with exp(x) = 2**n * (1 + p), for a size of up to 160.
    n is a multiple of 1 / 16 where there are tables."""
    steps = tabled.SIZE if x.w.permutes else 1
    raised = x.fma(steps / math.log(2), MAGIC64)
    rest = (raised - MAGIC64).fma(-math.log(2) / steps, x)
    taylor = [1 / math.factorial(n) for n in range(2, 2 + _FINE_TERMS[function])]
    terms, square = taylor if steps > 1 else POLYNOMIALS[function], rest * rest
    return tabled.power(raised, steps), square.fma(side_by_side(terms, rest, square), rest)
