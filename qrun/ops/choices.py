"""Hardmax, Shrink and SwiGLU."""

from __future__ import annotations

import math

import numpy as np

from qrun.ops._body import node
from qrun.ops._float import axis_in, bounds, is_integer, narrow, single, widen
from qrun.ops._op import Array, Context, misfit, op
from qrun.ops.lowering.float32 import function


@op("Hardmax", since=1)
def hardmax_1(input: Array, *, axis: int = 1, ctx: Context) -> Array:
    """1 at the first greatest element of all axes from `axis` on, else 0; as Hardmax-13.
    Source: ONNX operators, Hardmax-11."""
    first = axis_in(axis, input.ndim)
    matrix = input.reshape(math.prod(input.shape[:first]), math.prod(input.shape[first:]))
    return _hardmax(matrix, 1, ctx).reshape(input.shape)


@op("Hardmax", since=13)
def hardmax(input: Array, *, axis: int = -1, ctx: Context) -> Array:
    """1 at the first greatest element along one axis, else 0; NaN is greater than all. Exact.

    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _hardmax(input, axis_in(axis, input.ndim), ctx)


def _hardmax(x: Array, axis: int, ctx: Context) -> Array:
    ctx.claim(x.shape, x.itemsize + 4)
    lines = np.moveaxis(x, axis, -1)
    rows = widen(lines).reshape(-1, x.shape[axis]) if x.size else np.zeros((0, 0))
    made = np.zeros(rows.shape, x.dtype)
    if x.size:
        made[np.arange(len(rows)), np.argmax(rows, axis=1)] = 1
    return np.ascontiguousarray(np.moveaxis(made.reshape(lines.shape), -1, axis))


@op("Shrink", since=9, native=function("shrink", "bias", "lambd"))
def shrink(input: Array, *, bias: float = 0.0, lambd: float = 0.5, ctx: Context) -> Array:
    """x + bias below -lambd, x - bias above lambd, else 0; NaN gives 0.

    In float64 and rounded once; integers toward 0, saturating.
    """
    ctx.claim(input.shape, 8)
    with np.errstate(all="ignore"):
        wide, step, limit = widen(input), single(bias), single(lambd)
        made = np.where(wide < -limit, wide + step, np.where(wide > limit, wide - step, 0.0))
        if not is_integer(input.dtype):
            return narrow(made, input.dtype)
        low, high = bounds(input.dtype)
        cut = np.trunc(np.nan_to_num(made, nan=0.0))
        kept = np.where((cut > float(low)) & (cut < float(high)), cut, 0.0).astype(input.dtype)
        return np.asarray(np.where(cut >= float(high), high, np.where(cut <= float(low), low, kept)))


@op("SwiGLU", since=28)
def swiglu(A: Array, B: Array, *, alpha: float = 1.0, ctx: Context) -> Array:
    """Swish(A) * B, as the nodes Swish and Mul of ai.onnx, each rounded. A and B of one shape.

    Raises OperatorError for shapes that differ.
    """
    if A.shape != B.shape:
        raise misfit("B does not fit A", "B", "as A, " + str(list(A.shape)), B)
    return np.asarray(node("Mul", [node("Swish", [A], ctx, alpha=alpha), B], ctx))
