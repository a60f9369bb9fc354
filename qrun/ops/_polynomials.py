"""Functions of float32 as docs/numerics.md (F1) defines them, in the steps of `qrun.declare.polynomials`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qrun.declare import polynomials as table
from qrun.ir import Array
from qrun.ops._float import narrow
from qrun.ops._rounding import fma32

_MAGIC = np.float32(1.5 * 2.0**23)
"""What is added to it is rounded to an integer."""


def pointwise(function: Callable[[Array], Array], wide: Callable[[Array], Array], x: Array) -> Array:
    """The float32 function of every element, rounded to x's type; `wide` of float64."""
    with np.errstate(all="ignore"):
        if x.dtype == np.float64:
            return np.asarray(wide(x))
        made = function(x.astype(np.float32))
        return np.asarray(made if x.dtype == np.float32 else narrow(made, x.dtype))


def polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """The constant term comes first; Horner's rule."""
    made = np.full(x.shape, coefficients[-1], np.float32)
    for coefficient in reversed(coefficients[:-1]):
        made = fma32(made, x, np.float32(coefficient))
    return made


def power_of_two(n: Array) -> Array:
    """2**n for int32 of -126 to 127."""
    return np.asarray((n + 127 << 23).view(np.float32))


def reduced(x: Array, terms: Sequence[float], log2: Sequence[float] = table.LN2) -> tuple[Array, Array]:
    """n, int32, and m with exp(x) = 2**n * (1 + m), for a size of up to 105. terms: of the polynomial."""
    count = fma32(x, np.float32(table.LOG2E), _MAGIC) - _MAGIC
    rest = x
    for part in log2:
        rest = fma32(count, np.float32(-part), rest)
    return count.astype(np.int32), fma32(rest * rest, polynomial(terms, rest), rest)


def _limited(x: Array, low: float, high: float) -> Array:
    """What is nearest to x within these limits; 0 for NaN."""
    return np.clip(np.where(np.isnan(x), np.float32(0), x), np.float32(low), np.float32(high))


def exp(x: Array) -> Array:
    n, m = reduced(_limited(x, *table.EXP_RANGE), table.EXPM1)
    half = n >> 1
    return _with_nan((1 + m) * power_of_two(half) * power_of_two(n - half), x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), numerator and denominator times a power of two. What their sum with 2**n loses counts."""
    n, m = reduced(-_limited(x, *table.SIGMOID_RANGE), table.EXPM1_SHORT)
    one, power = np.float32(2.0**table.SIGMOID_EXPONENT), power_of_two(n + table.SIGMOID_EXPONENT)
    total = power + one
    return _with_nan(one / (fma32(m, power, one - (total - power)) + total), x)


def tanh(x: Array) -> Array:
    """A polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1); the sign is that of x.

    The rest of log(2) does not count where the exponential is large.
    """
    size = _limited(np.abs(x), 0.0, table.TANH_FARTHEST)
    n, m = reduced(size + size, table.EXPM1_SHORT, table.LN2[:1])
    power = power_of_two(n)
    far = 1 - 2 / fma32(m, power, power + 1)
    square = size * size
    near = fma32(size * square, polynomial(table.TANH, square), size)
    return _with_nan(np.copysign(np.where(size < np.float32(table.TANH_NEAR), near, far), x), x)


def _with_nan(made: Array, x: Array) -> Array:
    return np.where(np.isnan(x), np.float32(np.nan), made)
