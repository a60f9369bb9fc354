"""And, Or, Xor, Not; on bits BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift. All exact."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context, refuse
from qrun.ops._elementwise import binary
from qrun.ops._native_float32 import elementwise
from qrun.ops._op import op


@op("And", since=7, native=elementwise("and"))
def and_(A: Array, B: Array, *, ctx: Context) -> Array:
    """A and B of bool tensors, with numpy's broadcasting.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, And-7.
    """
    return binary(np.logical_and, A, B, ctx)


@op("Or", since=7, native=elementwise("or"))
def or_(A: Array, B: Array, *, ctx: Context) -> Array:
    """A or B of bool tensors, with numpy's broadcasting.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, Or-7.
    """
    return binary(np.logical_or, A, B, ctx)


@op("Xor", since=7, native=elementwise("xor"))
def xor(A: Array, B: Array, *, ctx: Context) -> Array:
    """Either A or B of bool tensors, with numpy's broadcasting.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, Xor-7.
    """
    return binary(np.logical_xor, A, B, ctx)


@op("Not", since=1, native=elementwise("not", "X"))
def not_(X: Array) -> Array:
    """The negation of a bool tensor. Source: ONNX operators, Not-1."""
    return np.asarray(np.logical_not(X))


@op("BitwiseAnd", since=18)
def bitwise_and(A: Array, B: Array, *, ctx: Context) -> Array:
    """A & B of integers, with numpy's broadcasting.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, BitwiseAnd-18.
    """
    return binary(np.bitwise_and, A, B, ctx)


@op("BitwiseOr", since=18)
def bitwise_or(A: Array, B: Array, *, ctx: Context) -> Array:
    """A | B of integers, with numpy's broadcasting.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, BitwiseOr-18.
    """
    return binary(np.bitwise_or, A, B, ctx)


@op("BitwiseXor", since=18)
def bitwise_xor(A: Array, B: Array, *, ctx: Context) -> Array:
    """A ^ B of integers, with numpy's broadcasting.

    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, BitwiseXor-18.
    """
    return binary(np.bitwise_xor, A, B, ctx)


@op("BitwiseNot", since=18)
def bitwise_not(X: Array) -> Array:
    """All bits of integers inverted. Source: ONNX operators, BitwiseNot-18."""
    return np.asarray(np.invert(X))


@op("BitShift", since=11)
def bit_shift(X: Array, Y: Array, *, direction: str, ctx: Context) -> Array:
    """X with its bits moved by Y places to the LEFT or RIGHT, with numpy's broadcasting; signed since version 28.

    RIGHT fills with the sign. By a negative or too large Y, all bits leave: -1 for a negative X to the RIGHT, else 0.
    Raises OperatorError for another direction, and for shapes that do not broadcast.
    Source: ONNX operators, BitShift-28.
    """
    if direction not in ("LEFT", "RIGHT"):
        raise refuse("the direction does not exist", "direction", "LEFT, RIGHT", direction, code="QR204")
    return binary(np.left_shift if direction == "LEFT" else np.right_shift, X, Y, ctx, ("X", "Y"))
