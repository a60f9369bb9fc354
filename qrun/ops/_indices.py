"""Shared by the gathering and scattering operators: indices checked against the axis that they index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text, type_name
from qrun.ops._context import refuse
from qrun.ops._float import axis_in


def check_indices(indices: Array, data: Array, axis: int) -> None:
    """Refuses indices outside [-s, s-1], where s is the length of data's axis; names the first."""
    size = data.shape[axis]
    if indices.dtype.kind not in "iu":
        raise refuse("indices are not integers", "indices", "int32 or int64", type_name(indices.dtype))
    if not indices.size or (int(indices.min()) >= -size and int(indices.max()) < size):
        return
    bad = (indices < -size) | (indices >= size)
    where = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), indices.shape))
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
    """Places in the flattened data of the elements that `indices` names along `axis`, int64 of indices' shape.

    Along the other axes an element's own place counts. Refuses another rank, and indices beyond data's shape.
    """
    along = axis_in(axis, data.ndim)
    fits = indices.ndim == data.ndim and all(
        n <= m for place, (n, m) in enumerate(zip(indices.shape, data.shape, strict=True)) if place != along
    )
    if not fits:
        raise refuse(
            "indices do not fit data",
            "indices",
            f"rank {data.ndim}, and except along axis {along} at most {shape_text(data.shape)}",
            indices,
            code="QR208",
        )
    check_indices(indices, data, along)
    whole = indices.astype(np.int64)
    places = np.where(whole < 0, whole + data.shape[along], whole) * math.prod(data.shape[along + 1 :])
    for place, n in enumerate(indices.shape):
        if place != along:
            step = math.prod(data.shape[place + 1 :])
            places += (np.arange(n, dtype=np.int64) * step).reshape(-1, *(1,) * (indices.ndim - place - 1))
    return np.asarray(places)


def slice_places(data: Array, indices: Array, batch: Sequence[int] = ()) -> Array:
    """Which slice data[batch..., i, j, ...] each tuple along the last axis of `indices` names, counted row-major.

    batch: the leading dimensions that data and indices share. int64 [batch size, tuples of one batch].
    """
    lead, depth = len(batch), indices.shape[-1]
    named = data.shape[lead : lead + depth]
    count = math.prod(batch)
    places = np.zeros(indices.shape[:-1], np.int64)
    for place, size in enumerate(named):
        part = indices[..., place]
        check_indices(part, data, lead + place)
        places = places * size + np.where(part < 0, part + size, part)
    offsets = np.arange(count, dtype=np.int64) * math.prod(named)
    return np.asarray(places.reshape(count, math.prod(indices.shape[lead:-1])) + offsets.reshape(-1, 1))
