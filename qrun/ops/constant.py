"""Constant, ConstantOfShape, Shape, Size."""

from __future__ import annotations

import numpy as np

from qrun.ops._op import Array, Context, op, refuse
from qrun.ops._shape import claim, ints


@op("Constant", since=1)
def constant_1(*, value: Array) -> Array:
    """The tensor `value`. Source: ONNX operators, Constant-9."""
    return value


@op("Constant", since=11)
def constant(
    *,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Array:
    """The one attribute given: a tensor, or a scalar or list of float32, int64 or strings.

    Refuses none and more than one; sparse_value is refused when the model is read. Source: ONNX operators, Constant-25.
    """
    choices = (
        ("value", value, None),
        ("value_float", value_float, np.float32),
        ("value_floats", value_floats, np.float32),
        ("value_int", value_int, np.int64),
        ("value_ints", value_ints, np.int64),
        ("value_string", value_string, np.object_),
        ("value_strings", value_strings, np.object_),
    )
    given = [choice for choice in choices if choice[1] is not None]
    if len(given) != 1:
        raise refuse(
            f"{len(given)} values are given",
            given[0][0] if given else "value",
            "exactly one of " + ", ".join(name for name, _, _ in choices),
            ", ".join(name for name, _, _ in given) or "none",
            code="QR204",
        )
    _, chosen, dtype = given[0]
    with np.errstate(all="ignore"):
        return np.asarray(chosen) if dtype is None else np.array(chosen, dtype)


@op("ConstantOfShape", since=9)
def constant_of_shape(input: Array, *, value: Array | None = None, ctx: Context) -> Array:
    """A tensor of shape `input` (1-D int64; empty: a scalar) filled with the one element of `value`, else float32 0.

    Source: ONNX operators, ConstantOfShape-25.
    """
    fill = np.zeros(1, np.float32) if value is None else value
    if fill.size != 1:
        raise refuse(f"value has {fill.size} elements", "value", "one element", fill, code="QR204")
    dims = ints(input, "input")
    if any(n < 0 for n in dims):
        raise refuse("a dimension is negative", "input", "dimensions of 0 or more", list(dims))
    made = np.empty(claim(ctx, dims, fill.dtype, "input"), fill.dtype)
    made[...] = fill.reshape(())
    return made


@op("Shape", since=1, form="shape")
def shape(data: Array, *, start: int = 0, end: int | None = None) -> Array:
    """data's dimensions from axis `start` up to `end`, int64; both may be negative and are clamped to [0, r].

    Source: ONNX operators, Shape-25.
    """
    return np.array(data.shape[start:end], np.int64)


@op("Size", since=1, form="shape")
def size(data: Array) -> Array:
    """The number of data's elements, an int64 scalar. Source: ONNX operators, Size-25."""
    return np.array(data.size, np.int64)
