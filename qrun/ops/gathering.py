"""GatherElements and GatherND."""

from __future__ import annotations

import math

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._context import Context, refuse
from qrun.ops._indices import element_places, slice_places
from qrun.ops._op import op
from qrun.ops._shape import claim


@op("GatherElements", since=11, form="moves")
def gather_elements(data: Array, indices: Array, *, axis: int = 0, ctx: Context) -> Array:
    """output[i,j,...] = data[i,j,...] with the place along `axis` replaced by indices[i,j,...].

    data [d_0,...], rank 1 or more; indices: int32 or int64 of data's rank, not larger than data except along `axis`,
    -s to s-1 where s is the axis' length. Exact.
    Raises OperatorError for other ranks and shapes, and for an index out of range, naming the first.
    Source: ONNX operators, GatherElements-13.
    """
    claim(ctx, indices.shape, data.dtype, "indices")
    return data.reshape(-1)[element_places(data, indices, axis)]


@op("GatherND", since=11, form="moves")
def gather_nd(data: Array, indices: Array, *, batch_dims: int = 0, ctx: Context) -> Array:
    """Slices of data at the index tuples that lie along the last axis of indices.

    data [b_0,...,d_0,...]; indices: int64 [b_0,...,i_0,...,k], whose first batch_dims dimensions are data's and
    whose tuples count in the k dimensions after them, -s to s-1. output [b_0,...,i_0,...,d_k,...]. Exact.
    Raises OperatorError for other shapes, a k that is 0 or larger than data's rank without batch_dims, and for an index
    out of range, naming the first.
    Source: ONNX operators, GatherND-13.
    """
    return _gather(data, indices, batch_dims, ctx)


def _gather(data: Array, indices: Array, lead: int, ctx: Context) -> Array:
    if not 0 <= lead < max(min(data.ndim, indices.ndim), 1):
        raise refuse(
            f"batch_dims {lead} does not exist",
            "batch_dims",
            f"0 to {min(data.ndim, indices.ndim) - 1}, below the ranks of data and indices",
            lead,
            code="QR204",
        )
    batch = data.shape[:lead]
    if not indices.ndim or not 1 <= indices.shape[-1] <= data.ndim - lead or indices.shape[:lead] != batch:
        raise refuse(
            "indices do not fit data",
            "indices",
            f"{shape_text((*batch, '...', 'k'))} with k from 1 to {data.ndim - lead}, for data {shape_text(data.shape)}",
            indices,
            code="QR208",
        )
    split = lead + indices.shape[-1]
    tail = data.shape[split:]
    shape = claim(ctx, (*indices.shape[:-1], *tail), data.dtype, "indices")
    slices = data.reshape(math.prod(data.shape[:split]), math.prod(tail))
    return np.asarray(slices[slice_places(data, indices, batch)]).reshape(shape)
