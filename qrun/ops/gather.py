"""Choosing elements: Gather, GatherElements, GatherND, Where, NonZero, Compress, Trilu. Replacing elements:
ScatterElements, its ancestor Scatter, and ScatterND."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qrun.ir.types import shape_text, type_name
from qrun.native.errors import Declined
from qrun.ops._complete import ALWAYS
from qrun.ops._float import axis_in, broadcast, narrow, widen, with_zeros
from qrun.ops._op import Array, Context, Shape, bad_attribute, bad_shape, misfit, one_of, op
from qrun.ops._shape import check_indices, claim, element_places, scalar, slice_places
from qrun.ops.lowering.float32 import elementwise
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel, decline_error, kernel_of, require_copied
from qrun.shapes import MOST_AXES


@op("Gather", since=1, form="moves")
def gather(data: Array, indices: Array, *, axis: int = 0, ctx: Context) -> Array:
    """Select elements of `data` at `indices` along `axis`; the shape is data[:axis] + indices + data[axis+1:].

    indices: int32 or int64 of any shape, -s to s-1 where s is the axis' length; refuses others, naming the first.
    """
    dim = axis_in(axis, data.ndim)
    check_indices(indices, data, dim)
    shape = claim(ctx, (*data.shape[:dim], *indices.shape, *data.shape[dim + 1 :]), data.dtype, "indices")
    return np.take(data, indices.reshape(-1), axis=dim).reshape(shape)


@gather.native
def _lower_gather(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.indexed import NamedRows
    from qrun.ops.lowering.moves import gather_kernel, take_kernel

    if site.fixed[1]:
        try:
            return take_kernel(site)
        except Declined:
            if site.fixed[0]:
                raise
    data, indices = site.inputs
    dim = axis_in(site.attributes["axis"], data.ndim)
    before, (length, *after) = data.shape[:dim], data.shape[dim:]
    shape = (*before, *indices.shape, *after)
    if len(shape) > MOST_AXES:
        raise decline_error("its result has too many axes")  # the reference kernel reports bad indices first
    claim(site.ctx, shape, data.dtype, "indices")
    return gather_kernel(site, NamedRows((length,), math.prod(before), False, 1, math.prod(after)), shape)


@op("GatherElements", since=11, form="moves")
def gather_elements(data: Array, indices: Array, *, axis: int = 0, ctx: Context) -> Array:
    """output[i,j,...] = data[i,j,...] with the place along `axis` replaced by indices[i,j,...].

    data [d_0,...], rank 1 or more; indices: int32 or int64 of data's rank, not larger than data except along `axis`,
    -s to s-1 where s is the axis' length. Exact.
    Raises OperatorError for other ranks and shapes, and for an index out of range, naming the first.
    """
    claim(ctx, indices.shape, data.dtype, "indices")
    return data.reshape(-1)[element_places(data, indices, axis)]


@gather_elements.native
def _lower_gather_elements(site: LoweringContext) -> NativeKernel:
    from qrun.ops.lowering.moves import gather_kernel, named_elements

    data, indices = site.inputs
    claim(site.ctx, indices.shape, data.dtype, "indices")
    return gather_kernel(site, named_elements(site), indices.shape)


@op("GatherND", since=11, form="moves")
def gather_nd(data: Array, indices: Array, *, batch_dims: int = 0, ctx: Context) -> Array:
    """Select slices of data at the index tuples along the last axis of indices.

    data [b_0,...,d_0,...]; indices: int64 [b_0,...,i_0,...,k], whose first batch_dims dimensions are data's and
    whose tuples count in the k dimensions after them, -s to s-1. output [b_0,...,i_0,...,d_k,...]. Exact.
    Raises OperatorError for other shapes, a k that is 0 or larger than data's rank without batch_dims, and for an index
    out of range, naming the first.
    """
    shape = _check_gather(data, indices, batch_dims, ctx)
    batch, split = data.shape[:batch_dims], batch_dims + indices.shape[-1]
    slices = data.reshape(math.prod(data.shape[:split]), math.prod(data.shape[split:]))
    return np.asarray(slices[slice_places(data, indices, batch)]).reshape(shape)


@gather_nd.native
def _lower_gather_nd(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.indexed import NamedRows
    from qrun.ops.lowering.moves import gather_kernel

    data, indices = site.inputs
    lead = site.attributes["batch_dims"]
    shape = _check_gather(data, indices, lead, site.ctx)
    split = lead + indices.shape[-1]
    places = NamedRows(data.shape[lead:split], math.prod(data.shape[:lead]), True, 1, math.prod(data.shape[split:]))
    return gather_kernel(site, places, shape)


def _check_gather(data: Array, indices: Array, lead: int, ctx: Context) -> Shape:
    """The result's shape, after all checks except those of the indices' values."""
    if not 0 <= lead < max(min(data.ndim, indices.ndim), 1):
        most = min(data.ndim, indices.ndim) - 1
        raise bad_attribute("batch_dims", f"0 to {most}, below the ranks of data and indices", lead)
    batch = data.shape[:lead]
    if not indices.ndim or not 1 <= indices.shape[-1] <= data.ndim - lead or indices.shape[:lead] != batch:
        expected = (
            f"{shape_text((*batch, '...', 'k'))} with k from 1 to {data.ndim - lead}, for data {shape_text(data.shape)}"
        )
        raise bad_shape("indices", expected, indices)
    return claim(ctx, (*indices.shape[:-1], *data.shape[lead + indices.shape[-1] :]), data.dtype, "indices")


@op("Where", since=9, native=elementwise("where", "condition", "X", "Y"))
def where(condition: Array, X: Array, Y: Array, *, ctx: Context) -> Array:
    """Select X where condition is true, else Y, of X's type; the three broadcast as in numpy. Exact.

    Raises OperatorError for shapes that do not broadcast.
    """
    broadcast(ctx, (condition, X, Y), ("condition", "X", "Y"), X.itemsize)
    return np.where(condition, X, Y)


@op("NonZero", since=9)
def non_zero(X: Array, *, ctx: Context) -> Array:
    """Return the indices of the nonzero elements (not 0, False or empty), row-major, as int64 [rank,count].

    NaN is not 0. A scalar gives [0,1], or [0,0] if it is 0.
    """
    with np.errstate(all="ignore"):
        found = np.asarray(("" if X.dtype.kind == "O" else 0) != X)
    count = int(np.count_nonzero(found))
    shape = claim(ctx, (X.ndim, count), np.dtype(np.int64), "X")
    return np.asarray(np.nonzero(found), np.int64) if X.ndim else np.zeros(shape, np.int64)


@op("Compress", since=9, form="moves")
def compress(input: Array, condition: Array, *, axis: int | None = None, ctx: Context) -> Array:
    """Select the slices of input along `axis` for which condition is true;
    without an axis, the elements of the flattened input.

    condition: bool [n], n at most the axis' length; what lies beyond it is dropped. Exact.
    Raises OperatorError for a condition of another shape or type, and an axis that does not exist.
    """
    dim = None if axis is None else axis_in(axis, input.ndim)
    length = input.size if dim is None else input.shape[dim]
    if condition.dtype != np.bool_ or condition.ndim != 1 or condition.size > length:
        got = f"{type_name(condition.dtype)} [{','.join(map(str, condition.shape))}]"
        raise misfit("condition does not fit input", "condition", f"bool [n], n up to {length}", got)
    chosen = np.flatnonzero(condition)
    ctx.claim((chosen.size, input.size // max(length, 1)), input.itemsize)
    return np.take(input.reshape(-1) if dim is None else input, chosen, axis=dim or 0)


@op("Trilu", since=14)
def trilu(input: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """input [...,n,m] with zeros below diagonal k (upper), or above it; k: an int64 scalar, 0 if omitted. Exact.

    Diagonal k holds the elements [...,i,i+k]. Raises OperatorError for rank 1 or less and for k that is not a scalar.
    """
    diagonal = _diagonal(input, k)
    rows, columns = input.shape[-2:]
    distance = np.arange(columns) - np.arange(rows).reshape(-1, 1)
    kept = distance >= diagonal if upper else distance <= diagonal
    return np.where(kept, input, np.array("" if input.dtype.kind == "O" else 0, input.dtype))


def _diagonal(input: Array, k: Array | None) -> int:
    """The diagonal k, clamped to the first one outside the matrices on either side."""
    if input.ndim < 2:
        raise misfit("input has no matrices", "input", "[...,n,m]", input)
    rows, columns = input.shape[-2:]
    return int(max(-rows, min(columns, 0 if k is None else scalar(k, "k"))))


@trilu.native
@EveryType
def _lower_trilu(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.copy import Triangle
    from qrun.native.machine.operation import Operand

    x, upper = site.inputs[0], bool(site.attributes["upper"])
    diagonal = _diagonal(*site.inputs)
    site.require_constants()
    require_copied(x.dtype)
    made = Triangle(site.engine, Operand(x.shape, x.dtype), diagonal + (not upper), upper)
    return kernel_of(site, made, (0,), ALWAYS)


_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@op("Scatter", since=9)
def scatter_9(data: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    """ScatterElements-11. Source: it ended with opset 10."""
    return _scatter_elements(data, indices, updates, axis, "none", Context())


@op("ScatterElements", since=11)
def scatter_elements(
    data: Array,
    indices: Array,
    updates: Array,
    *,
    axis: int = 0,
    reduction: str = "none",
    ctx: Context,
) -> Array:
    """Copy data and replace the element that each index selects along `axis` by its update.

    data [d_0,...], rank 1 or more; indices: int32 or int64 of data's rank, not larger than data except along `axis`,
    -s to s-1 where s is the axis' length; updates: of indices' shape and data's type.
    reduction: none: where indices repeat, the last update stays, which the page leaves open. add, mul (since version
    16), max, min (18): of the element and all its updates; floating-point sums and products in float64 and rounded
    once (float64 stays float64), integers wrap, bool: or, and, or, and.
    Raises OperatorError for other shapes, an index out of range, another reduction, and reductions of a type
    without that arithmetic.
    """
    return _scatter_elements(data, indices, updates, axis, reduction, ctx)


@op("ScatterND", since=11)
def scatter_nd(data: Array, indices: Array, updates: Array, *, reduction: str = "none", ctx: Context) -> Array:
    """Copy data and replace the slice that each index tuple selects by its update.

    data [d_0,...], rank 1 or more; indices: int64 [i_0,...,k], tuples for data's first k dimensions, -s to s-1;
    updates [i_0,...,d_k,...] of data's type. reduction: as in ScatterElements.
    Raises OperatorError for other shapes, an index out of range, another reduction, and reductions of a type
    without that arithmetic.
    """
    if not indices.ndim or indices.shape[-1] > data.ndim or not data.ndim:
        raise bad_shape("indices", f"[...,k] with k up to {data.ndim}, for data {shape_text(data.shape)}", indices)
    depth = indices.shape[-1]
    tail = data.shape[depth:]
    _check_shape(updates, (*indices.shape[:-1], *tail), "indices' shape without its last axis, then data's rest")
    places = slice_places(data, indices).reshape(-1)
    slices = data.reshape(math.prod(data.shape[:depth]), math.prod(tail))
    return _scatter(slices, places, updates.reshape(places.size, math.prod(tail)), reduction, ctx).reshape(data.shape)


def _scatter_elements(data: Array, indices: Array, updates: Array, axis: int, reduction: str, ctx: Context) -> Array:
    """Copy data with updates at the indices along an axis, combined by `reduction`."""
    places = element_places(data, indices, axis)
    _check_shape(updates, indices.shape, "indices' shape")
    return _scatter(data.reshape(-1, 1), places.reshape(-1), updates.reshape(-1, 1), reduction, ctx).reshape(data.shape)


@scatter_9.native
@scatter_elements.native
@EveryType
def _lower_scatter_elements(site: LoweringContext) -> NativeKernel:
    from qrun.ops.lowering.moves import named_elements, scatter_kernel

    _, indices, updates = site.inputs
    places = named_elements(site)
    return scatter_kernel(site, places, _native_reduction(site, updates.shape == indices.shape))


@scatter_nd.native
@EveryType
def _lower_scatter_nd(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.indexed import NamedRows
    from qrun.ops.lowering.moves import scatter_kernel

    data, indices, updates = site.inputs
    depth = indices.shape[-1] if indices.ndim else 0
    tail = data.shape[depth:]
    how = _native_reduction(site, 1 <= depth <= data.ndim and updates.shape == (*indices.shape[:-1], *tail))
    return scatter_kernel(site, NamedRows(data.shape[:depth], 1, True, 1, math.prod(tail)), how)


def _native_reduction(site: LoweringContext, fits: bool) -> str:
    """The reduction. Raises Declined for what the reference kernel refuses, because that checks the indices first."""
    how = str(site.attributes.get("reduction", "none"))
    if not fits or how not in _known_reductions(site.ctx):
        raise decline_error("its updates do not fit")
    data = site.inputs[0]
    site.ctx.claim(data.shape, 8 if data.dtype.kind == "f" and how in ("add", "mul") else data.itemsize)
    return how


def _known_reductions(ctx: Context) -> tuple[str, ...]:
    """The reductions that the opset version has."""
    return ("none", "add", "mul", *(("max", "min") if ctx.version >= 18 else ()))


def _check_shape(updates: Array, shape: Sequence[int], what: str) -> None:
    """Raise OperatorError unless updates have this shape."""
    if updates.shape != tuple(shape):
        raise misfit("updates do not fit indices", "updates", f"{shape_text(tuple(shape))}: {what}", updates)


def _scatter(rows: Array, places: Array, updates: Array, reduction: str, ctx: Context) -> Array:
    """rows with updates applied to rows[places]."""
    one_of("reduction", reduction, _known_reductions(ctx))
    kind = rows.dtype.kind
    if reduction != "none" and (kind == "O" or (kind == "c" and reduction in ("max", "min"))):
        kinds = "none" if kind == "O" else "none, add, mul"
        raise bad_attribute("reduction", f"{kinds}, for {type_name(rows.dtype)}", reduction)
    wide = kind not in "biuc" and reduction in ("add", "mul")
    ctx.claim(rows.shape, 8 if wide else rows.itemsize)
    if reduction == "none":
        made = rows.copy()
        made[places] = updates
        return made
    made = np.array(widen(rows) if wide else rows)
    with np.errstate(all="ignore"):
        _REDUCTIONS[reduction].at(made, places, widen(updates) if wide else updates)
    if reduction in ("max", "min") and kind not in "biu":
        below = np.signbit(rows)
        (np.logical_and if reduction == "max" else np.logical_or).at(below, places, np.signbit(updates))
        return with_zeros(made, below)
    return narrow(made, rows.dtype) if wide else made
