"""Add, Sub, Mul, Div and Sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._float import broadcast, is_integer, narrow
from qrun.ops._op import op, refuse


def _binary(function: Callable[[Array, Array], Any], a: Array, b: Array, ctx: Context | None) -> Array:
    broadcast(ctx or Context(), (a, b), ("A", "B"))
    with np.errstate(all="ignore"):
        return np.asarray(function(a, b))


@op("Add", since=7)
def add(A: Array, B: Array, *, ctx: Context | None = None) -> Array:
    """A + B of one type, with numpy's broadcasting. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Add-14.
    """
    return _binary(np.add, A, B, ctx)


@op("Sub", since=7)
def sub(A: Array, B: Array, *, ctx: Context | None = None) -> Array:
    """A - B of one type, with numpy's broadcasting. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Sub-14.
    """
    return _binary(np.subtract, A, B, ctx)


@op("Mul", since=7)
def mul(A: Array, B: Array, *, ctx: Context | None = None) -> Array:
    """A * B of one type, with numpy's broadcasting. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Mul-14.
    """
    return _binary(np.multiply, A, B, ctx)


@op("Div", since=7)
def div(A: Array, B: Array, *, ctx: Context | None = None) -> Array:
    """A / B of one type, with numpy's broadcasting.

    Floating point: correctly rounded, IEEE 754 where B is 0. Integers: truncated toward zero; where B is 0, which the
    page leaves open, the result is 0 and is observed; the smallest number divided by -1 wraps to itself.
    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Div-14.
    """
    ctx = ctx or Context()
    if not is_integer(A.dtype):
        return _binary(np.divide, A, B, ctx)
    if ctx.observing:
        zero = B == 0
        count = int(np.count_nonzero(zero))
        if count:
            first = np.unravel_index(int(np.argmax(zero)), zero.shape)
            ctx.observe("division-by-zero", "B", count, B.size, [int(i) for i in first])
    return _binary(_truncated, A, B, ctx)


def _truncated(a: Array, b: Array) -> Array:
    quotient = np.asarray(np.floor_divide(a, b))
    if a.dtype.kind == "i":
        quotient += ((a < 0) != (b < 0)) & (np.remainder(a, b) != 0)
    return quotient


@op("Sum", since=6)
def sum_(*data_0: Array, ctx: Context | None = None) -> Array:
    """The sum of one or more floating-point tensors of one type, with numpy's broadcasting from version 8 on.

    Added in float64 from left to right and rounded once to the type; float64 stays float64.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    Source: ONNX operators, Sum-13.
    """
    ctx = ctx or Context()
    if not data_0:
        raise refuse("Sum has no input", "data_0", "one tensor or more", "none", code="QR205", name="input-count")
    for place, array in enumerate(data_0):
        if ctx.version < 8 and array.shape != data_0[0].shape:
            raise refuse(
                "the inputs' shapes differ",
                f"data_0[{place}]",
                "one shape: Sum broadcasts since opset 8",
                array,
                code="QR208",
                name="shape-mismatch",
            )
    shape = broadcast(ctx, data_0, [f"data_0[{place}]" for place in range(len(data_0))], 8)
    total = np.zeros(shape)
    with np.errstate(all="ignore"):
        total += data_0[0]
        for array in data_0[1:]:
            total += array
    return narrow(total, data_0[0].dtype)
