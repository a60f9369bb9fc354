"""Code that the shape operators share: lists of integers from inputs, and shapes that numpy and memory can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir.types import shape_text, type_name
from qrun.ops._float import axis_in
from qrun.ops._op import Array, Context, Shape, bad_shape, first_place, misfit, refuse
from qrun.shapes import MOST_AXES


def ints(array: Array, name: str, *, scalar: bool = False) -> tuple[int, ...]:
    """The elements of a 1-D integer tensor (rank 0 too if `scalar`)."""
    if array.dtype.kind not in "iu" or array.ndim > 1 or (array.ndim == 0 and not scalar):
        got = f"{type_name(array.dtype)} {shape_text(array.shape)}"
        raise misfit(f"{name} is not a list of integers", name, "a 1-D int64 tensor", got)
    if array.size > 2 * MOST_AXES:
        raise refuse(f"{name} has {array.size} numbers", name, f"at most {2 * MOST_AXES}", array)
    return tuple(int(v) for v in np.atleast_1d(array).tolist())


def scalar(array: Array, name: str) -> Any:
    """The one element of a scalar or a tensor [1], as a Python number."""
    if array.size != 1 or array.ndim > 1:
        raise misfit(f"{name} is not a scalar", name, "a scalar", array)
    return array.reshape(-1).tolist()[0]


def same_length(values: Sequence[Any], wanted: int, name: str, why: str) -> None:
    """Raise OperatorError unless a list has the wanted length."""
    if len(values) != wanted:
        raise misfit(f"{name} has {len(values)} numbers", name, f"{wanted} numbers", shape_text(tuple(values)), why=why)


def same_but(a: Shape, b: Shape, axis: int) -> bool:
    """Whether two shapes are equal except for their lengths along one axis."""
    return len(a) == len(b) and a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :]


def check_shape(shape: Sequence[int], itemsize: int, param: str) -> Shape:
    """The shape, if an array may have it: at most 64 axes, fewer than 2**63 bytes."""
    dims = tuple(int(n) for n in shape)
    if len(dims) > MOST_AXES:
        raise refuse(f"the output would have {len(dims)} axes", param, f"at most {MOST_AXES} axes", str(len(dims)))
    if math.prod(n for n in dims if n) * itemsize >= 2**63:
        raise refuse(f"the output would be {shape_text(dims)}", param, "a shape below 2^63 bytes", shape_text(dims))
    return dims


def claim(ctx: Context, shape: Sequence[int], dtype: np.dtype[Any], param: str) -> Shape:
    """The shape, after claiming memory for an array of it."""
    dims = tuple(int(n) for n in shape)
    ctx.claim(dims, dtype.itemsize)
    return check_shape(dims, dtype.itemsize, param)


def check_indices(indices: Array, data: Array, axis: int) -> None:
    """Refuses indices outside [-s, s-1], where s is the length of data's axis; names the first."""
    size = data.shape[axis]
    if indices.dtype.kind not in "iu":
        raise refuse("indices are not integers", "indices", "int32 or int64", type_name(indices.dtype))
    if not indices.size or (int(indices.min()) >= -size and int(indices.max()) < size):
        return
    bad = (indices < -size) | (indices >= size)
    where = first_place(bad)
    at = f" at {list(where)}" if where else ""
    raise refuse(
        f"index {int(indices[where])}{at} is out of range",
        "indices",
        f"-{size} to {size - 1}, as axis {axis} of data {shape_text(data.shape)}"
        if size
        else "no index: the axis is empty",
        str(int(indices[where])),
        code="QR209",
    )


def element_places(data: Array, indices: Array, axis: int) -> Array:
    """Positions in the flattened data of the elements that `indices` selects along `axis`, int64 of indices' shape.

    Along the other axes an element's own position counts. Refuses another rank, and indices beyond data's shape.
    """
    along = axis_in(axis, data.ndim)
    fits = indices.ndim == data.ndim and all(
        n <= m for index, (n, m) in enumerate(zip(indices.shape, data.shape, strict=True)) if index != along
    )
    if not fits:
        raise bad_shape(
            "indices", f"rank {data.ndim}, and except along axis {along} at most {shape_text(data.shape)}", indices
        )
    check_indices(indices, data, along)
    whole = indices.astype(np.int64)
    places = np.where(whole < 0, whole + data.shape[along], whole) * math.prod(data.shape[along + 1 :])
    for index, n in enumerate(indices.shape):
        if index != along:
            step = math.prod(data.shape[index + 1 :])
            places += (np.arange(n, dtype=np.int64) * step).reshape(-1, *(1,) * (indices.ndim - index - 1))
    return np.asarray(places)


def slice_places(data: Array, indices: Array, batch: Sequence[int] = ()) -> Array:
    """The row-major number of the slice data[batch..., i, j, ...] for each tuple along the last axis of `indices`.

    batch: the leading dimensions that data and indices share. int64 [batch size, tuples of one batch].
    """
    lead, depth = len(batch), indices.shape[-1]
    named = data.shape[lead : lead + depth]
    count = math.prod(batch)
    places = np.zeros(indices.shape[:-1], np.int64)
    for index, size in enumerate(named):
        part = indices[..., index]
        check_indices(part, data, lead + index)
        places = places * size + np.where(part < 0, part + size, part)
    offsets = np.arange(count, dtype=np.int64) * math.prod(named)
    return np.asarray(places.reshape(count, math.prod(indices.shape[lead:-1])) + offsets.reshape(-1, 1))
