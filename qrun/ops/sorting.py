"""TopK and Unique."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ops._float import axis_in, is_integer, widen
from qrun.ops._op import Array, Context, op, refuse
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


@op("Unique", since=11)
def unique(X: Array, *, axis: int | None = None, sorted: int = 1, ctx: Context) -> tuple[Array, Array, Array, Array]:
    """The elements of X, or its parts along an axis, each once: Y, indices, inverse_indices, counts.

    In ascending order (parts by their elements, in order), or, unless sorted, in that of their first places. indices int64:
    those places; inverse_indices: for each element its place in Y; counts: how often it is there. -0 equals 0; each NaN is
    an element of its own, after all numbers. Exact.
    Raises OperatorError for an axis that does not exist. Source: ONNX operators, Unique-28.
    """
    if sorted not in (0, 1):
        raise refuse(f"sorted is {sorted}", "sorted", "0, 1", str(sorted), code="QR204")
    place = None if axis is None else axis_in(axis, X.ndim)
    ctx.claim((X.size + 1,), 2 * X.itemsize + 40)
    rows = X.reshape(-1, 1) if place is None else np.moveaxis(X, place, 0)
    lines = rows.reshape(len(rows), -1) if rows.size else np.zeros((len(rows), 0), X.dtype)
    order = _order(lines)
    ranked = lines[order]
    fresh = np.ones(len(order), bool)
    if len(order) > 1:
        fresh[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    groups = np.cumsum(fresh) - 1
    firsts = order[fresh]
    inverse = np.empty(len(order), np.int64)
    inverse[order] = groups
    counts = np.bincount(groups, minlength=len(firsts)).astype(np.int64) if len(order) else np.zeros(0, np.int64)
    if not sorted:
        by_place = np.argsort(firsts, kind="stable")
        rank = np.empty_like(by_place)
        rank[by_place] = np.arange(len(by_place))
        firsts, counts, inverse = firsts[by_place], counts[by_place], rank[inverse] if len(rank) else inverse
    taken: Any = X.reshape(-1)[firsts] if place is None else np.take(X, firsts, axis=place)
    return taken, firsts.astype(np.int64), inverse, counts


def _order(lines: Array) -> Array:
    """Places of the lines in ascending order, of equal ones the first first."""
    if lines.dtype == object:
        texts = lines.tolist()
        places = list(range(len(texts)))
        places.sort(key=texts.__getitem__)
        return np.array(places, np.int64)
    if not lines.shape[1]:
        return np.arange(len(lines))
    keys = lines.astype(np.float32) if lines.dtype.kind == "V" else lines
    return np.lexsort(tuple(keys[:, column] for column in reversed(range(keys.shape[1]))))
