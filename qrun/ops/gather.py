"""Gather."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text, type_name
from qrun.ops._context import Context
from qrun.ops._float import axis_in
from qrun.ops._op import op, refuse
from qrun.ops._shape import claim


@op("Gather", since=1)
def gather(data: Array, indices: Array, *, axis: int = 0, ctx: Context | None = None) -> Array:
    """Elements of `data` at `indices` along `axis`; shape data[:axis] + indices + data[axis+1:].

    indices: int32 or int64 of any shape, -s to s-1 where s is the axis' length; refuses others, naming the first.
    Source: ONNX operators, Gather-13.
    """
    ctx = ctx or Context()
    place = axis_in(axis, data.ndim)
    size = data.shape[place]
    if indices.dtype.kind not in "iu":
        raise refuse("indices are not integers", "indices", "int32 or int64", type_name(indices.dtype))
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            bad = (indices < -size) | (indices >= size)
            where = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), indices.shape))
            at = f" at {list(where)}" if where else ""
            raise refuse(
                f"index {int(indices[where])}{at} is out of range",
                "indices",
                f"-{size} to {size - 1}, as axis {place} of data {shape_text(data.shape)}"
                if size
                else "no index: the axis is empty",
                str(int(indices[where])),
                code="QR209",
                name="index-range",
            )
    shape = claim(ctx, (*data.shape[:place], *indices.shape, *data.shape[place + 1 :]), data.dtype, "indices")
    return np.take(data, indices.reshape(-1), axis=place).reshape(shape)
