"""Functions of arrays: those of qrun/formulas, of float32 and of float64, as numerics.md (F41) defines them;
others in float64, or with as many digits as needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, localcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.formulas import single, wide
from qrun.formulas.lanes import Lanes
from qrun.ir import Array
from qrun.ops._float import narrow, round_to_type, widen
from qrun.ops._float import single as attribute
from qrun.ops._rounding import fma32

if TYPE_CHECKING:
    from fractions import Fraction

_BLOCK = 1 << 14
"""Elements per block: they stay in the cache from step to step."""
_FLOAT = np.dtype(np.float32)


def _by_blocks(function: Callable[[Array], Array], x: Array) -> Array:
    """Apply a function in blocks that fit the cache."""
    flat = np.ascontiguousarray(x).reshape(-1)
    made = np.empty(flat.shape, flat.dtype)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            made[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return made.reshape(x.shape)


def _apply(function: Callable[..., Any], x: Array, *others: Any) -> Array:
    """Apply a function of Lanes by blocks; all NaN become one NaN."""
    made = _by_blocks(lambda part: np.asarray(function(Lanes(part), *others).x), x)
    made[np.isnan(made)] = np.nan
    return made


def _fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a * b + c, rounded once."""
    return Lanes(fma32(a.x, b.x, c.x))


def in_single(function: Callable[..., Any], x: Array, *constants: float) -> Array:
    """Applies a float32 function to every element of a float32 array."""
    return _apply(partial(function, fma=_fma), x, *_as_lanes(constants, _FLOAT))


def apply_single(function: Callable[..., Any], double: Callable[[Array], Any], x: Array, *constants: float) -> Array:
    """Applies a float32 function to every element and rounds to x's type; a float64 x uses `double`."""
    if x.dtype == np.float64:
        return _plain(double, x)
    with np.errstate(all="ignore"):
        return round_to_type(in_single(function, x.astype(_FLOAT), *constants), x.dtype)


def apply_double(function: Callable[..., Any], double: Callable[[Array], Any], x: Array, *constants: float) -> Array:
    """Applies a float64 function to every element and rounds once to x's type; a float64 x uses `double`."""
    if x.dtype == np.float64:
        return _plain(double, x)
    with np.errstate(all="ignore"):
        return narrow(in_lanes(function, widen(x), *constants), x.dtype)


def in_lanes(function: Callable[..., Any], x: Array, *constants: float) -> Array:
    """Applies a float64 function to every element of a float64 array."""
    return _apply(function, x, *_as_lanes(constants, np.dtype(np.float64)))


def _plain(double: Callable[[Array], Any], x: Array) -> Array:
    """Apply a float64 function to widened elements."""
    with np.errstate(all="ignore"):
        return np.asarray(double(widen(x)))


def _as_lanes(constants: Sequence[float], dtype: np.dtype[Any]) -> list[Lanes]:
    """Constants as Lanes."""
    return [Lanes(np.array(number, dtype)) for number in constants]


exp, share = partial(in_single, single.exp), partial(in_single, single.share)


def log(x: Array) -> Array:
    """log(x) of float64."""
    return _apply(wide.log, x)


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
    """exp(x) for x up to 0, as sums of rows use it: for float32, 0 below SHARE_LEAST."""
    if x.dtype == np.float64:
        return np.asarray(np.exp(x))
    return share(x)


def erf(x: Array) -> Array:
    """erf of float64, relative error below 1e-15."""
    return _by_blocks(_erf, x)


def erfc(x: Array) -> Array:
    """1 - erf(x) of float64 without cancellation, relative error below 1e-15 + x**2 * 3e-16 where not subnormal."""
    return _by_blocks(_erfc, x)


def _erf(x: Array) -> Array:
    """The error function in float64."""
    far = np.abs(x) >= 1
    near = np.where(far, 0.0, x)
    made = near * _polynomial(_NEAR, np.square(near))
    outer = x[far]
    made[far] = np.copysign(1.0 - _tail(np.abs(outer)), outer)
    return np.asarray(made)


def _erfc(x: Array) -> Array:
    """1 - erf in float64."""
    made = 1.0 - _erf(x)
    far = x >= 1
    made[far] = _tail(x[far])
    return made


def _tail(x: Array) -> Array:
    """erfc(x) for x >= 1."""
    inverse = 1.0 / (x + _SHIFT)
    return np.asarray(np.exp(-np.square(x)) * _polynomial(_FAR, 1.0 - 2.0 * (_SHIFT + 1.0) * inverse) * inverse)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """A polynomial by Horner's scheme; the lowest coefficient comes first."""
    made = np.full(x.shape, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made *= x
        made += coefficient
    return made


def gelu(x: Array) -> Array:
    """x / 2 * (1 + erf(x / sqrt(2))), without cancellation; NaN at -inf."""
    return apply_single(single.gelu, lambda v: 0.5 * v * erfc(v * -math.sqrt(0.5)), x)


def gelu_by_tanh(x: Array) -> Array:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), without cancellation; NaN at -inf."""

    def double(v: Array) -> Array:
        return np.asarray(v / (1.0 + np.exp(-math.sqrt(8 / math.pi) * (v + 0.044715 * v * v * v))))

    return apply_single(single.gelu_by_tanh, double, x)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)) of float64, without overflow."""
    with np.errstate(all="ignore"):
        e = np.exp(-np.abs(x))
        return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def swish(x: Array, alpha: float) -> Array:
    """x / (1 + exp(-alpha * x)), with alpha rounded to float32."""
    slope = attribute(alpha)
    return apply_single(single.swish, lambda v: v / (1.0 + np.exp(-slope * v)), x, slope)


def nearest_share(terms: Mapping[int, int], step: float, scale: float, estimate: float) -> int:
    """1 / (scale * sum over k of terms[k] * exp(k * step)) rounded to nearest, ties to even. estimate: an approximation
    near a tie."""
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
    """The sign of sum(c * exp(k * step)) - bound, with as many digits as it takes."""

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
