"""Comparisons and logic, also of bits; all exact."""

from __future__ import annotations

import math

import numpy as np

from qrun.ops._elementwise import binary, binary_operator
from qrun.ops._op import Array, Context, one_of, op
from qrun.ops.lowering.float32 import elementwise, function, function_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel

and_ = binary_operator("And", np.logical_and, "A and B of bool tensors", since=7)
or_ = binary_operator("Or", np.logical_or, "A or B of bool tensors", since=7)
xor = binary_operator("Xor", np.logical_xor, "Either A or B of bool tensors", since=7)


@op("Not", since=1, native=elementwise("not", "X"))
def not_(X: Array) -> Array:
    """The negation of a bool tensor."""
    return np.asarray(np.logical_not(X))


bitwise_and = binary_operator("BitwiseAnd", np.bitwise_and, "A & B of integers", since=18, native=False)
bitwise_or = binary_operator("BitwiseOr", np.bitwise_or, "A | B of integers", since=18, native=False)
bitwise_xor = binary_operator("BitwiseXor", np.bitwise_xor, "A ^ B of integers", since=18, native=False)


@op("BitwiseNot", since=18)
def bitwise_not(X: Array) -> Array:
    """All bits of integers inverted."""
    return np.asarray(np.invert(X))


@op("BitShift", since=11)
def bit_shift(X: Array, Y: Array, *, direction: str, ctx: Context) -> Array:
    """X with its bits moved by Y places to the LEFT or RIGHT, with numpy's broadcasting; signed since version 28.

    RIGHT fills with the sign. By a negative or too large Y, all bits leave: -1 for a negative X to the RIGHT, else 0.
    Raises OperatorError for another direction, and for shapes that do not broadcast.
    """
    one_of("direction", direction, ("LEFT", "RIGHT"))
    return binary(np.left_shift if direction == "LEFT" else np.right_shift, X, Y, ctx, ("X", "Y"))


equal = binary_operator(
    "Equal", np.equal, "A = B; NaN equals nothing. Strings since version 19", since=7, compares=True
)
greater = binary_operator("Greater", np.greater, "A > B; False where one is NaN", since=7, compares=True)
greater_or_equal = binary_operator(
    "GreaterOrEqual", np.greater_equal, "A >= B; False where one is NaN", since=12, compares=True
)
less = binary_operator("Less", np.less, "A < B; False where one is NaN", since=7, compares=True)
less_or_equal = binary_operator("LessOrEqual", np.less_equal, "A <= B; False where one is NaN", since=12, compares=True)


@op("IsNaN", since=9, native=function("is_nan"))
def is_nan(X: Array) -> Array:
    """Whether X is NaN."""
    return np.asarray(np.isnan(X))


@op("IsInf", since=10)
def is_inf(X: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Whether X is an infinity of a sign that is asked for. Types without infinities: False."""
    infinite = np.asarray(np.isinf(X))
    if not detect_negative:
        infinite &= ~np.signbit(X)
    if not detect_positive:
        infinite &= np.signbit(X)
    return infinite


@is_inf.native
def _lower_is_inf(site: LoweringContext) -> NativeKernel:
    def looked_for() -> list[float]:
        wanted = (site.attributes["detect_negative"], site.attributes["detect_positive"])
        return [sign * math.inf if is_wanted else math.nan for sign, is_wanted in zip((-1, 1), wanted, strict=True)]

    return function_kernel(site, "is_inf", looked_for)
