"""Pools: MaxPool, AveragePool, LpPool, their global forms, MaxRoiPool, and NhwcMaxPool of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare import Later
from qrun.ops._complete import ALWAYS
from qrun.ops._op import Array, Context, contrib_op, misfit, op, refuse, require
from qrun.ops._window import PoolGeometry, SlidingWindow, check_rank, pad_window, patches
from qrun.ops.lowering.kernel import FLOAT, LoweringContext, NativeKernel, decline_error, kernel_of, require_type
from qrun.ops.lowering.pool import largest_kernel, taps_of

if TYPE_CHECKING:
    from qrun.ops import _float, _reduce
else:
    _float, _reduce = Later("qrun.ops._float"), Later("qrun.ops._reduce")

State = tuple[Array, ...]
_LAST = ("x", "[N,spatial...,C]")


@op("MaxPool", since=1)
def max_pool(
    X: Array,
    *,
    geometry: PoolGeometry,
    dilations: tuple[int, ...] = (),
    storage_order: int = 0,
    ctx: Context,
) -> State:
    """Return the largest element of each window as Y, and optionally its position as Indices (int64).

    X [N,C,spatial...], floating point; int8 and uint8 since version 12. Padding never counts: a window that holds
    nothing else returns -inf or the type's smallest value. A NaN in the window returns NaN; among zeros of both signs
    the first one wins.
    Indices: position of the first largest element in the flattened X, whose planes are row-major (storage_order 0) or
    column-major (1); -1 if the window holds only padding.
    Exact. Raises OperatorError for geometry that the page forbids.
    """
    win = _window(X, geometry, dilations)
    return _max(X, win, storage_order, ctx.wants(1), ctx)


@max_pool.native
def _lower_max(site: LoweringContext) -> NativeKernel:
    (x,) = site.inputs
    win = _window(x, *_geometry(site))
    site.ctx.claim((*x.shape[:2], *win.out), x.itemsize)
    return largest_kernel(site, x, x.shape[2:], win, "channels")


@contrib_op("NhwcMaxPool", types={"T": ("int8 uint8", "x")})
def nhwc_max_pool(
    x: Array,
    *,
    geometry: PoolGeometry,
    dilations: tuple[int, ...] = (),
    ctx: Context,
) -> Array:
    """MaxPool of x [N,spatial...,C], int8 or uint8; y has the same layout. Exact."""
    planes = np.moveaxis(x, -1, 1) if x.ndim > 2 else x
    win = _window(planes, geometry, dilations, *_LAST)
    return np.ascontiguousarray(np.moveaxis(_max(planes, win, 0, False, ctx)[0], 1, -1))


@nhwc_max_pool.native
def _lower_nhwc(site: LoweringContext) -> NativeKernel:
    (x,) = site.inputs
    planes = np.moveaxis(x, -1, 1) if x.ndim > 2 else x
    win = _window(planes, *_geometry(site), *_LAST)
    site.ctx.claim((*planes.shape[:2], *win.out), x.itemsize)
    return largest_kernel(site, x, planes.shape[2:], win, "rows")


@op("AveragePool", since=7)
def average_pool(
    X: Array,
    *,
    geometry: PoolGeometry,
    count_include_pad: int = 0,
    dilations: tuple[int, ...] = (),
    ctx: Context,
) -> Array:
    """Average each window of X [N,C,spatial...], which is floating point.

    The sum, in which padding is 0, is divided by the number of elements inside X, or with count_include_pad inside X
    and its pads; what ceil_mode adds beyond the end pads never counts. A window without elements gives 0.
    In float64 and rounded once to X's type; float64 stays float64.
    Raises OperatorError for geometry that the page forbids.
    """
    win = _window(X, geometry, dilations)
    return _average(X, win, count_include_pad, ctx)


@average_pool.native
def _lower_average(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.pool import AveragePool

    (x,), a = site.inputs, site.attributes
    win = _window(x, *_geometry(site))
    site.ctx.claim((*x.shape[:2], *win.out), 8)
    require_type(x.dtype == FLOAT, x.dtype, "means of {}")
    divisors = _divisors(x, win, bool(a["count_include_pad"])).reshape(-1)
    taps = taps_of(site, x.shape[2:], win)
    pool = AveragePool(site.engine, x.shape, taps, divisors)
    return kernel_of(site, pool, (0,), ALWAYS)


@op("GlobalAveragePool", since=1)
def global_average_pool(X: Array, *, ctx: Context) -> Array:
    """Average over all spatial axes: X [N,C,spatial...] becomes [N,C,1...]. The mean of no elements is NaN.

    In float64 and rounded once to X's type; float64 stays float64.
    """
    _check_rank(X, 2, "X", "[N,C,spatial...]")
    ctx.claim(X.shape[:2], 8)
    rows = np.asarray(X, order="C").reshape(math.prod(X.shape[:2]), math.prod(X.shape[2:]))
    with np.errstate(all="ignore"):
        means = _float.narrow(_reduce.row_sums(rows) / np.float64(rows.shape[1]), X.dtype)
    return means.reshape(*X.shape[:2], *(1,) * (X.ndim - 2))


@global_average_pool.native
def _lower_global_average_pool(site: LoweringContext) -> NativeKernel:
    return _lower_global(site, "mean", 8)


@op("GlobalMaxPool", since=1)
def global_max_pool(X: Array, *, ctx: Context) -> Array:
    """Return the maximum over all spatial axes: X [N,C,spatial...] becomes [N,C,1...]. Without elements it is -inf.

    Exact; +0 before -0; NaN if there is one.
    """
    _check_rank(X, 2, "X", "[N,C,spatial...]")
    ctx.claim(X.shape[:2], X.itemsize)
    return _reduce.extreme(np.maximum, X, tuple(range(2, X.ndim)), True, -np.inf)


@global_max_pool.native
def _lower_global_max_pool(site: LoweringContext) -> NativeKernel:
    return _lower_global(site, "greatest", site.inputs[0].itemsize)


def _lower_global(site: LoweringContext, kind: str, itemsize: int) -> NativeKernel:
    """The kernel of a reduction over all spatial axes. itemsize: bytes per element that the reference kernel claims."""
    from qrun.ops.lowering.float32 import reduction_kernel

    x = site.inputs[0]
    _check_rank(x, 2, "X", "[N,C,spatial...]")
    site.ctx.claim(x.shape[:2], itemsize)
    if x.ndim == 2:
        raise decline_error("no spatial axes")
    return reduction_kernel(site, kind, range(2, x.ndim), (*x.shape[:2], *(1,) * (x.ndim - 2)))


def _check_rank(x: Array, least: int, name: str, layout: str) -> None:
    """Raise OperatorError for an input without spatial axes."""
    if x.ndim < least:
        raise misfit(f"{name} has no spatial axes", name, layout, x)


def _geometry(site: LoweringContext) -> tuple[PoolGeometry, tuple[int, ...]]:
    """The kernel, strides, pads and dilations of a pooling."""
    return PoolGeometry.of(site.attributes), site.attributes["dilations"]


def _window(
    x: Array, geometry: PoolGeometry, dilations: Sequence[int], name: str = "X", layout: str = "[N,C,spatial...]"
) -> SlidingWindow:
    """The window over the spatial axes."""
    _check_rank(x, 3, name, layout)
    return geometry.window(x.shape[2:], dilations)


def _max(x: Array, win: SlidingWindow, storage_order: int, indices: bool, ctx: Context) -> State:
    """The largest elements of all windows, and their indices if wanted."""
    shape = (*x.shape[:2], *win.out)
    ctx.claim(shape, x.itemsize)
    if not math.prod(shape):
        return (np.empty(shape, x.dtype), np.empty(shape, np.int64))[: 1 + indices]
    fill = np.iinfo(x.dtype).min if _float.is_integer(x.dtype) else -np.inf
    state: State = (pad_window(x, win, fill, ctx),)
    if indices:
        ctx.claim(state[0].shape, 8, "indices")
        plane = math.prod(x.shape[2:])
        places = np.arange(plane, dtype=np.int64).reshape(1, 1, *x.shape[2:][:: -1 if storage_order else 1])
        if storage_order:
            places = places.transpose(0, 1, *range(x.ndim - 1, 1, -1))
        state = (state[0], pad_window(places, win, -1, ctx))
    with np.errstate(all="ignore"):
        state = _slide_all(state, win, _first_larger if indices else _larger)
    if not indices:
        return (np.array(state[0]),)
    planes = np.arange(math.prod(x.shape[:2]), dtype=np.int64).reshape(*x.shape[:2], *(1,) * len(win.out)) * plane
    return np.array(state[0]), np.where(state[1] < 0, np.int64(-1), state[1] + planes)


def _slide_all(state: State, win: SlidingWindow, combine: Callable[[State, State], State]) -> State:
    """Combine the elements of all windows, axis by axis."""
    lead = state[0].ndim - len(win.kernel)
    for axis in reversed(range(len(win.kernel))):
        state = _float.slide(
            state, lead + axis, win.kernel[axis], win.dilations[axis], win.strides[axis], win.out[axis], combine
        )
    return state


def _larger(a: State, b: State) -> State:
    """The larger value, the first one for equal zeros; numpy's choice between zeros differs from type to type, and
    between processors."""
    larger = np.maximum(a[0], b[0])
    if not _float.is_integer(larger.dtype):
        np.copyto(larger, a[0], where=a[0] == b[0])
    return (larger,)


def _first_larger(a: State, b: State) -> State:
    """The larger value with its position; the first of equals, but never padding (position -1) before an element."""
    better = (b[0] > a[0]) | ((b[0] != b[0]) & (a[0] == a[0])) | ((a[1] < 0) & (b[1] >= 0))
    return np.where(better, b[0], a[0]), np.where(better, b[1], a[1])


def _average(x: Array, win: SlidingWindow, include_pad: int, ctx: Context) -> Array:
    """The means of all windows."""
    shape = (*x.shape[:2], *win.out)
    ctx.claim(shape, 8)
    if not math.prod(shape):
        return np.empty(shape, x.dtype)
    source = pad_window(x, win, 0, ctx)
    ctx.claim(source.shape, 16, "sums")
    with np.errstate(all="ignore"):
        return _float.narrow(_sums(_float.widen(source), win) / _divisors(x, win, bool(include_pad)), x.dtype)


def _sums(source: Array, win: SlidingWindow) -> Array:
    """The sum of each window of a padded image, element after element in the window's own order."""
    total: Array | None = None
    for tap in np.ndindex(*win.kernel):
        spans = zip(tap, win.dilations, win.strides, win.out, strict=True)
        selection: Any = (..., *(slice(t * d, t * d + (out - 1) * step + 1, step) for t, d, step, out in spans))
        part = source[selection]
        total = part.copy() if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def _divisors(x: Array, win: SlidingWindow, include_pad: bool) -> Array:
    """The divisor of each window's sum, [out...]."""
    counts = [_counts(n, win, axis, include_pad) for axis, n in enumerate(x.shape[2:])]
    return np.asarray(np.maximum(reduce(np.multiply.outer, counts), 1), np.float64)


def _counts(size: int, win: SlidingWindow, axis: int, include_pad: bool) -> Array:
    """The number of taps of each window along one axis that lie inside the input, or inside the input and its pads."""
    start = np.arange(win.out[axis], dtype=np.int64) * win.strides[axis] - win.begin[axis]
    low, high = (-win.begin[axis], size + win.end[axis]) if include_pad else (0, size)
    step, taps = win.dilations[axis], win.kernel[axis]
    before, until = (np.clip(-((start - limit) // step), 0, taps) for limit in (low, high))
    return np.asarray(until - before)


@op("LpPool", since=2)
def lp_pool(
    X: Array,
    *,
    geometry: PoolGeometry,
    dilations: tuple[int, ...] = (),
    p: int = 2,
    ctx: Context,
) -> Array:
    """(sum of |x|**p)**(1/p) over windows of the spatial axes of X [N,C,spatial...]; padding counts as 0.

    In float64 and rounded once. Raises OperatorError for a p below 1 and geometry that does not fit.
    """
    _check(X, p)
    check_rank(X.ndim - 2, "X")
    win = geometry.window(X.shape[2:], dilations)
    shape = (*X.shape[:2], *win.out)
    ctx.claim((*shape, math.prod(win.kernel)), 8, "windows")
    if not math.prod(shape):
        return np.empty(shape, X.dtype)
    rank = len(win.kernel)
    return _norm(patches(pad_window(X, win, 0, ctx), win), p, tuple(range(2, 2 + rank)))


@op("GlobalLpPool", since=2)
def global_lp_pool(X: Array, *, p: int = 2, ctx: Context) -> Array:
    """(sum of |x|**p)**(1/p) over all spatial axes of X [N,C,spatial...], which become 1.

    In float64 and rounded once. Raises OperatorError for a p below 1 and another rank.
    """
    _check(X, p)
    ctx.claim(X.shape, 8)
    made = _norm(X.reshape(*X.shape[:2], math.prod(X.shape[2:])), p, (2,))
    return made.reshape(*X.shape[:2], *(1,) * (X.ndim - 2))


def _check(x: Array, p: int) -> None:
    """Raise OperatorError for an input of LpPool without spatial axes, or a p below 1."""
    if x.ndim < 3:
        raise misfit("X has no spatial axes", "X", "[N,C,spatial...]", x)
    require("p", p >= 1, "1 or more", p)


def _norm(x: Array, p: int, axes: tuple[int, ...]) -> Array:
    """The p-norm over axes; elements are first divided by a power of two near the largest, against overflow."""
    with np.errstate(all="ignore"):
        size = np.abs(_float.widen(x))
        top = np.max(size, axis=axes, keepdims=True, initial=0.0)
        unit = np.where((top == 0) | ~np.isfinite(top), 1.0, 2.0 ** np.floor(np.log2(np.where(top > 0, top, 1.0))))
        added = _reduce.sum_over((size / unit) ** p, axes, False)
        root = added if p == 1 else np.sqrt(added) if p == 2 else added ** (1.0 / p)
        return _float.narrow(root * unit.reshape(root.shape), x.dtype)


@op("MaxRoiPool", since=1)
def max_roi_pool(
    X: Array, rois: Array, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0, ctx: Context
) -> Array:
    """Return the maximum of each bin of each region of X [N,C,H,W], as [regions,C,*pooled_shape].

    rois [regions,5]: number of the image, x1, y1, x2, y2; coordinates times spatial_scale are rounded to elements,
    halves away from 0, and x2 and y2 belong to the region, which is 1 wide at least. Bin i of n of a region of length L
    goes from floor(i L / n) to before ceil((i + 1) L / n): bins may share elements. A bin without elements inside X
    gives 0, NaN in it NaN; -0 is less than +0. Exact. Raises OperatorError for shapes,
    images and attributes that do not fit.
    """
    if X.ndim != 4:
        raise misfit("X is not an image", "X", "[N,C,H,W]", X)
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise misfit("rois are not rectangles", "rois", "[regions,5]", rois)
    sizes = len(pooled_shape) == 2 and min(pooled_shape) >= 1
    require("pooled_shape", sizes, "2 numbers, each 1 or more", pooled_shape)
    ctx.claim((len(rois), X.shape[1], *pooled_shape), X.itemsize)
    made = np.zeros((len(rois), X.shape[1], *pooled_shape), X.dtype)
    scale = _float.single(spatial_scale)
    for number, (image, *corners) in enumerate(_float.widen(rois).tolist()):
        if image not in range(len(X)):
            raise refuse(f"no image {image:g}", "rois", f"0 to {len(X) - 1}", f"{image:g}", code="QR209")
        scaled = [c * scale for c in corners]
        if not all(map(math.isfinite, scaled)):
            raise refuse("a region is not a number", "rois", "finite numbers", str(corners))
        x1, y1, x2, y2 = (int(math.copysign(math.floor(abs(c) + 0.5), c)) for c in scaled)
        rows = _bins(y1, y2, pooled_shape[0], X.shape[2])
        columns = _bins(x1, x2, pooled_shape[1], X.shape[3])
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                part = X[int(image), :, row, column]
                if part[:1].size:
                    made[number, :, i, j] = _reduce.extreme(np.maximum, part, (1, 2), False, -np.inf)
    return made


def _bins(first: int, last: int, count: int, size: int) -> list[slice]:
    """The rows or columns of each bin of a region."""
    length = max(last - first + 1, 1)
    ends = [(first + i * length // count, first - (-(i + 1) * length // count)) for i in range(count)]
    return [slice(min(max(a, 0), size), min(max(b, 0), size)) for a, b in ends]
