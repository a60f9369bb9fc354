"""LpPool, GlobalLpPool and MaxRoiPool."""

from __future__ import annotations

import math

import numpy as np

from qrun.ops._float import narrow, single, widen
from qrun.ops._op import Array, Context, misfit, op, refuse, require
from qrun.ops._reduce import extreme, sum_over
from qrun.ops._window import PoolGeometry, check_rank, padded, patches


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
    return _norm(patches(padded(X, win, 0, ctx), win), p, tuple(range(2, 2 + rank)))


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
    if x.ndim < 3:
        raise misfit("X has no spatial axes", "X", "[N,C,spatial...]", x)
    require("p", p >= 1, "1 or more", p)


def _norm(x: Array, p: int, axes: tuple[int, ...]) -> Array:
    """The p-norm over axes, of elements that are divided by the largest one first, so that no power overflows."""
    with np.errstate(all="ignore"):
        size = np.abs(widen(x))
        top = np.max(size, axis=axes, keepdims=True, initial=0.0)
        unit = np.where((top == 0) | ~np.isfinite(top), 1.0, 2.0 ** np.floor(np.log2(np.where(top > 0, top, 1.0))))
        added = sum_over((size / unit) ** p, axes, False)
        root = added if p == 1 else np.sqrt(added) if p == 2 else added ** (1.0 / p)
        return narrow(root * unit.reshape(root.shape), x.dtype)


@op("MaxRoiPool", since=1)
def max_roi_pool(
    X: Array, rois: Array, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0, ctx: Context
) -> Array:
    """The largest element of each bin of each region: [regions,C,*pooled_shape] of X [N,C,H,W].

    rois [regions,5]: number of the image, x1, y1, x2, y2; coordinates times spatial_scale are rounded to elements,
    halves away from 0, and x2 and y2 belong to the region, which is 1 wide at least. Bin i of n of a region of length L
    goes from floor(i L / n) to before ceil((i + 1) L / n): bins may share elements. A bin without elements inside X
    gives 0, NaN in it NaN; -0 is less than +0. Exact. Raises OperatorError for shapes,
    images and attributes that do not fit.
    """
    if X.ndim != 4:
        raise misfit("X is no image", "X", "[N,C,H,W]", X)
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise misfit("rois are no rectangles", "rois", "[regions,5]", rois)
    sizes = len(pooled_shape) == 2 and min(pooled_shape) >= 1
    require("pooled_shape", sizes, "2 numbers, each 1 or more", pooled_shape)
    ctx.claim((len(rois), X.shape[1], *pooled_shape), X.itemsize)
    made = np.zeros((len(rois), X.shape[1], *pooled_shape), X.dtype)
    scale = single(spatial_scale)
    for number, (image, *corners) in enumerate(widen(rois).tolist()):
        if image not in range(len(X)):
            raise refuse(f"there is no image {image:g}", "rois", f"0 to {len(X) - 1}", f"{image:g}", code="QR209")
        scaled = [c * scale for c in corners]
        if not all(map(math.isfinite, scaled)):
            raise refuse("a region is no number", "rois", "finite numbers", str(corners))
        x1, y1, x2, y2 = (int(math.copysign(math.floor(abs(c) + 0.5), c)) for c in scaled)
        rows = _bins(y1, y2, pooled_shape[0], X.shape[2])
        columns = _bins(x1, x2, pooled_shape[1], X.shape[3])
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                part = X[int(image), :, row, column]
                if part[:1].size:
                    made[number, :, i, j] = extreme(np.maximum, part, (1, 2), False, -np.inf)
    return made


def _bins(first: int, last: int, count: int, size: int) -> list[slice]:
    length = max(last - first + 1, 1)
    ends = [(first + i * length // count, first - (-(i + 1) * length // count)) for i in range(count)]
    return [slice(min(max(a, 0), size), min(max(b, 0), size)) for a, b in ends]
