"""Add, Sub, Mul, Div, Sum and Mean."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._elementwise import binary, observe_zeros, total
from qrun.ops._float import is_integer, narrow
from qrun.ops._native_float32 import elementwise
from qrun.ops._op import op


@op("Add", since=7, form="broadcast", native=elementwise("add"))
def add(A: Array, B: Array, *, ctx: Context) -> Array:
    """A + B of one type, with numpy's broadcasting. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Add-14.
    """
    return binary(np.add, A, B, ctx)


@op("Sub", since=7, form="broadcast", native=elementwise("sub"))
def sub(A: Array, B: Array, *, ctx: Context) -> Array:
    """A - B of one type, with numpy's broadcasting. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Sub-14.
    """
    return binary(np.subtract, A, B, ctx)


@op("Mul", since=7, form="broadcast", native=elementwise("mul"))
def mul(A: Array, B: Array, *, ctx: Context) -> Array:
    """A * B of one type, with numpy's broadcasting. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Mul-14.
    """
    return binary(np.multiply, A, B, ctx)


@op("Div", since=7, form="broadcast", native=elementwise("div"))
def div(A: Array, B: Array, *, ctx: Context) -> Array:
    """A / B of one type, with numpy's broadcasting.

    Floating point: correctly rounded, IEEE 754 where B is 0. Integers: truncated toward zero; where B is 0, which the
    page leaves open, the result is 0 and is observed; the smallest number divided by -1 wraps to itself.
    Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Div-14.
    """
    if not is_integer(A.dtype):
        return binary(np.divide, A, B, ctx)
    observe_zeros(B, "B", ctx)
    return binary(_truncated, A, B, ctx)


def _truncated(a: Array, b: Array) -> Array:
    quotient = np.asarray(np.floor_divide(a, b))
    if a.dtype.kind == "i":
        quotient += ((a < 0) != (b < 0)) & (np.remainder(a, b) != 0)
    return quotient


@op("Sum", since=6, form="broadcast")
def sum_(*data_0: Array, ctx: Context) -> Array:
    """The sum of one or more floating-point tensors of one type, with numpy's broadcasting from version 8 on.

    Added in float64 from left to right and rounded once to the type; float64 stays float64.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    Source: ONNX operators, Sum-13.
    """
    return narrow(total("Sum", data_0, ctx), data_0[0].dtype)


@op("Mean", since=6, form="broadcast")
def mean(*data_0: Array, ctx: Context) -> Array:
    """The mean of one or more floating-point tensors of one type, with numpy's broadcasting from version 8 on.

    Added in float64 from left to right, divided, and rounded once to the type; float64 stays float64.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    Source: ONNX operators, Mean-13.
    """
    made = total("Mean", data_0, ctx)
    made /= len(data_0)
    return narrow(made, data_0[0].dtype)
