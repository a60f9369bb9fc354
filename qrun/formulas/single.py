"""Float32 functions (numerics.md, F41), in the steps of `qrun.formulas.table`; `fma` is one of these.

NaN has any bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from qrun.formulas import table
from qrun.formulas.lanes import Number

Fma = Callable[[Any, Any, Any], Any]
"""a * b + c, rounded once."""
_MAGIC, _MAGIC_BITS = 1.5 * 2.0**23, 0x4B400000
"""Adding this number rounds to an integer, which is then in the low bits."""


def polynomial(coefficients: Sequence[float], x: Number, fma: Fma) -> Any:
    """A polynomial by Horner's scheme, with fused multiply-adds; the lowest coefficient comes first."""
    made = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made = fma(made, x, x.like(coefficient))
    return made


def _power_of_two(n: Number) -> Any:
    """2**n for i32 from -126 to 127."""
    return ((n + 127) << 23).bitcast("float")


def _reduce_argument(
    x: Number, terms: Sequence[float], fma: Fma, log2: Sequence[float] = table.LN2, less: Any = None
) -> tuple[Any, Any]:
    """n, i32, and m with exp(x - less) = 2**n * (1 + m), for |x| up to 105. terms: of the polynomial; less: tiny, if
    given."""
    raised = fma(x, x.like(table.LOG2E), x.like(_MAGIC))
    count, rest = raised - _MAGIC, x
    for part in log2:
        rest = fma(count, x.like(-part), rest)
    rest = rest if less is None else rest - less
    return raised.bitcast("i32") - _MAGIC_BITS, fma(rest * rest, polynomial(terms, rest, fma), rest)


def _clamp(x: Number, low: float, high: float) -> Any:
    """x, or the nearest number within these limits; NaN stays NaN."""
    raised = x.test("olt", low).select(low, x)
    return raised.test("ogt", high).select(high, raised)


def exp(x: Number, fma: Fma) -> Any:
    """The exponential function in float32."""
    n, m = _reduce_argument(_clamp(x, *table.EXP_RANGE), table.EXPM1, fma)
    half = n.ashr(1)
    return (1.0 + m) * _power_of_two(half) * _power_of_two(n - half)


def share(x: Number, fma: Fma) -> Any:
    """exp(x) for x up to 0; 0 below SHARE_LEAST."""
    n, m = _reduce_argument(x, table.EXPM1_SHORT, fma)
    return x.test("olt", table.SHARE_LEAST).select(0.0, (1.0 + m) * _power_of_two(n))


def sigmoid(x: Number, fma: Fma) -> Any:
    """1 / (1 + exp(-x)), numerator and denominator times a power of two. It adds what their sum with 2**n loses."""
    n, m = _reduce_argument(-_clamp(x, *table.SIGMOID_RANGE), table.EXPM1_SHORT, fma)
    one, power = x.like(2.0**table.SIGMOID_EXPONENT), _power_of_two(n + table.SIGMOID_EXPONENT)
    total = power + one
    return one / (fma(m, power, one - (total - power)) + total)


def tanh(x: Number, fma: Fma) -> Any:
    """A polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1); the sign is that of x.

    The low part of log(2) does not matter where the exponential is large.
    """
    size = abs(x)
    size = size.test("ogt", table.TANH_FARTHEST).select(table.TANH_FARTHEST, size)
    n, m = _reduce_argument(size + size, table.EXPM1_SHORT, fma, table.LN2[:1])
    power = _power_of_two(n)
    far = 1.0 - 2.0 / fma(m, power, power + 1.0)
    square = size * size
    near = fma(size * square, polynomial(table.TANH, square, fma), size)
    return size.test("olt", table.TANH_NEAR).select(near, far).copysign(x)


def erf(x: Number, fma: Fma) -> Any:
    """A polynomial near 0, and one beyond; the sign is that of x."""
    size = abs(x)
    size = size.test("ogt", table.ERF_FARTHEST).select(table.ERF_FARTHEST, size)
    near = fma(size, polynomial(table.ERF, size * size, fma), size)
    far = polynomial(table.ERF_FAR, size - table.ERF_MIDDLE, fma)
    return size.test("olt", table.ERF_NEAR).select(near, far).copysign(x)


def gelu(x: Number, fma: Fma) -> Any:
    """x / 2 * (1 + erf(x / sqrt(2))) without cancellation: |x| times the tail beyond |x| is the part below x."""
    size = abs(x)
    near = size.test("ogt", table.TAIL_FARTHEST).select(table.TAIL_FARTHEST, size)
    square = near * near
    lost = fma(near, near, -square)
    n, m = _reduce_argument(square * -0.5, table.EXPM1, fma, less=lost * 0.5)
    power, (above, below) = _power_of_two(n), table.TAIL
    low = fma(m, power, power) * near * polynomial(above, near, fma) / polynomial(below, near, fma)
    low = size.test("ogt", table.TAIL_FARTHEST).select(0.0, low)
    made = x.test("olt", 0.0).select(-low, x - low)
    return x.test("oeq", -math.inf).select(math.nan, made)


def swish(x: Number, slope: Any, fma: Fma) -> Any:
    """x * sigmoid(slope * x) in float32."""
    return x * sigmoid(slope * x, fma)


def gelu_by_tanh(x: Number, fma: Fma) -> Any:
    """x / (1 + exp(-sqrt(8 / pi) * (x + 0.044715 * x**3)))."""
    high, low = table.GELU_BY_TANH
    return x * sigmoid(x * fma(x * x, x.like(low), x.like(high)), fma)
