"""Integer matrix products through BLAS: exact, because a bound on the real operands keeps every partial sum in range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context

EXACT32 = 2**24
"""float32 holds every integer up to here, so sums bounded by it are exact in any order."""


class Weights:
    """The left operand of exact products: centred codes (code - zero point) [..., M, K], float32.

    limit: largest magnitude of the other operand's centred codes.
    bound: no sum over K exceeds it. `chunks` are slices of K whose products are each exact in float32.
    """

    def __init__(self, values: Array, limit: int) -> None:
        self.values = values
        size = np.abs(self.values)
        total = float(size.sum(axis=-1, dtype=np.float64).max(initial=0.0)) * limit
        k = self.values.shape[-1]
        self.bound = total
        self.chunks = [slice(0, k)]
        self.dtype: type = np.float32
        if total >= EXACT32:
            pieces = int(total // EXACT32) + 1
            edges = [round(i * k / pieces) for i in range(pieces + 1)]
            self.chunks = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
            worst = max(float(size[..., c].sum(axis=-1, dtype=np.float64).max(initial=0.0)) for c in self.chunks)
            if pieces > 4 or worst * limit >= EXACT32:
                self.chunks, self.dtype = [slice(0, k)], np.float64
                self.values = self.values.astype(np.float64)

    def times(self, other: Array) -> Array:
        """values @ other, exact integers: float32 if their bound allows, else float64.

        other: centred codes [..., K, N], float32.
        """
        if self.dtype is np.float64:
            return np.asarray(np.matmul(self.values, other.astype(np.float64)))
        if len(self.chunks) == 1:
            return np.asarray(np.matmul(self.values, other))
        total: Array | None = None
        for c in self.chunks:
            part = np.matmul(self.values[..., c], other[..., c, :])
            total = part.astype(np.float64) if total is None else np.add(total, part, out=total)
        assert total is not None
        return total


def centred(codes: Array, zero_point: Array | None) -> Array:
    """code - zero point in float32 (exact: at most 9 bits); the zero point broadcasts."""
    values = codes.astype(np.float32)
    if zero_point is not None and np.any(zero_point):
        values -= zero_point.astype(np.float32)
    return values


def magnitude(dtype: np.dtype[Any], zero_point: Array | None) -> int:
    """The largest |code - zero point| that 8-bit codes of this type can have."""
    info = np.iinfo(dtype)
    if zero_point is None or not zero_point.size:
        return max(abs(int(info.min)), int(info.max))
    return max(int(zero_point.max()) - int(info.min), int(info.max) - int(zero_point.min()))


def add_bias(acc: Array, bias: Array | None, bound: float) -> tuple[Array, float]:
    """acc + bias exactly; returns the sum and its bound."""
    if bias is None:
        return acc, bound
    bound += float(np.abs(bias.astype(np.float64)).max(initial=0.0))
    if acc.dtype == np.float32 and bound >= EXACT32:
        acc = acc.astype(np.float64)
    acc += bias.astype(acc.dtype)
    return acc, bound


def wrap32(
    acc: Array,
    bound: float,
    ctx: Context,
    name: str,
    place: Callable[[tuple[int, ...]], Sequence[int]] = lambda index: index,
) -> Array:
    """Two's-complement wrap to int32 where the exact sum leaves it; observed, at `place` of the first one's index."""
    if bound < 2**31:
        return acc
    outside = (acc >= 2.0**31) | (acc < -(2.0**31))
    count = int(np.count_nonzero(outside))
    if count:
        first = np.unravel_index(int(np.argmax(outside)), outside.shape)
        ctx.observe("accumulator-wrap", name, count, acc.size, place(tuple(int(i) for i in first)))
        acc = acc.astype(np.int64).astype(np.int32).astype(np.float64)
    return acc
