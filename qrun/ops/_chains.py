"""Float32 sums of products, defined by their order (docs/numerics.md, F1).

k is cut into blocks of BLOCK. A block is a chain of fused multiply-adds, k ascending, each rounded once to float32;
blocks are added in order. float64 stands in for the fused multiply-add that numpy lacks: a product of float32 numbers
is exact there, and rounding its sum with a third number to float64 and then to float32 is one rounding, but where
float64 stops exactly in the middle between two float32 numbers. Those few are made again with what float64 lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._float import narrow, product, widen
from qrun.ops._rounding import DROPPED, LEAST_NORMAL, MIDDLE, fma32
from qrun.shapes import broadcast_shapes

BLOCK = 256
"""Elements of k that are one chain."""
_FLOAT = np.dtype(np.float32)
_ELEMENTS = 1 << 14
"""Sums that are made together: they stay in the second-level cache."""
_FINITE = np.uint64(0x7FEFFFFFFFFFFFFF)
"""The bits of the greatest finite float64."""
_LEAST = 2.0**-149


def chained_products(
    a: Array,
    b: Array,
    dtype: np.dtype[Any],
    alpha: float = 1.0,
    first: Array | None = None,
    bias: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """alpha * a @ b + first + bias as F1 orders it, rounded to `dtype`.

    a [...,M,K], b [...,K,N] as numpy.matmul takes them, of one type of up to 32 bits. alpha: a float32 number; each
    block is added with one fused multiply-add, `fma(alpha, block, y)`. first: what y is before the first block; bias:
    what is added after the last one; both float32, and both broadcast to the result of operands of two axes or more.
    NaN has one bit pattern. With dtype float64, all of it is plain float64, and the order is numpy's.
    """
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    lead = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    whole = (*lead, left.shape[-2], right.shape[-1])
    shape = (*lead, *((a.shape[-2],) if a.ndim > 1 else ()), *((b.shape[-1],) if b.ndim > 1 else ()))
    with np.errstate(all="ignore"):
        if dtype == np.float64:
            y = product(a, b).reshape(whole)
            y = y * alpha if alpha != 1 else y
            for added in (first, bias):
                y = y if added is None else y + added
            return np.asarray(y).reshape(shape)
        y = _blocks(left, right, whole, alpha, first, block)
        y = y if bias is None else y + bias.astype(_FLOAT)
        y[np.isnan(y)] = np.nan
        return (y if dtype == _FLOAT else narrow(y, dtype)).reshape(shape)


def _blocks(a: Array, b: Array, shape: tuple[int, ...], alpha: float, first: Array | None, block: int) -> Array:
    y = None if first is None else np.broadcast_to(first.astype(_FLOAT), shape)
    for k in range(0, max(a.shape[-1], 1), block):
        sums = _chains(widen(a[..., k : k + block]), widen(b[..., k : k + block, :]), shape)
        if alpha != 1:
            y = np.float32(alpha) * sums if y is None else fma32(np.float32(alpha), sums, y)
        else:
            y = sums if y is None else y + sums
    assert y is not None
    return y


def _chains(a: Array, b: Array, shape: tuple[int, ...]) -> Array:
    """One block of all results, float32. a, b: float64."""
    made = np.zeros(shape, _FLOAT)
    if not made.size or not a.shape[-1]:
        return made
    exact = _step(a) * _step(b) >= _LEAST
    *lead, rows, columns = shape
    a, b = np.broadcast_to(a, (*lead, *a.shape[-2:])), np.broadcast_to(b, (*lead, *b.shape[-2:]))
    high = max(1, _ELEMENTS // max(columns, 1))
    wide = max(1, _ELEMENTS // min(high, rows))
    for index in np.ndindex(*lead):
        for row in range(0, rows, high):
            for column in range(0, columns, wide):
                part = *index, slice(row, row + high), slice(column, column + wide)
                made[part] = _chain(a[*index, row : row + high], b[*index, :, column : column + wide], exact)
    return made


def _chain(a: Array, b: Array, exact: bool) -> Array:
    """A chain of [M,K] and [K,N]. exact: whether sums below the normal float32 numbers need no rounding."""
    turned, b = np.ascontiguousarray(a.T)[:, :, None], np.ascontiguousarray(b)
    sums = np.zeros((a.shape[0], b.shape[1]))
    single = np.empty(sums.shape, _FLOAT)
    terms, bits = np.empty_like(sums), np.empty(sums.shape, np.int64)
    for left, right in zip(turned, b, strict=True):
        np.multiply(left, right, out=terms)
        terms += sums
        np.bitwise_and(terms.view(np.int64), DROPPED, out=bits)
        doubtful = bits == MIDDLE
        if not exact:
            doubtful |= (np.abs(terms) < LEAST_NORMAL) & (terms != 0)
        single[...] = terms
        if doubtful.any():
            row, column = np.nonzero(doubtful)
            single[row, column] = fma32(left[row, 0], right[column], sums[row, column])
        sums[...] = single
    return single


def _step(x: Array) -> float:
    """A power of two of which all numbers are multiples."""
    sizes = np.abs(x).view(np.uint64) - np.uint64(1)  # 0 becomes the greatest
    least = np.uint64(sizes.min(initial=_FINITE)) + np.uint64(1)
    exponent = int(np.frexp(least.view(np.float64))[1])
    return float(np.ldexp(1.0, exponent - 24)) if least <= _FINITE else np.inf
