"""GridSample and AffineGrid."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._float import is_integer, narrow, widen
from qrun.ops._op import Array, Context, op, refuse
from qrun.ops._shape import claim, ints

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_CUBIC = -0.75


@op("GridSample", since=16)
def grid_sample_16(
    X: Array,
    grid: Array,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    ctx: Context,
) -> Array:
    """GridSample-20 of two spatial axes, whose modes are bilinear, nearest and bicubic. Source: ONNX operators, GridSample-16."""
    if mode not in (*_MODES, "nearest"):
        raise refuse(f"mode is {mode}", "mode", "bilinear, nearest, bicubic", mode, code="QR204")
    return _grid_sample(X, grid, align_corners, _MODES.get(mode, mode), padding_mode, ctx)


@op("GridSample", since=20)
def grid_sample(
    X: Array,
    grid: Array,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
    ctx: Context,
) -> Array:
    """Y[n,c,out...] = X[n,c] at grid[n,out...], between its elements: X [N,C,spatial...], grid [N,out...,r].

    A place in the grid has the last spatial axis first, and goes from -1 to 1: over the centres of the corner elements
    with align_corners, else over their outer edges. mode: linear, nearest (halves to even) or cubic (a = -0.75, two axes).
    padding_mode: beyond X are zeros, the border's elements, or X reflected (at the
    border's centres with align_corners, else at its edges).
    In float64 and rounded once; integers toward 0; nearest moves elements of any type.
    Raises OperatorError for shapes, modes and places that are no numbers. Source: ONNX operators, GridSample-22.
    """
    return _grid_sample(X, grid, align_corners, mode, padding_mode, ctx)


def _grid_sample(X: Array, grid: Array, align_corners: int, mode: str, padding_mode: str, ctx: Context) -> Array:
    rank, name = X.ndim - 2, mode
    if rank < 1 or grid.ndim != X.ndim or grid.shape[0] != X.shape[0] or grid.shape[-1] != rank:
        expected = (
            f"[{X.shape[0] if X.ndim else 'N'},{'out,' * max(rank, 1)}{max(rank, 1)}] for X {shape_text(X.shape)}"
        )
        raise refuse("grid does not fit X", "grid", expected, grid, code="QR208")
    if name not in ("linear", "nearest", "cubic") or (name == "cubic" and rank != 2):
        raise refuse(f"mode is {mode}", "mode", "linear, nearest, or cubic for two spatial axes", mode, code="QR204")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise refuse(f"padding_mode is {padding_mode}", "padding_mode", "zeros, border, reflection", padding_mode,
                     code="QR204")  # fmt: skip
    if X.dtype == object or X.dtype.kind == "c" or X.dtype == bool:
        name = "nearest" if name == "nearest" else _refused(X)
    shape = (*X.shape[:2], *grid.shape[1:-1])
    claim(ctx, shape, np.dtype(np.float64), "grid")
    if not all(X.shape[2:]):
        raise refuse("X has no elements to sample", "X", "spatial axes of 1 or more", X, code="QR208")
    places = _places(grid, X.shape[2:], bool(align_corners))
    return _sampled(X, places, name, padding_mode, bool(align_corners), shape)


def _refused(x: Array) -> str:
    raise refuse("elements of this type have nothing between them", "mode", "nearest", str(x.dtype), code="QR204")


def _places(grid: Array, size: tuple[int, ...], align: bool) -> list[Array]:
    """For each spatial axis the places in units of elements, float64 [N,out...]."""
    wide = widen(grid)
    if not np.isfinite(wide).all():
        raise refuse("grid has a place that is no number", "grid", "finite numbers", "NaN or infinity")
    turned = [wide[..., axis] for axis in reversed(range(len(size)))]
    with np.errstate(all="ignore"):
        return [(g + 1) / 2 * (n - 1) if align else ((g + 1) * n - 1) / 2 for g, n in zip(turned, size, strict=True)]


def _sampled(x: Array, places: list[Array], mode: str, padding: str, align: bool, shape: Any) -> Array:
    size = x.shape[2:]
    if mode == "nearest":
        near = [np.rint(p) for p in places]
        return np.asarray(_picked(x, near, padding, align))
    if padding != "zeros" and mode == "linear":
        places = [_inside(p, n, padding, align) for p, n in zip(places, size, strict=True)]
    reach = range(2) if mode == "linear" else range(-1, 3)
    starts = [np.floor(p) for p in places]
    shares = [(_linear if mode == "linear" else _cubic)(p - s) for p, s in zip(places, starts, strict=True)]
    total = np.zeros(shape)
    with np.errstate(all="ignore"):
        for offsets in itertools.product(range(len(reach)), repeat=len(size)):
            weight = math.prod(share[o] for share, o in zip(shares, offsets, strict=True))
            at = [s + reach[o] for s, o in zip(starts, offsets, strict=True)]
            total += np.asarray(weight)[:, None] * widen(_picked(x, at, padding, align))
    return total.astype(x.dtype) if is_integer(x.dtype) else narrow(total, x.dtype)


def _linear(t: Array) -> list[Array]:
    return [1 - t, t]


def _cubic(t: Array) -> list[Array]:
    def near(d: Array) -> Array:
        return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _inside(place: Array, size: int, padding: str, align: bool) -> Array:
    """Places beyond the elements brought back to them."""
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span > 0:
            away = np.abs(place - low)
            turn = np.floor(away / span)
            rest = away - turn * span
            place = np.where(turn % 2 == 0, low + rest, low + span - rest)
        else:
            place = np.zeros_like(place)
    return np.clip(place, 0, size - 1)


def _picked(x: Array, at: list[Array], padding: str, align: bool) -> Array:
    """The elements [N,C,out...] at whole places, float64 [N,out...]."""
    size = x.shape[2:]
    kept = np.ones(at[0].shape, bool)
    index = []
    for place, n in zip(at, size, strict=True):
        if padding == "zeros":
            kept &= (place >= 0) & (place <= n - 1)
        inner = place if padding == "zeros" else _inside(place, n, padding, align)
        index.append(np.clip(np.rint(inner), 0, n - 1).astype(np.int64))
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * (at[0].ndim - 1))
    found = np.moveaxis(x, 1, -1)[(batch, *index)]
    found = np.moveaxis(found, -1, 1)
    fill: Any = "" if x.dtype == object else np.zeros((), x.dtype)
    return np.asarray(found if kept.all() else np.where(kept[:, None], found, fill))


@op("AffineGrid", since=20)
def affine_grid(theta: Array, size: Array, *, align_corners: int = 0, ctx: Context) -> Array:
    """theta @ [x, y, (z,) 1] for each place of an image: theta [N,2,3] or [N,3,4], size [N,C,H,W] or [N,C,D,H,W].

    x, y and z go from -1 to 1, over the centres of the corner elements with align_corners, else over their outer edges.
    Result [N,H,W,2] or [N,D,H,W,3]. In float64 and rounded once. Raises OperatorError for shapes that do not fit.
    Source: ONNX operators, AffineGrid-20.
    """
    dims = ints(size, "size")
    rank = len(dims) - 2
    if rank not in (2, 3) or min(dims) < 0:
        raise refuse("size is that of no image", "size", "[N,C,H,W] or [N,C,D,H,W]", shape_text(dims), code="QR208")
    if theta.shape != (dims[0], rank, rank + 1):
        raise refuse("theta does not fit size", "theta", shape_text((dims[0], rank, rank + 1)), theta, code="QR208")
    shape = claim(ctx, (dims[0], *dims[2:], rank), np.dtype(np.float64), "size")
    lines = []
    for n in dims[2:]:
        whole = np.arange(n)
        lines.append(-1 + whole * (2 / max(n - 1, 1)) if align_corners else (2 * whole + 1) / max(n, 1) - 1)
    if align_corners:
        lines = [np.zeros(1) if len(line) == 1 else line for line in lines]
    axes = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(axes), np.ones(dims[2:])], axis=-1).reshape(-1, rank + 1)
    with np.errstate(all="ignore"):
        return narrow(np.einsum("pk,nik->npi", points, widen(theta)).reshape(shape), theta.dtype)
