"""Functions in float64, or with as many digits as it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qrun.formulas import single
from qrun.ir import Array
from qrun.ops import _polynomials
from qrun.ops._float import single as attribute

if TYPE_CHECKING:
    from fractions import Fraction

_BLOCK = 1 << 14
_NEAR = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(19))
"""erf(x) / x in powers of x**2, for |x| < 1."""
_SHIFT = 3.0
_FAR = (
    0.885637101864549, -0.47966144308433484, 0.22387273334256325, -0.08762571665292865, 0.027317987192582105,
    -0.005992101444648031, 0.0005111598748078276, 0.00020565983291438275, -8.285365097926504e-05,
    2.2201334925851605e-06, 6.227274095929632e-06, -1.115539835155743e-06, -4.4449389906874936e-07,
    1.5277939953747662e-07, 3.592315647726054e-08, -1.8556685554008643e-08, -3.621647649520109e-09,
    2.2212991812778053e-09, 4.145778223602259e-10, -2.4416062858086426e-10, -3.431427860687693e-11,
    1.77513129479398e-11,
)  # fmt: skip
"""(x + 3) exp(x**2) erfc(x) in powers of s = 1 - 8 / (x + 3), for x >= 1: the Chebyshev series of degree 21 in s."""


def exponentials(x: Array) -> Array:
    """exp(x) for x up to 0, as rows add them: of float32 0 below SHARE_LEAST."""
    if x.dtype == np.float64:
        return np.asarray(np.exp(x))
    return _polynomials.share(x)


def erf(x: Array) -> Array:
    """erf of float64, relative error below 1e-15."""
    return _by_blocks(_erf, x)


def erfc(x: Array) -> Array:
    """1 - erf(x) of float64 without cancellation, relative error below 1e-15 + x**2 * 3e-16 where not subnormal."""
    return _by_blocks(_erfc, x)


def _by_blocks(function: Callable[[Array], Array], x: Array) -> Array:
    flat = x.reshape(-1)
    made = np.empty(flat.shape)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            made[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return made.reshape(x.shape)


def _erf(x: Array) -> Array:
    far = np.abs(x) >= 1
    near = np.where(far, 0.0, x)
    made = near * _polynomial(_NEAR, np.square(near))
    outer = x[far]
    made[far] = np.copysign(1.0 - _tail(np.abs(outer)), outer)
    return np.asarray(made)


def _erfc(x: Array) -> Array:
    made = 1.0 - _erf(x)
    far = x >= 1
    made[far] = _tail(x[far])
    return made


def _tail(x: Array) -> Array:
    """erfc(x) for x >= 1."""
    inverse = 1.0 / (x + _SHIFT)
    return np.asarray(np.exp(-np.square(x)) * _polynomial(_FAR, 1.0 - 2.0 * (_SHIFT + 1.0) * inverse) * inverse)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    made = np.full(x.shape, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made *= x
        made += coefficient
    return made


def gelu(x: Array) -> Array:
    """x / 2 * (1 + erf(x / sqrt(2))), without cancellation; NaN at -inf."""
    return _polynomials.rounded_single(single.gelu, lambda v: 0.5 * v * erfc(v * -math.sqrt(0.5)), x)


def gelu_by_tanh(x: Array) -> Array:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), without cancellation; NaN at -inf."""

    def double(v: Array) -> Array:
        return np.asarray(v / (1.0 + np.exp(-math.sqrt(8 / math.pi) * (v + 0.044715 * v * v * v))))

    return _polynomials.rounded_single(single.gelu_by_tanh, double, x)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)) of float64, without overflow."""
    with np.errstate(all="ignore"):
        e = np.exp(-np.abs(x))
        return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def swish(x: Array, alpha: float) -> Array:
    """x / (1 + exp(-alpha * x)), alpha as float32 holds it."""
    slope = attribute(alpha)
    return _polynomials.rounded_single(single.swish, lambda v: v / (1.0 + np.exp(-slope * v)), x, slope)


def nearest_share(terms: Mapping[int, int], step: float, scale: float, estimate: float) -> int:
    """1 / (scale * sum over k of terms[k] * exp(k * step)) rounded to nearest, ties to even.
    estimate: of it, near a tie."""
    from fractions import Fraction

    below = round(estimate - 0.5)
    side = exp_sum_exceeds(terms, step, 1 / (Fraction(2 * below + 1, 2) * Fraction(scale)))
    return below + (below % 2 if not side else (side < 0) == (scale > 0))


def exp_sum_exceeds(counts: Mapping[int, int], step: float, bound: Fraction) -> int:
    """Sign of  sum over k of counts[k] * exp(k * step)  -  bound; counts are positive, `step` is finite.

    Zero exactly where both are equal: for step = 0, or where only k = 0 occurs (e to a non-zero rational power is
    irrational, and so is every such sum: Lindemann & Weierstrass). Everything else is computed with growing
    precision until the sign is certain.
    """
    rational = sum(c for k, c in counts.items() if not k or not step)
    rest = {k: c for k, c in counts.items() if k and step}
    gap = bound - rational
    if not rest or gap <= 0:
        return (gap < 0) - (gap > 0) if not rest else 1
    return _compare(rest, step, gap)


def _compare(counts: Mapping[int, int], step: float, bound: Fraction) -> int:
    from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, localcontext

    exact = Context(prec=400, rounding=ROUND_HALF_EVEN, traps=[Inexact])
    arguments = {exact.multiply(Decimal(k), Decimal(step)): c for k, c in counts.items()}
    digits = 40
    while True:
        with localcontext(Context(prec=digits, rounding=ROUND_HALF_EVEN, traps=[])):
            total = sum((c * x.exp() for x, c in arguments.items()), Decimal(0))
            ratio = total * bound.denominator / bound.numerator
            error = Decimal(10) ** (6 - digits) * (1 + len(arguments))
            if ratio > 1 + error or ratio < 1 - error:
                return 1 if ratio > 1 else -1
        digits *= 2
