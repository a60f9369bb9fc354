"""Means, deviations from them, scales and biases, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ops._float import narrow, single
from qrun.ops._op import Array
from qrun.ops._reduce import sum_over


def standardized(x: Array, axes: Sequence[int], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + epsilon), mean, 1 / sqrt(var + epsilon), in float64."""
    with np.errstate(all="ignore"):
        mean = mean_over(x, axes)
        y = np.subtract(x, mean, dtype=np.float64)
        inverse = 1.0 / np.sqrt(mean_over(np.square(y), axes) + single(epsilon))
        y *= inverse
    return y, mean, inverse


def mean_over(x: Array, axes: Sequence[int]) -> Array:
    """The mean over axes, which stay, in float64."""
    return np.asarray(sum_over(x, tuple(axes), True) / np.float64(math.prod(x.shape[a] for a in axes)))


def affine(y: Array, weights: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """y * weights[0] + weights[1], in place, rounded to the type."""
    with np.errstate(all="ignore"):
        y *= weights[0]
        for bias in weights[1:]:
            y += bias
    return narrow(y, dtype)
