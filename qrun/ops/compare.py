"""Comparisons: Equal, Greater, GreaterOrEqual, Less, LessOrEqual, IsNaN, IsInf; the result is bool, exact."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._elementwise import binary
from qrun.ops._native_float32 import elementwise
from qrun.ops._op import op


@op("Equal", since=7, native=elementwise("equal"))
def equal(A: Array, B: Array, *, ctx: Context) -> Array:
    """A = B, with numpy's broadcasting; NaN equals nothing. Strings since version 19.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, Equal-19.
    """
    return binary(np.equal, A, B, ctx, itemsize=1)


@op("Greater", since=7, native=elementwise("greater"))
def greater(A: Array, B: Array, *, ctx: Context) -> Array:
    """A > B, with numpy's broadcasting; False where one is NaN.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, Greater-13.
    """
    return binary(np.greater, A, B, ctx, itemsize=1)


@op("GreaterOrEqual", since=12, native=elementwise("greater_or_equal"))
def greater_or_equal(A: Array, B: Array, *, ctx: Context) -> Array:
    """A >= B, with numpy's broadcasting; False where one is NaN.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, GreaterOrEqual-16.
    """
    return binary(np.greater_equal, A, B, ctx, itemsize=1)


@op("Less", since=7, native=elementwise("less"))
def less(A: Array, B: Array, *, ctx: Context) -> Array:
    """A < B, with numpy's broadcasting; False where one is NaN.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, Less-13.
    """
    return binary(np.less, A, B, ctx, itemsize=1)


@op("LessOrEqual", since=12, native=elementwise("less_or_equal"))
def less_or_equal(A: Array, B: Array, *, ctx: Context) -> Array:
    """A <= B, with numpy's broadcasting; False where one is NaN.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, LessOrEqual-16.
    """
    return binary(np.less_equal, A, B, ctx, itemsize=1)


@op("IsNaN", since=9)
def is_nan(X: Array) -> Array:
    """Whether X is NaN. Source: ONNX operators, IsNaN-20."""
    return np.asarray(np.isnan(X))


@op("IsInf", since=10)
def is_inf(X: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Whether X is an infinity of a sign that is asked for. Types without infinities: False.

    Source: ONNX operators, IsInf-20.
    """
    infinite = np.asarray(np.isinf(X))
    if not detect_negative:
        infinite &= ~np.signbit(X)
    if not detect_positive:
        infinite &= np.signbit(X)
    return infinite
