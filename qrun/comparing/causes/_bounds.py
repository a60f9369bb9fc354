"""Running error bounds: how far a formula computed in float32 steps can be from its real value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ops._float import narrow

ULPS = 8
"""Units in the last place within which runtimes compute functions; the worst that were seen are Asin's, 4.1."""
OFF = 2.0**-21
"""By how much Sigmoid, Tanh and Erf inside a formula may be off, absolute; of onnxruntime's Tanh 2^-21.4 was seen."""
UNIT = 2.0**-24
_TINY = 2.0**-126
"""Smaller numbers may become 0."""


@frozen
class ErrorBound:
    """A real value, and by how much what is computed may be off, both float64.
    Each operation rounds once to float32."""

    value: Array
    error: Array

    @classmethod
    def of(cls, array: Any) -> ErrorBound:
        """What is known exactly."""
        value = np.asarray(array, np.float64)
        return cls(value, np.zeros(value.shape))

    @classmethod
    def nearly(cls, array: Any) -> ErrorBound:
        """What is known exactly, where functions of it are not recomputed, but bounded."""
        value = np.asarray(array, np.float64)
        return cls(value, np.full(value.shape, _TINY if np.asarray(array).dtype.kind not in "iu" else 0.0))

    @classmethod
    def rounded(cls, value: Array, error: Array, units: float = 1) -> ErrorBound:
        return cls(np.asarray(value), np.asarray(error + units * UNIT * (np.abs(value) + error) + _TINY))

    def __add__(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: ErrorBound) -> ErrorBound:
        error = np.abs(self.value) * other.error + (np.abs(other.value) + other.error) * self.error
        return ErrorBound.rounded(self.value * other.value, error)

    def __truediv__(self, other: ErrorBound) -> ErrorBound:
        value, least = self.value / other.value, np.abs(other.value) - other.error
        error = (self.error + np.abs(value) * other.error) / np.where(least > 0, least, np.nan)
        return ErrorBound.rounded(value, error)

    def through(self, function: Callable[[Any], Any], units: float = 2 * ULPS, off: float = 0.0) -> ErrorBound:
        """A monotonic function of it. units: of rounding that it is off by, relative to its value; off: absolute."""
        value = np.asarray(function(self.value))
        ends = [np.abs(function(self.value + sign * self.error) - value) for sign in (-1, 1)]
        return ErrorBound.rounded(value, np.maximum(*ends) + off, units)

    def total(self, axes: tuple[int, ...]) -> ErrorBound:
        """The sum along axes, which stay; in any order."""
        count = math.prod(self.value.shape[axis] for axis in axes)
        size = np.sum(np.abs(self.value) + self.error, axis=axes, keepdims=True)
        error = np.sum(self.error, axis=axes, keepdims=True) + 2 * count * UNIT * size
        return ErrorBound.rounded(np.sum(self.value, axis=axes, keepdims=True), error)

    def mean(self, axes: tuple[int, ...]) -> ErrorBound:
        return self.total(axes) * ErrorBound.of(1 / max(math.prod(self.value.shape[axis] for axis in axes), 1))

    def shaped(self, shape: Sequence[int]) -> ErrorBound:
        return ErrorBound(self.value.reshape(shape), self.error.reshape(shape))

    def rounds_to(self, theirs: Array) -> bool:
        """Whether each of these numbers is a value within the bound, rounded to their narrower type."""
        with np.errstate(all="ignore"):
            low, high = (narrow(self.value + sign * self.error, theirs.dtype) for sign in (-1, 1))
            nan = np.isnan(theirs) & np.isnan(self.value.astype(theirs.dtype))
        return theirs.shape == low.shape and bool((((low <= theirs) & (theirs <= high)) | nan).all())

    def share(self, mine: Array, theirs: Array) -> float | None:
        """The largest part of the bounds of two computations that their results are apart by; None if one is beyond
        them, or they are not finite in the same places.
        """
        finite = np.isfinite(mine) & np.isfinite(theirs)
        with np.errstate(all="ignore"):
            apart = np.abs(mine.astype(np.float64) - theirs)[finite]
            limit = np.broadcast_to(2 * self.error, mine.shape)[finite]
            same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
            if not same[~finite].all() or not (apart <= limit).all():
                return None
            return float(np.max(np.divide(apart, limit, out=np.zeros_like(apart), where=limit > 0), initial=0.0))


ONE = ErrorBound.of(1.0)
Args = Sequence[ErrorBound | None]
Rule = Callable[[Node, Args], ErrorBound]


def number(node: Node, name: str, default: float) -> ErrorBound:
    value = node.attributes.get(name, default)
    assert isinstance(value, int | float)
    return ErrorBound.of(np.float32(value))


def given(args: Args, place: int) -> ErrorBound:
    found = args[place]
    assert found is not None
    return found


def size(x: ErrorBound) -> ErrorBound:
    return ErrorBound(np.abs(x.value), x.error)


def root(x: ErrorBound) -> ErrorBound:
    return x.through(lambda v: np.sqrt(np.maximum(v, 0)))


def exp(x: ErrorBound) -> ErrorBound:
    return x.through(np.exp)
