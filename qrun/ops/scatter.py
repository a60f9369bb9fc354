"""Elements replaced, or joined with others: ScatterElements, its ancestor Scatter, and ScatterND."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qrun.ir.types import shape_text, type_name
from qrun.ops._float import narrow, widen, with_zeros
from qrun.ops._op import Array, Context, bad_attribute, bad_shape, misfit, one_of, op
from qrun.ops._shape import element_places, slice_places
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel, declined

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
    """A copy of data in which the element that each index names along `axis` is replaced by its update.

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
    """A copy of data in which the slice that each index tuple names is replaced by its update.

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
    places = element_places(data, indices, axis)
    _check_shape(updates, indices.shape, "indices' shape")
    return _scatter(data.reshape(-1, 1), places.reshape(-1), updates.reshape(-1, 1), reduction, ctx).reshape(data.shape)


@scatter_9.native
@scatter_elements.native
@EveryType
def _lower_scatter_elements(site: LoweringContext) -> NativeKernel:
    from qrun.ops.lowering.moves import named_elements, scattered_kernel

    _, indices, updates = site.inputs
    places = named_elements(site)
    return scattered_kernel(site, places, _native_reduction(site, updates.shape == indices.shape))


@scatter_nd.native
@EveryType
def _lower_scatter_nd(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.indexed import NamedRows
    from qrun.ops.lowering.moves import scattered_kernel

    data, indices, updates = site.inputs
    depth = indices.shape[-1] if indices.ndim else 0
    tail = data.shape[depth:]
    how = _native_reduction(site, 1 <= depth <= data.ndim and updates.shape == (*indices.shape[:-1], *tail))
    return scattered_kernel(site, NamedRows(data.shape[:depth], 1, True, 1, math.prod(tail)), how)


def _native_reduction(site: LoweringContext, fits: bool) -> str:
    """The reduction. Declined for what the reference kernel refuses,
    which it does after having looked at the indices."""
    how = str(site.attributes.get("reduction", "none"))
    if not fits or how not in _known_reductions(site.ctx):
        raise declined("its updates do not fit")
    data = site.inputs[0]
    site.ctx.claim(data.shape, 8 if data.dtype.kind == "f" and how in ("add", "mul") else data.itemsize)
    return how


def _known_reductions(ctx: Context) -> tuple[str, ...]:
    return ("none", "add", "mul", *(("max", "min") if ctx.version >= 18 else ()))


def _check_shape(updates: Array, shape: Sequence[int], what: str) -> None:
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
