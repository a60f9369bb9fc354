"""Gather."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._float import axis_in
from qrun.ops._indices import check_indices
from qrun.ops._op import op
from qrun.ops._shape import claim


@op("Gather", since=1, form="moves")
def gather(data: Array, indices: Array, *, axis: int = 0, ctx: Context) -> Array:
    """Elements of `data` at `indices` along `axis`; shape data[:axis] + indices + data[axis+1:].

    indices: int32 or int64 of any shape, -s to s-1 where s is the axis' length; refuses others, naming the first.
    Source: ONNX operators, Gather-13.
    """
    place = axis_in(axis, data.ndim)
    check_indices(indices, data, place)
    shape = claim(ctx, (*data.shape[:place], *indices.shape, *data.shape[place + 1 :]), data.dtype, "indices")
    return np.take(data, indices.reshape(-1), axis=place).reshape(shape)
