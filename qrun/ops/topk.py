"""TopK."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context, refuse
from qrun.ops._float import axis_in, is_integer, widen
from qrun.ops._op import op
from qrun.ops._shape import scalar


@op("TopK", since=1)
def top_k_1(X: Array, *, axis: int = -1, k: int, ctx: Context) -> tuple[Array, Array]:
    """TopK-10 with k as an attribute. Source: ONNX operators, TopK-1."""
    return _top_k(X, k, axis, True, "k", ctx)


@op("TopK", since=10)
def top_k(
    X: Array, K: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1, ctx: Context
) -> tuple[Array, Array]:
    """The K largest or smallest elements along an axis, Values, and their places there, Indices (int64).

    In descending or ascending order, also where sorted = 0 leaves it open; of equals the first comes first.
    NaN counts as larger than every number. K: an int64 scalar, 0 to the axis' length. Exact.
    Raises OperatorError for another K and for an axis outside [-r, r-1].
    Source: ONNX operators, TopK-24.
    """
    return _top_k(X, scalar(K, "K"), axis, bool(largest), "K", ctx)


def _top_k(x: Array, k: int, axis: int, largest: bool, name: str, ctx: Context) -> tuple[Array, Array]:
    place = axis_in(axis, x.ndim)
    size = x.shape[place]
    if not 0 <= k <= size:
        raise refuse(f"{k} elements of {size} are asked for", name, f"0 to {size}, as axis {place} of X", k)
    ctx.claim(x.shape, 8 + x.itemsize)
    keys = x if is_integer(x.dtype) or x.dtype == np.float32 else widen(x)
    ascending = np.argsort(np.flip(keys, place) if largest else keys, axis=place, kind="stable")
    order = size - 1 - np.flip(ascending, place) if largest else ascending
    chosen = np.take(order, np.arange(k), axis=place).astype(np.int64, copy=False)
    return np.take_along_axis(x, chosen, axis=place), chosen
