"""Functions of angles in IR, of float64 vectors that were float32, all with relative errors below 2**-49.

Cody and Waite, Software Manual for the Elementary Functions, 1980 (what is left of an angle after so many right ones)
"""

from __future__ import annotations

import math

from qrun.native.emit.numbers import series
from qrun.native.emit.values import MAGIC64, ZERO, Value

WIDEST = 2.0**22
"""The size of an angle up to which the parts of a right one tell what is left."""
_RIGHT = (1.5707963267341256, 6.07710049817245e-11, 8.333742918520879e-20)
"""pi / 2 in parts: the first two have 31 bits, of which up to 2**22 times are exact."""
_SINE = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(1, 8))
"""(sin(r) / r - 1) / r**2 in powers of r**2, for |r| <= pi / 4."""
_COSINE = tuple((-1) ** n / math.factorial(2 * n) for n in range(1, 9))
"""(cos(r) - 1) / r**2 in powers of r**2, for |r| <= pi / 4."""
_ARC = tuple((-1) ** n / (2 * n + 1) for n in range(19))
"""atan(t) / t in powers of t**2, for |t| <= tan(pi / 8)."""
_EIGHTH = math.tan(math.pi / 8)


def _turned(x: Value) -> tuple[Value, Value, Value]:
    """How many right angles an angle of up to WIDEST has, as an i64, and sine and cosine of what is left of it."""
    raised = x.fma(2 / math.pi, MAGIC64)
    count, rest = raised - MAGIC64, x
    for part in _RIGHT:
        rest = count.fma(-part, rest)
    square = rest * rest
    sine = (rest * square).fma(series(_SINE, square), rest).intrinsic("copysign", rest)
    return raised.bitcast("i64"), sine, square.fma(series(_COSINE, square), 1.0)


def _known(x: Value, made: Value) -> Value:
    """1 for larger angles, of which only the reference knows the function."""
    return too_wide(x).select(1.0, made)


def too_wide(x: Value) -> Value:
    """i1 in each lane: whether it is a finite angle beyond WIDEST."""
    size = abs(x)
    return size.test("ogt", WIDEST) & size.test("olt", math.inf)


def _sine(x: Value, quarters: int) -> Value:
    """The sine of an angle and so many right ones."""
    count, sine, cosine = _turned(x)
    count = count + quarters
    made = (count & 1).test("ne", ZERO).select(cosine, sine)
    return _known(x, (count & 2).test("ne", ZERO).select(-made, made))


def sin(x: Value) -> Value:
    return _sine(x, 0)


def cos(x: Value) -> Value:
    return _sine(x, 1)


def tan(x: Value) -> Value:
    count, sine, cosine = _turned(x)
    odd = (count & 1).test("ne", ZERO)
    return _known(x, odd.select(-cosine, sine) / odd.select(sine, cosine))


def _arc(a: Value, b: Value) -> Value:
    """The angle, from 0 to a right one, whose tangent is a / b; neither is negative, and not both are 0."""
    steep = a.test("ogt", b)
    low, high = steep.select(b, a), steep.select(a, b)
    wide = low.test("ogt", high * _EIGHTH)
    t = wide.select(low - high, low) / wide.select(low + high, high)
    made = t.fma(series(_ARC, t * t), wide.select(t.like(math.pi / 4), t.like(0.0)))
    return steep.select(math.pi / 2 - made, made)


def atan(x: Value) -> Value:
    return _arc(abs(x), x.like(1.0)).intrinsic("copysign", x)


def asin(x: Value) -> Value:
    """The angle whose tangent is |x| / sqrt(1 - x**2), with the sign of x; NaN beyond 1."""
    size = abs(x)
    return _arc(size, ((1.0 - size) * (1.0 + size)).sqrt()).intrinsic("copysign", x)


def acos(x: Value) -> Value:
    """Twice the angle whose tangent is sqrt((1 - x) / (1 + x)); NaN beyond 1."""
    made = _arc((1.0 - x).sqrt(), (1.0 + x).sqrt())
    return made + made
