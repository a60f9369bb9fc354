"""Tensors made from a few numbers: Constant, ConstantOfShape, Shape, Size, Range, EyeLike, OneHot; and Multinomial,
which onnx.reference lacks (it runs the other operators that draw random numbers)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qrun.ir.types import type_name
from qrun.ops._cast import type_of
from qrun.ops._complete import ALWAYS
from qrun.ops._float import axis_in, is_integer, narrow, widen
from qrun.ops._op import Array, Context, bad_attribute, bad_shape, misfit, one_of, op, refuse, require
from qrun.ops._shape import claim, ints, scalar
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel, decline_error, kernel_of, require_copied


@op("Constant", since=1)
def constant_1(*, value: Array) -> Array:
    """The tensor `value`. Source: ONNX operators, Constant-9."""
    return value


@op("Constant", since=11)
def constant(
    *,
    sparse_value: Array | None = None,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Array:
    """Return the given attribute: a tensor, or a scalar or list of float32, int64 or strings.

    A sparse_value becomes a dense tensor. Refuses none and more than one.
    """
    choices = (
        ("sparse_value", sparse_value, None),
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
    """Fill a tensor of shape `input` (1-D int64) with the one element of `value`; default: float32 0."""
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
    """Return data's dimensions from axis `start` to `end` as int64; both may be negative and are clamped to [0, r]."""
    return np.array(data.shape[start:end], np.int64)


@op("Size", since=1, form="shape")
def size(data: Array) -> Array:
    """Return the number of data's elements as an int64 scalar."""
    return np.array(data.size, np.int64)


@op("Range", since=11)
def range_(start: Array, limit: Array, delta: Array, *, stash_type: int = 1, ctx: Context) -> Array:
    """start + i * delta for i from 0 to ceil((limit - start) / delta) - 1; scalars of one type to a vector.

    Integers: exact. Floating point: in float64 and rounded once, which is at least as precise as every stash_type.
    Raises OperatorError for inputs that are not scalars, a delta of 0, and numbers that are not finite.
    """
    dtype = start.dtype
    wide = [x if is_integer(dtype) else widen(x) for x in (start, limit, delta)]
    low, high, step = (scalar(x, name) for x, name in zip(wide, ("start", "limit", "delta"), strict=True))
    if step == 0:
        raise refuse("delta is 0", "delta", "a number other than 0", "0")
    count = -((low - high) // step) if is_integer(dtype) else _ceil((high - low) / step, (low, high, step))
    claim(ctx, (max(count, 0),), np.dtype(np.int64), "limit")
    steps = np.arange(max(count, 0))
    if is_integer(dtype):
        return (np.int64(low) + steps * np.int64(step)).astype(dtype)
    return narrow(low + steps * step, dtype)


def _ceil(quotient: float, numbers: tuple[float, ...]) -> int:
    """The number of elements of a range. Raises OperatorError if it is not finite."""
    if not math.isfinite(quotient):
        shown = ", ".join(map(str, numbers))
        raise refuse("the range has no finite length", "limit", "finite start, limit and delta", shown)
    return math.ceil(quotient)


@op("EyeLike", since=9)
def eye_like(input: Array, *, dtype: int | None = None, k: int = 0, ctx: Context) -> Array:
    """Return a matrix of input's shape with ones at [i,i+k], else zeros; its type is dtype, by default input's.

    Raises OperatorError for another rank than 2 and for a type that this version of EyeLike does not have.
    """
    kind = input.dtype
    if dtype is not None:
        kind = type_of(dtype, "EyeLike", "dtype", "the element type does not exist here", ctx)
    if input.ndim != 2:
        raise misfit("input is not a matrix", "input", "rank 2", input)
    rows, columns = claim(ctx, input.shape, kind, "input")
    made = np.zeros((rows, columns), kind)
    shift = max(-rows, min(columns, k))
    diagonal_rows = np.arange(max(0, -shift), min(rows, columns - shift))
    made[diagonal_rows, diagonal_rows + shift] = kind.type(1)
    return made


@op("OneHot", since=9)
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1, ctx: Context) -> Array:
    """values[1] where the place along the new axis is the index, else values[0]; values [off, on].

    indices: numbers of any type and shape, rank r, toward zero; -depth to -1 count from the end (since version 11);
    an index that does not exist gives values[0] everywhere. depth: a scalar, 0 or more. axis: -r-1 to r.
    Raises OperatorError for other shapes, and a negative or infinite depth.
    """
    size, position, shape = _one_hot(indices, depth, values, axis, ctx)
    index, exists = _places(indices, size, -size if ctx.version >= 11 else 0)
    index, exists = (np.expand_dims(array, position) for array in (index, exists))
    counted = np.arange(size).reshape([size if axis == position else 1 for axis in range(len(shape))])
    return np.asarray(np.where((counted == index) & exists, values[1], values[0]), values.dtype)


def _one_hot(indices: Array, depth: Array, values: Array, axis: int, ctx: Context) -> tuple[int, int, tuple[int, ...]]:
    """The length of the new axis, its position, and the result's shape, which is claimed."""
    if values.shape != (2,):
        raise misfit("values is not [off, on]", "values", "[2]", values)
    wide = scalar(depth, "depth")
    if not (math.isfinite(wide) and int(wide) >= 0):
        raise refuse("depth is out of range", "depth", "0 or more", wide)
    size, dim = int(wide), axis_in(axis, indices.ndim + 1)
    return size, dim, claim(ctx, (*indices.shape[:dim], size, *indices.shape[dim:]), values.dtype, "depth")


@one_hot.native
@EveryType
def _lower_one_hot(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.reduce import ONE_HOT_KINDS, OneHot
    from qrun.native.machine.operation import Operand

    indices, depth, values = site.inputs
    site.require_constants()
    size, index, _ = _one_hot(indices, depth, values, site.attributes["axis"], site.ctx)
    if indices.dtype.name not in ONE_HOT_KINDS:
        raise decline_error(f"indices that are {type_name(indices.dtype)}")
    require_copied(values.dtype)
    least = -size if site.ctx.version >= 11 else 0
    made = OneHot(site.engine, Operand(indices.shape, indices.dtype), index, size, values, least)
    return kernel_of(site, made, (0,), ALWAYS)


def _places(indices: Array, size: int, least: int) -> tuple[Array, Array]:
    """The indices counted from the front, int64, 0 for those that do not exist; and a mask of those that exist."""
    whole: Any = indices if is_integer(indices.dtype) else np.trunc(widen(indices))
    exists = (whole >= least) & (whole < size)
    index = np.where(exists, whole, 0).astype(np.int64)
    return np.where(index < 0, index + size, index), np.asarray(exists)


@op("Multinomial", since=7, draws=True)
def multinomial(
    input: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None, ctx: Context
) -> Array:
    """Draws classes for each row of input [batch,classes], the logarithms of their unnormalized probabilities.

    int32 or int64 [batch,sample_size]: the first class whose sum of exp(input - the row's greatest) with all before it
    is above u times the sum of all, for u of [0, 1); in float64. u is numpy's MT19937 of `seed`.
    Raises OperatorError for a row without a finite greatest number, for other shapes and types, and for a seed that is
    not finite.
    """
    if input.ndim != 2:
        raise bad_shape("input", "[batch,classes]", input)
    require("sample_size", sample_size >= 1, "1 or more", sample_size)
    one_of("dtype", dtype, (6, 7))
    if seed is not None and not np.isfinite(seed):
        raise bad_attribute("seed", "a finite number", seed)
    ctx.claim((len(input), sample_size), 24)
    ctx.claim(input.shape, 24)
    drawn = np.random.RandomState(int(seed or 0) % 2**32).random_sample((len(input), sample_size))
    chosen = np.zeros(drawn.shape, np.int32 if dtype == 6 else np.int64)
    for number, row in enumerate(widen(input)):
        greatest = row.max(initial=-np.inf)
        if not np.isfinite(greatest):
            expected, got = "numbers with a finite greatest one", f"{float(greatest)!r} as the greatest"
            raise refuse(f"row {number} has no probabilities", "input", expected, got)
        sums = np.cumsum(np.exp(row - greatest))
        last = np.searchsorted(sums, sums[-1], side="left")  # the last class with a probability
        chosen[number] = np.minimum(np.searchsorted(sums, drawn[number] * sums[-1], side="right"), last)
    return chosen
