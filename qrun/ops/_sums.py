"""Sums of products of floats as real numbers, rounded once.

float64 has no products of float32 numbers to round, only sums: what BLAS makes of them is within a reach of the real
sum that Cauchy and Schwarz bound by the lengths of row and column. Where both ends of that round alike, the result is
known; elsewhere the sum is made exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._float import narrow, product, widen
from qrun.ops._rounding import DoubleDouble, Floats, odd, plus, two_product
from qrun.shapes import broadcast_shapes

UNIT = 2.0**-53
_MARGIN = 1 + 2.0**-20
"""More than the relative error of a length, and of a reach."""
_BLOCK = 1 << 16
_TERMS = 1 << 20


def rounded_products(
    a: Array, b: Array, dtype: np.dtype[Any], alpha: float = 1.0, addend: Array | None = None
) -> Array:
    """alpha * a @ b + addend, each element's real value rounded once to `dtype`, ties to even; a sum of 0 is +0.

    a [...,M,K], b [...,K,N] as numpy.matmul takes them, of one type of up to 32 bits. alpha: a float32 number. addend:
    float64, of at most 48 bits each; it broadcasts to the result of operands of two axes or more. Infinities and NaN
    are as in IEEE 754, but NaN has one bit pattern. With dtype float64, sums are plain float64: no type is wider.
    """
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    lead = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*lead, *((a.shape[-2],) if a.ndim > 1 else ()), *((b.shape[-1],) if b.ndim > 1 else ()))
    if 0 in shape:
        return np.zeros(shape, dtype)
    sums = product(a, b).reshape(*lead, left.shape[-2], right.shape[-1])
    if dtype == np.float64:
        with np.errstate(all="ignore"):
            sums = sums * alpha if alpha != 1 else sums
            return np.asarray(sums if addend is None else sums + addend).reshape(shape)
    rows, columns = _lengths(left, -1)[..., None], _lengths(right, -2)[..., None, :]
    operands = [_spread(x, (*lead, *x.shape[-2:])) for x in (left, right, rows, columns)]
    made = np.empty(sums.shape, dtype)
    added = np.broadcast_to(np.zeros(()) if addend is None else addend, sums.shape)
    with np.errstate(all="ignore"):
        _round(sums, operands, alpha, added, made)
    return made.reshape(shape)


def _spread(x: Array, shape: tuple[int, ...]) -> Array:
    return x if x.shape == shape else np.broadcast_to(x, shape)


def _round(sums: Floats, operands: Sequence[Array], alpha: float, addend: Floats, made: Array) -> None:
    """Fill `made`, a part at a time. operands: a and b,
    and the Euclidean norms of a's rows [...,M,1] and of b's columns [...,1,N]."""
    if sums.size > _BLOCK and len(sums) > 1:
        flat = sums.ndim == 2
        step = max(1, _BLOCK * len(sums) // sums.size) if flat else 1
        for first in range(0, len(sums), step):
            part = slice(first, first + step) if flat else first
            own = [x if flat and number % 2 else x[part] for number, x in enumerate(operands)]
            _round(sums[part], own, alpha, addend[part], made[part])
        return
    a, b, rows, columns = operands
    sizes = rows * columns
    reach = sizes * (abs(alpha) * (a.shape[-1] + 8) * UNIT * _MARGIN) + np.abs(addend) * (8 * UNIT)
    doubtful = decided(sums * alpha + addend, reach, made)
    if np.count_nonzero(doubtful) > made.size >> 8:
        steps = steps_of(a, -1)[..., None] * steps_of(b, -2)[..., None, :]
        whole = doubtful & (sizes * _MARGIN <= steps * 2.0**53)
        made[whole] = narrow(odd(plus(two_product(sums[whole], alpha), addend[whole])) + 0.0, made.dtype)
        doubtful &= ~whole
    _settle(np.nonzero(doubtful), a, b, alpha, addend, made)


def decided(total: Floats, reach: Floats, made: Array) -> Array:
    """Fill `made` with `total`, rounded. Returns a mask of the elements that may be rounded wrongly,
    as the real values are only known to lie within `reach` of `total`."""
    total = total + 0.0
    low, high = narrow(total - reach, made.dtype), narrow(total + reach, made.dtype)
    made[...] = narrow(total, made.dtype)
    made[np.isnan(total)] = np.nan
    bits = f"u{made.itemsize}"
    return np.asarray((low.view(bits) != high.view(bits)) & np.isfinite(total))


def _settle(where: tuple[Array, ...], a: Array, b: Array, alpha: float, addend: Floats, made: Array) -> None:
    """Compute the elements at these places exactly, and store them in `made`."""
    *lead, rows, columns = where
    step = max(1, _TERMS // max(a.shape[-1], 1))
    turned = np.swapaxes(b, -1, -2)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        place = tuple(index[part] for index in where)
        outer = tuple(index[part] for index in lead)
        made[place] = exact_products(
            a[(*outer, rows[part])], turned[(*outer, columns[part])], made.dtype, alpha, addend[place]
        )


def exact_products(a: Array, b: Array, dtype: np.dtype[Any], alpha: float, addend: Array) -> Array:
    """alpha * sum(a * b) + addend of rows a and b [count, K], finite ones, each rounded once.
    addend: float64 [count]."""
    factors = widen(a) * alpha
    hi, lo = two_product(factors, widen(b))
    terms = np.concatenate([hi, addend[:, None]] if alpha == 1 else [hi, lo, addend[:, None]], axis=1)
    sums = np.array([math.fsum(row) for row in terms.tolist()], np.float64)
    rest = np.zeros(len(sums))
    below, above = (narrow(np.nextafter(sums, end), dtype) for end in (-np.inf, np.inf))
    for place in np.flatnonzero(below != above):
        rest[place] = math.fsum([*terms[place].tolist(), -sums[place]])
    return narrow(odd(DoubleDouble(sums, rest)) + 0.0, dtype)


def _lengths(x: Array, axis: int) -> Floats:
    wide = widen(x)
    return np.asarray(np.sqrt(np.einsum("...ij,...ij->...i" if axis == -1 else "...ij,...ij->...j", wide, wide)))


def steps_of(x: Array, axis: int) -> Floats:
    """The greatest power of two of which all numbers of a row or column are multiples; infinity for zeros alone."""
    fraction, exponent = np.frexp(widen(x))
    whole = (fraction * 2.0**24).astype(np.int64)
    steps = np.where(whole == 0, np.inf, np.ldexp((whole & -whole).astype(np.float64), exponent - 24))
    return np.asarray(steps.min(axis=axis, initial=np.inf))
