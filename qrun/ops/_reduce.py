"""Sums, means and deviations in float64, and extremes, over axes: shared by reductions, pools and normalizations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._float import bounds, is_integer, narrow, single, widen, with_zeros
from qrun.ops._functions import exponentials, log


def reduced_shape(data: Array, axes: Sequence[int], keepdims: int) -> list[int]:
    """The shape of the result, which may have elements even if data has none."""
    return [1 if axis in axes else n for axis, n in enumerate(data.shape) if keepdims or axis not in axes]


PARTS = 16
"""The number of partial sums of a row."""


def row_sums(rows: Array) -> Array:
    """The sum of each row of [count, length], float64, in the order of numerics.md, F40: element i belongs to
    partial sum i modulo PARTS, and these are joined by halves. A sum of zeros is +0."""
    count, length = rows.shape
    whole = length - length % PARTS
    with np.errstate(all="ignore"):
        # Along an axis that is not the last one, numpy adds in order.
        parts = np.add.reduce(rows[:, :whole].reshape(count, whole // PARTS, PARTS), axis=1, dtype=np.float64)
        parts[:, : length - whole] += rows[:, whole:]
        while (half := parts.shape[1] // 2) > 0:
            parts = parts[:, :half] + parts[:, half:]
        return np.asarray(parts[:, 0] + 0.0)


def sum_over(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The sum of floating-point numbers in float64, of the elements over `axes` as one row of `row_sums`."""
    if not axes:
        return widen(data)
    return row_sums(_rows(data, axes)).reshape(reduced_shape(data, axes, keepdims))


def product_over(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The product of floating-point numbers in float64, as numpy orders it."""
    if not axes:
        return widen(data)
    made = np.asarray(np.multiply.reduce(_rows(data, axes), axis=1, dtype=np.float64))
    return made.reshape(reduced_shape(data, axes, keepdims))


def _rows(data: Array, axes: tuple[int, ...]) -> Array:
    """[count, length]: the elements over `axes`, however the array lies."""
    perm = [*(axis for axis in range(data.ndim) if axis not in axes), *sorted(axes)]
    count, length = (math.prod(data.shape[axis] for axis in part) for part in (perm[: -len(axes)], perm[-len(axes) :]))
    return np.ascontiguousarray(data.transpose(perm)).reshape(count, length)


def extreme(function: np.ufunc, data: Array, axes: tuple[int, ...], keepdims: bool, empty: float) -> Array:
    """The greatest or least element over `axes`, by numpy.maximum or numpy.minimum; NaN if there is one; -0 is less
    than +0.

    empty: the result without elements, an infinity; for integers, the type's limit of the same sign.
    """
    if data.dtype == np.bool_:
        initial: Any = empty > 0
    else:
        initial = bounds(data.dtype)[int(empty > 0)] if is_integer(data.dtype) else data.dtype.type(empty)
    with np.errstate(all="ignore"):
        made = np.asarray(function.reduce(data, axis=axes, keepdims=keepdims, initial=initial), data.dtype)
        if is_integer(data.dtype) or data.dtype == np.bool_ or (made != 0).all():
            return made
        joined = np.all if function is np.maximum else np.any
        return with_zeros(made, joined(np.signbit(data), axis=axes, keepdims=keepdims))


def standardize(x: Array, axes: Sequence[int], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + epsilon), mean, 1 / sqrt(var + epsilon), in float64."""
    with np.errstate(all="ignore"):
        mean = mean_over(x, axes)
        y = np.subtract(x, mean, dtype=np.float64)
        inverse = 1.0 / np.sqrt(mean_over(np.square(y), axes) + single(epsilon))
        y *= inverse
    return y, mean, inverse


def mean_over(x: Array, axes: Sequence[int]) -> Array:
    """The mean over axes, which are kept with length 1, in float64."""
    return np.asarray(sum_over(x, tuple(axes), True) / np.float64(math.prod(x.shape[a] for a in axes)))


def inverse_rms(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    """1 / sqrt(mean of squares + epsilon), in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(1.0 / np.sqrt(mean_over(np.square(widen(x)), axes) + single(epsilon)))


def affine(y: Array, weights: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """y * weights[0] + weights[1], in place, rounded to the type."""
    with np.errstate(all="ignore"):
        y *= weights[0]
        for bias in weights[1:]:
            y += bias
    return narrow(y, dtype)


def shares(x: Array, logarithms: bool = False) -> Array:
    """Softmax of the rows of a matrix, or its logarithms, in x's type: float32 or float64. Sums are float64."""
    with np.errstate(all="ignore"):
        apart = x - x.max(axis=-1, keepdims=True)
        made = exponentials(apart)
        total = row_sums(made)[:, None]
        if logarithms:
            return np.asarray(apart - log(total).astype(x.dtype))
        return np.asarray(made * (1.0 / total).astype(x.dtype))
