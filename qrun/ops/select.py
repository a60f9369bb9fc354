"""Where, NonZero, Compress and Trilu: elements chosen by a condition or by their place."""

from __future__ import annotations

import numpy as np

from qrun.ir.types import type_name
from qrun.ops._float import axis_in, broadcast
from qrun.ops._native_float32 import elementwise
from qrun.ops._op import Array, Context, op, refuse
from qrun.ops._shape import claim, scalar


@op("Where", since=9, native=elementwise("where", "condition", "X", "Y"))
def where(condition: Array, X: Array, Y: Array, *, ctx: Context) -> Array:
    """X where condition, bool, is true, else Y, of X's type; the three broadcast as in numpy. Exact.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, Where-16.
    """
    broadcast(ctx, (condition, X, Y), ("condition", "X", "Y"), X.itemsize)
    return np.where(condition, X, Y)


@op("NonZero", since=9)
def non_zero(X: Array, *, ctx: Context) -> Array:
    """The indices of the elements that are not 0, False or empty, row-major: int64 [r, their number].

    NaN is not 0. A scalar gives [0,1], or [0,0] if it is 0. Source: ONNX operators, NonZero-13.
    """
    with np.errstate(all="ignore"):
        found = np.asarray(("" if X.dtype.kind == "O" else 0) != X)
    count = int(np.count_nonzero(found))
    shape = claim(ctx, (X.ndim, count), np.dtype(np.int64), "X")
    return np.asarray(np.nonzero(found), np.int64) if X.ndim else np.zeros(shape, np.int64)


@op("Compress", since=9, form="moves")
def compress(input: Array, condition: Array, *, axis: int | None = None, ctx: Context) -> Array:
    """The slices of input along `axis` for which condition is true; without an axis the elements of the flattened input.

    condition: bool [n], n at most the axis' length; what lies beyond it is dropped. Exact.
    Raises OperatorError for a condition of another shape or type, and an axis that does not exist.
    Source: ONNX operators, Compress-28.
    """
    place = None if axis is None else axis_in(axis, input.ndim)
    length = input.size if place is None else input.shape[place]
    if condition.dtype != np.bool_ or condition.ndim != 1 or condition.size > length:
        raise refuse(
            "condition does not fit input",
            "condition",
            f"bool [n], n up to {length}",
            f"{type_name(condition.dtype)} [{','.join(map(str, condition.shape))}]",
            code="QR208",
        )
    chosen = np.flatnonzero(condition)
    ctx.claim((chosen.size, input.size // max(length, 1)), input.itemsize)
    return np.take(input.reshape(-1) if place is None else input, chosen, axis=place or 0)


@op("Trilu", since=14)
def trilu(input: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """input [...,n,m] with zeros below diagonal k (upper), or above it; k: an int64 scalar, 0 if omitted. Exact.

    Diagonal k holds the elements [...,i,i+k]. Raises OperatorError for rank 1 or less and for k that is not a scalar.
    Source: ONNX operators, Trilu-14.
    """
    if input.ndim < 2:
        raise refuse("input has no matrices", "input", "[...,n,m]", input, code="QR208")
    rows, columns = input.shape[-2:]
    diagonal = max(-rows, min(columns, 0 if k is None else scalar(k, "k")))
    distance = np.arange(columns) - np.arange(rows).reshape(-1, 1)
    kept = distance >= diagonal if upper else distance <= diagonal
    return np.where(kept, input, np.array("" if input.dtype.kind == "O" else 0, input.dtype))
