"""Resampling axis by axis: which input elements each output element reads, with which weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._context import Context, misfit, refuse
from qrun.ops._float import bounds, narrow
from qrun.ops._shape import claim
from qrun.ops._signature import Attributes

TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST_MODES: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@frozen
class ResizeAttributes(Attributes):
    antialias: int = 0
    axes: tuple[int, ...] | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"


@frozen
class ResampledAxis:
    """One axis to resample: lengths, the scale (and its exact value if it is a quotient), region of interest."""

    axis: int
    length: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    exact: tuple[int, int] | None = None
    """Numerator and denominator of the scale."""


def coordinates(axis: ResampledAxis, transform: str, real: type[np.floating]) -> Array:
    """The position of every output element in the input, as a real number; computed in `real`.

    Source: ONNX operators, Resize-19, coordinate_transformation_mode.
    """
    x = np.arange(axis.out, dtype=real)
    n, out = real(axis.length), real(axis.out)
    if transform == "align_corners":
        return np.asarray(x * (n - 1) / (out - 1) if axis.out > 1 else x * 0)
    if transform == "tf_crop_and_resize":
        start, end = real(axis.start), real(axis.end)
        if axis.out > 1:
            return np.asarray(start * (n - 1) + x * (end - start) * (n - 1) / (out - 1))
        return np.asarray(x * 0 + real(0.5) * (start + end) * (n - 1))
    if transform == "pytorch_half_pixel" and axis.out == 1:
        return x * 0
    half = real(0 if transform == "asymmetric" else 0.5)
    position = x + half
    symmetric = transform == "half_pixel_symmetric"
    if symmetric:
        position = position - out / 2
    if axis.exact and real is np.float64:
        position = position * real(axis.exact[1]) / real(axis.exact[0])
    else:
        position = position / real(axis.scale)
    if symmetric:
        return np.asarray(position + (n - 1) / 2)
    if transform in ("asymmetric", "tf_half_pixel_for_nn"):
        return np.asarray(position)
    return np.asarray(position - half)


def cubic(t: Array, a: float) -> Array:
    """Keys' kernel with coefficient `a`; 0 beyond 2."""
    t = np.abs(t)
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, inner, np.where(t < 2, outer, 0.0))


def linear(t: Array, a: float) -> Array:
    """The weights of linear interpolation at distances t."""
    return np.asarray(np.maximum(0.0, 1 - np.abs(t)))


def footprint(axis: ResampledAxis, reach: int, antialias: bool) -> int:
    """The number of input elements on each side that an output element reads."""
    shrink = min(1.0, axis.scale) if antialias else 1.0
    return math.ceil(reach / shrink)


def taps(
    position: Array,
    axis: ResampledAxis,
    kernel: Callable[[Array, float], Array],
    each: int,
    a: float,
    antialias: bool,
    exclude: bool,
) -> tuple[Array, Array]:
    """Indices and weights, both [out, 2 * each]; elements outside repeat the edge, or with `exclude` have weight 0."""
    base = np.floor(position)
    offsets = np.arange(1 - each, each + 1)
    index = base[:, None].astype(np.int64) + offsets
    shrink = min(1.0, axis.scale) if antialias else 1.0
    weight = kernel((offsets - (position - base)[:, None]) * shrink, a).astype(np.float64)
    if exclude:
        weight[(index < 0) | (index >= axis.length)] = 0
    if exclude or antialias:
        total = weight.sum(1, keepdims=True)
        weight = np.divide(weight, total, out=np.zeros_like(weight), where=total != 0)
    return np.clip(index, 0, axis.length - 1), weight


def resampled_shape(
    x: Array, axes: Sequence[ResampledAxis], options: ResizeAttributes, ctx: Context
) -> tuple[int, ...]:
    """The result's shape, claimed; refuses axes without elements to resample, and averages of types that have none."""
    shape = list(x.shape)
    for axis in axes:
        shape[axis.axis] = axis.out
        if axis.out and not axis.length:
            raise misfit(f"axis {axis.axis} has no elements to resample", "X", "an axis of 1 or more", x)
    itemsize = x.dtype.itemsize if options.mode == "nearest" else 8
    claim(ctx, shape, np.dtype(f"V{itemsize}"), "X")
    if 0 not in shape and options.mode != "nearest" and x.dtype in (np.bool_, np.object_):
        raise refuse(
            f"X is {type_name(x.dtype)}, which has no averages", "X", "numbers, or mode nearest", type_name(x.dtype)
        )
    return tuple(shape)


def resample(x: Array, axes: Sequence[ResampledAxis], options: ResizeAttributes, ctx: Context) -> Array:
    """Resample x along its axes, one after the other."""
    shape = resampled_shape(x, axes, options, ctx)
    if 0 in shape:
        return np.empty(shape, x.dtype)
    y = x if options.mode == "nearest" else x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    outside: list[tuple[int, Array]] = []
    for axis in axes:
        position = _places(axis, options, ctx)
        if options.coordinate_transformation_mode == "tf_crop_and_resize":
            outside.append((axis.axis, (position < 0) | (position > axis.length - 1)))
        size = (*y.shape[: axis.axis], axis.out, *y.shape[axis.axis + 1 :])
        claim(ctx, size, y.dtype, "X")
        y = _one_axis(y, axis, _table(axis, position, options, ctx))
    y = _round(y, x.dtype, ctx) if options.mode != "nearest" else y
    return _extrapolate(y, outside, options.extrapolation_value, ctx) if outside else y


Table = tuple[Array, Array | None]
"""Indices [out] and no weights, of the nearest elements; or indices and weights, both [out, taps]."""


def axis_table(axis: ResampledAxis, options: ResizeAttributes, ctx: Context) -> Table | None:
    """The indices and weights for each output element of an axis; None if all elements stay unchanged."""
    return _table(axis, _places(axis, options, ctx), options, ctx)


def _places(axis: ResampledAxis, options: ResizeAttributes, ctx: Context) -> Array:
    """The source coordinate of each output index along an axis."""
    ctx.claim((axis.out,), 8, "coordinates")
    return coordinates(axis, options.coordinate_transformation_mode, np.float32 if ctx.arith == "ort" else np.float64)


def _table(axis: ResampledAxis, position: Array, options: ResizeAttributes, ctx: Context) -> Table | None:
    """Source indices and weights of each output index; None if the axis stays as it is."""
    still = axis.out == axis.length and np.array_equal(position, np.arange(axis.out))
    if still and not (options.antialias and axis.scale < 1):
        return None
    position = np.clip(position, -(2.0**33), 2.0**33)
    if options.mode == "nearest":
        return np.clip(NEAREST_MODES[options.nearest_mode](position), 0, axis.length - 1).astype(np.int64), None
    kernel, reach = (linear, 1) if options.mode == "linear" else (cubic, 2)
    each = footprint(axis, reach, bool(options.antialias))
    ctx.claim((axis.out, 2 * each, 4), 8, "weights")
    return taps(
        position, axis, kernel, each, options.cubic_coeff_a, bool(options.antialias), bool(options.exclude_outside)
    )


def _one_axis(y: Array, axis: ResampledAxis, table: Table | None) -> Array:
    """Resample along one axis."""
    if table is None:
        return y
    index, weight = table
    if weight is None:
        return np.take(y, index, axis=axis.axis)
    total = np.zeros((*y.shape[: axis.axis], axis.out, *y.shape[axis.axis + 1 :]), y.dtype)
    along = (-1,) + (1,) * (y.ndim - axis.axis - 1)
    with np.errstate(all="ignore"):
        if in_order(weight):
            for tap in range(weight.shape[1]):
                if weight[:, tap].any():
                    total += np.take(y, index[:, tap], axis=axis.axis) * weight[:, tap].reshape(along)
        else:
            for row in range(axis.out):
                used = np.flatnonzero(weight[row])
                part = np.take(y, index[row, used], axis=axis.axis) * weight[row, used].reshape(along)
                total[(slice(None),) * axis.axis + (row,)] = part.sum(axis.axis)
    return total


def in_order(weight: Array) -> bool:
    """Whether sums with weights [out, taps] are added tap by tap, without taps whose weights are all 0."""
    return bool(weight.shape[1] <= 4 * weight.shape[0])


def _round(y: Array, dtype: np.dtype[Any], ctx: Context) -> Array:
    """Convert to the output's type: rounded (truncated in ort arithmetic) and saturated for integers."""
    if dtype.kind == "c":
        with np.errstate(all="ignore"):
            return y.astype(dtype)
    if dtype.kind not in "iu":
        return narrow(y, dtype)
    with np.errstate(all="ignore"):
        whole = np.trunc(y) if ctx.arith == "ort" else np.rint(y)
        low, high = (int(b) for b in bounds(dtype))
        inside = (whole >= low) & (whole < float(high + 1))
        made = np.where(inside, whole, 0).astype(dtype)
    made[whole >= float(high + 1)] = high
    made[whole < low] = low
    return made


def _extrapolate(y: Array, outside: Sequence[tuple[int, Array]], value: float, ctx: Context) -> Array:
    """Fill elements whose coordinates are outside the source with `value`."""
    masks = [mask.reshape((-1,) + (1,) * (y.ndim - axis - 1)) for axis, mask in outside if mask.any()]
    if not masks:
        return y
    y = np.array(y)
    if y.dtype == np.object_ or y.dtype == np.bool_:
        fill: Any = str(value) if y.dtype == np.object_ else value != 0
    else:
        fill = _round(np.full(1, value, np.float64), y.dtype, ctx)
    for mask in masks:
        y[np.broadcast_to(mask, y.shape)] = fill
    return y
