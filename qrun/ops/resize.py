"""Operators that interpolate between elements of images: Resize, Upsample, GridSample, AffineGrid and RoiAlign."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._float import axes_in, is_integer, narrow, single, widen
from qrun.ops._op import Array, Context, bad_attribute, bad_shape, check_range, misfit, one_of, op, refuse, require
from qrun.ops._reduce import extreme
from qrun.ops._resample import NEAREST_MODES, TRANSFORMS, ResampledAxis, ResizeAttributes, cubic, resample
from qrun.ops._shape import claim, ints, same_length
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel

_POLICIES = ("stretch", "not_larger", "not_smaller")
_ROI_LIMIT = 2.0**20


@op("Upsample", since=7)
def upsample_7(X: Array, *, scales: tuple[float, ...], mode: str = "nearest", ctx: Context) -> Array:
    """Resize-10 with scales of 1 or more as an attribute. Source: ONNX operators, Upsample-7."""
    return _resize_10(X, _enlarges(_scales_7(scales)), mode, ctx)


def _scales_7(scales: Sequence[float]) -> Array:
    """The scales of Upsample-7, an attribute, as float32."""
    return np.array(scales, np.float64).astype(np.float32)


@op("Upsample", since=9)
def upsample_9(X: Array, scales: Array, *, mode: str = "nearest", ctx: Context) -> Array:
    """Resize-10 with scales of 1 or more. Source: it ended with opset 9."""
    _check_ended(ctx)
    return _resize_10(X, _enlarges(scales), mode, ctx)


def _check_ended(ctx: Context) -> None:
    """Raise OperatorError for Upsample in opset 10 and later."""
    if ctx.version >= 10:
        raise refuse(
            "Upsample ended with opset 9", "X", "Resize, in opset 10 and later", f"Upsample in opset {ctx.version}"
        )


def _enlarges(scales: Array) -> Array:
    """The scales. Raises OperatorError for scales below 1."""
    if bool((scales < 1).any()):
        raise refuse("a scale is below 1", "scales", "scales of 1 or more", scales.reshape(-1).tolist())
    return scales


@op("Resize", since=10)
def resize_10(X: Array, scales: Array, *, mode: str = "nearest", ctx: Context) -> Array:
    """Resample by `scales`, one for each axis: element i comes from i / scale, floored (nearest) or linear.

    Source: ONNX operators, Resize-10.
    """
    return _resize_10(X, scales, mode, ctx)


def _resize_10(x: Array, scales: Array, mode: str, ctx: Context) -> Array:
    """Resize as Resize-10 and Upsample do."""
    return resample(x, *_axes_10(x, scales, mode, ctx), ctx)


def _axes_10(x: Array, scales: Array, mode: str, ctx: Context) -> tuple[list[ResampledAxis], ResizeAttributes]:
    """The axes to resample and the options of Resize-10 and Upsample."""
    one_of("mode", mode, ("nearest", "linear"))
    options = ResizeAttributes(mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return _by_scales(x, scales, range(x.ndim), None, options, ctx), options


@op("Resize", since=11)
def resize(
    X: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    options: ResizeAttributes,
    ctx: Context,
) -> Array:
    """Resize the given axes (default: all), one by one, by `scales` or to `sizes`: nearest, linear or cubic.

    Output length: sizes as the policy adapts them, or floor(length * (end - start) * scale) in float32 as
    onnx.shape_inference computes it. roi: [starts ..., ends ...], for tf_crop_and_resize.
    A scale that is the float32 nearest to output / input length means that quotient itself.

    Exact decisions: coordinates are computed in float64 (``--arith ort``: float32). Sums are float64, rounded once
    to X's type; integers are rounded to nearest, ties to even, and saturate (``ort``: cut off).
    """
    found = _axes(X, roi, scales, sizes, options, ctx)
    return X if found is None else resample(X, found, options, ctx)


def _axes(
    x: Array, roi: Array | None, scales: Array | None, sizes: Array | None, options: ResizeAttributes, ctx: Context
) -> list[ResampledAxis] | None:
    """The axes to resample; None for no axes at all."""
    one_of("mode", options.mode, ("nearest", "linear", "cubic"))
    one_of("coordinate_transformation_mode", options.coordinate_transformation_mode, TRANSFORMS)
    one_of("nearest_mode", options.nearest_mode, NEAREST_MODES)
    one_of("keep_aspect_ratio_policy", options.keep_aspect_ratio_policy, _POLICIES)
    by_scales = scales is not None and scales.size > 0
    by_sizes = sizes is not None and sizes.size > 0
    places = axes_in(range(x.ndim) if options.axes is None else options.axes, x.ndim)
    if by_scales == by_sizes:
        if not by_scales and not places:
            return None
        raise refuse("either scales or sizes is given", "scales", "one of them", "both" if by_scales else "neither")
    region = None
    if options.coordinate_transformation_mode == "tf_crop_and_resize":
        region = _region(roi, len(places))
    if by_scales:
        assert scales is not None
        return _by_scales(x, scales, places, region, options, ctx)
    assert sizes is not None
    return _by_sizes(x, ints(sizes, "sizes"), places, region, options.keep_aspect_ratio_policy)


@resize.native
@EveryType
def _lower(site: LoweringContext) -> NativeKernel:
    from qrun.ops.lowering.resize import resize_kernel

    x, roi, scales, sizes = site.inputs
    options = ResizeAttributes.of(site.attributes)
    return resize_kernel(site, options, lambda: _axes(x, roi, scales, sizes, options, site.ctx))


def _lower_10(site: LoweringContext, scales: Array) -> NativeKernel:
    """The native kernel of Resize-10 and Upsample."""
    from qrun.ops.lowering.resize import resize_kernel

    axes, options = _axes_10(site.inputs[0], scales, site.attributes["mode"], site.ctx)
    return resize_kernel(site, options, lambda: axes)


@upsample_7.native
@EveryType
def _lower_upsample_7(site: LoweringContext) -> NativeKernel:
    return _lower_10(site, _enlarges(_scales_7(site.attributes["scales"])))


@upsample_9.native
@EveryType
def _lower_upsample_9(site: LoweringContext) -> NativeKernel:
    _check_ended(site.ctx)
    return _lower_10(site, _enlarges(site.inputs[1]))


@resize_10.native
@EveryType
def _lower_resize_10(site: LoweringContext) -> NativeKernel:
    return _lower_10(site, site.inputs[1])


def _region(roi: Array | None, count: int) -> list[tuple[float, float]]:
    """The region of tf_crop_and_resize: (start, end) for each axis. Raises OperatorError."""
    values = [] if roi is None else [float(v) for v in roi.astype(np.float64).reshape(-1)]
    same_length(values, 2 * count, "roi", "tf_crop_and_resize needs a start and an end for each axis.")
    if not all(abs(v) < _ROI_LIMIT for v in values):
        raise refuse("roi is out of range", "roi", "numbers around 0 to 1", values)
    return list(zip(values[:count], values[count:], strict=True))


def _by_scales(
    x: Array,
    scales: Array,
    places: Sequence[int],
    region: list[tuple[float, float]] | None,
    options: ResizeAttributes,
    ctx: Context,
) -> list[ResampledAxis]:
    """The axes to resample, from scales; `places` are their positions in x. Raises OperatorError."""
    values = [float(v) for v in scales.reshape(-1)[: 2 * x.ndim + 1]]
    if scales.ndim != 1 or len(values) != len(places):
        raise bad_shape("scales", f"[{len(places)}]", scales)
    found = []
    for number, (axis, scale) in enumerate(zip(places, values, strict=True)):
        if not (scale > 0 and math.isfinite(scale)):
            raise refuse("a scale is not positive and finite", "scales", "numbers above 0", values)
        length = x.shape[axis]
        start, end = region[number] if region else (0.0, 1.0)
        with np.errstate(all="ignore"):
            real = np.float32(scale) * np.float32(end - start) * np.float32(length)
        if not np.isfinite(real) or real < 0:
            raise refuse("the output length is not a size", "scales", "a length of 0 or more", f"{real} on axis {axis}")
        out = int(real)
        ratio = (out, length) if length and out and np.float32(out / length) == np.float32(scale) else None
        found.append(ResampledAxis(axis, length, out, scale, start, end, ratio))
    return found


def _by_sizes(
    x: Array, sizes: Sequence[int], places: Sequence[int], region: list[tuple[float, float]] | None, policy: str
) -> list[ResampledAxis]:
    """The axes to resample, from sizes; `places` are their positions in x. Raises OperatorError."""
    same_length(sizes, len(places), "sizes", "Resize: one size for each axis.")
    if any(n < 0 for n in sizes):
        raise refuse("a size is negative", "sizes", "sizes of 0 or more", list(sizes))
    lengths = [x.shape[p] for p in places]
    if policy == "stretch":
        ratios = list(zip(sizes, lengths, strict=True))
        outs = list(sizes)
    else:
        if not all(lengths):
            raise misfit(f"{policy} has no aspect ratio to keep", "X", "axes of 1 or more", x)
        choose = min if policy == "not_larger" else max
        up, down = choose(zip(sizes, lengths, strict=True), key=lambda r: Fraction(*r))
        ratios = [(up, down)] * len(places)
        outs = [(2 * up * n + down) // (2 * down) for n in lengths]
    found = []
    for number, axis in enumerate(places):
        start, end = region[number] if region else (0.0, 1.0)
        up, down = ratios[number]
        scale = up / down if down else 1.0
        found.append(
            ResampledAxis(axis, x.shape[axis], outs[number], scale, start, end, (up, down) if up and down else None)
        )
    return found


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
    """GridSample-20 of two spatial axes, whose modes are bilinear, nearest and bicubic.
    Source: ONNX operators, GridSample-16."""
    one_of("mode", mode, (*_MODES, "nearest"))
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
    with align_corners, else over their outer edges. mode: linear, nearest (halves to even) or cubic (a = -0.75,
    two axes).
    padding_mode: beyond X are zeros, the border's elements, or X reflected (at the
    border's centres with align_corners, else at its edges).
    In float64 and rounded once; integers toward 0; nearest moves elements of any type.
    Raises OperatorError for shapes and modes that do not fit, and for places that are not finite.
    """
    return _grid_sample(X, grid, align_corners, mode, padding_mode, ctx)


def _grid_sample(X: Array, grid: Array, align_corners: int, mode: str, padding_mode: str, ctx: Context) -> Array:
    """Sample X [N,C,...] at the coordinates of grid [N,...,spatial axes]."""
    rank = X.ndim - 2
    if rank < 1 or grid.ndim != X.ndim or grid.shape[0] != X.shape[0] or grid.shape[-1] != rank:
        expected = (
            f"[{X.shape[0] if X.ndim else 'N'},{'out,' * max(rank, 1)}{max(rank, 1)}] for X {shape_text(X.shape)}"
        )
        raise misfit("grid does not fit X", "grid", expected, grid)
    if mode not in ("linear", "nearest", "cubic") or (mode == "cubic" and rank != 2):
        raise bad_attribute("mode", "linear, nearest, or cubic for two spatial axes", mode)
    one_of("padding_mode", padding_mode, ("zeros", "border", "reflection"))
    if mode != "nearest" and (X.dtype == object or X.dtype.kind == "c" or X.dtype == bool):
        what = "elements of this type have nothing between them"
        raise refuse(what, "mode", "nearest", str(X.dtype), code="QR204")
    shape = (*X.shape[:2], *grid.shape[1:-1])
    claim(ctx, shape, np.dtype(np.float64), "grid")
    if not all(X.shape[2:]):
        raise misfit("X has no elements to sample", "X", "spatial axes of 1 or more", X)
    places = _places(grid, X.shape[2:], bool(align_corners))
    return _sample(X, places, mode, padding_mode, bool(align_corners), shape)


def _places(grid: Array, size: tuple[int, ...], align: bool) -> list[Array]:
    """For each spatial axis, the positions in units of elements, float64 [N,out...]."""
    wide = widen(grid)
    if not np.isfinite(wide).all():
        raise refuse("grid is not finite", "grid", "finite numbers", "NaN or infinity")
    turned = [wide[..., axis] for axis in reversed(range(len(size)))]
    with np.errstate(all="ignore"):
        return [(g + 1) / 2 * (n - 1) if align else ((g + 1) * n - 1) / 2 for g, n in zip(turned, size, strict=True)]


def _sample(x: Array, places: list[Array], mode: str, padding: str, align: bool, shape: Any) -> Array:
    """Interpolate x at coordinates, one array per spatial axis."""
    size = x.shape[2:]
    if mode == "nearest":
        near = [np.rint(p) for p in places]
        return np.asarray(_pick(x, near, padding, align))
    if padding != "zeros" and mode == "linear":
        places = [_inside(p, n, padding, align) for p, n in zip(places, size, strict=True)]
    reach = range(2) if mode == "linear" else range(-1, 3)
    starts = [np.floor(p) for p in places]
    parts = [p - s for p, s in zip(places, starts, strict=True)]
    shares = [[1 - t, t] if mode == "linear" else [cubic(t - o, _CUBIC) for o in reach] for t in parts]
    total = np.zeros(shape)
    with np.errstate(all="ignore"):
        for offsets in itertools.product(range(len(reach)), repeat=len(size)):
            weight = math.prod(share[o] for share, o in zip(shares, offsets, strict=True))
            at = [s + reach[o] for s, o in zip(starts, offsets, strict=True)]
            total += np.asarray(weight)[:, None] * widen(_pick(x, at, padding, align))
    return total.astype(x.dtype) if is_integer(x.dtype) else narrow(total, x.dtype)


def _inside(positions: Array, size: int, padding: str, align: bool) -> Array:
    """The positions; those beyond the elements are moved inside as the padding mode says."""
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span > 0:
            away = np.abs(positions - low)
            turn = np.floor(away / span)
            rest = away - turn * span
            positions = np.where(turn % 2 == 0, low + rest, low + span - rest)
        else:
            positions = np.zeros_like(positions)
    return np.clip(positions, 0, size - 1)


def _pick(x: Array, at: list[Array], padding: str, align: bool) -> Array:
    """The elements [N,C,out...] at integer positions, float64 [N,out...]."""
    size = x.shape[2:]
    kept = np.ones(at[0].shape, bool)
    index = []
    for position, n in zip(at, size, strict=True):
        if padding == "zeros":
            kept &= (position >= 0) & (position <= n - 1)
        inner = position if padding == "zeros" else _inside(position, n, padding, align)
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
    """
    dims = ints(size, "size")
    rank = len(dims) - 2
    if rank not in (2, 3) or min(dims) < 0:
        raise misfit("size is not an image size", "size", "[N,C,H,W] or [N,C,D,H,W]", shape_text(dims))
    if theta.shape != (dims[0], rank, rank + 1):
        raise misfit("theta does not fit size", "theta", shape_text((dims[0], rank, rank + 1)), theta)
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
        return narrow(np.einsum("pk,nik->npi", points, np.asarray(widen(theta), order="C")).reshape(shape), theta.dtype)


@op("RoiAlign", since=10)
def roi_align(
    X: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    ctx: Context,
) -> Array:
    """Means (avg) or maxima of samples of each bin of each region: [regions,C,output_height,output_width].

    X [N,C,H,W]; rois [regions,4], x1, y1, x2, y2, times spatial_scale; batch_indices int64 [regions]. half_pixel takes
    0.5 from coordinates; output_half_pixel does not, and regions are 1 wide at least. A bin has sampling_ratio samples
    along each axis, or as many as the region's width over the output's, rounded up. A sample lies between four
    elements, in straight lines; more than 1 beyond X it is 0. max: of the four weighted elements of all samples; -0 is
    less than +0. In float64 and rounded once. Raises OperatorError for shapes, indices and attributes that do not fit.
    Source: version 10 has output_half_pixel only.
    """
    sizes = (output_height, output_width, sampling_ratio)
    words = ("output_half_pixel" if ctx.version < 16 else coordinate_transformation_mode, mode)
    _check(X, rois, batch_indices, words, sizes)
    ctx.claim((len(rois), X.shape[1], output_height, output_width), 8)
    made = np.zeros((len(rois), X.shape[1], output_height, output_width))
    scale, offset = single(spatial_scale), 0.5 if words[0] == "half_pixel" else 0.0
    corners = widen(rois) * scale - offset
    for number, (x1, y1, x2, y2) in enumerate(corners.tolist()):
        if not all(map(math.isfinite, (x1, y1, x2, y2))):
            raise refuse("a region is not a number", "rois", "finite numbers", str(rois[number].tolist()))
        sides = [(y1, y2 - y1, output_height, X.shape[2]), (x1, x2 - x1, output_width, X.shape[3])]
        lines = [_samples(*side, sampling_ratio, words[0] != "half_pixel", ctx) for side in sides]
        image = widen(X[int(batch_indices[number])])
        made[number] = _pool(image, lines[0], lines[1], mode == "max", ctx)
    return narrow(made, X.dtype)


def _check(x: Array, rois: Array, numbers: Array, words: tuple[str, str], sizes: tuple[int, int, int]) -> None:
    """Raise OperatorError for an image or regions that RoiAlign cannot take."""
    if x.ndim != 4 or not x.shape[2] * x.shape[3]:
        raise misfit("X is not an image", "X", "[N,C,H,W], H and W 1 or more", x)
    if rois.ndim != 2 or rois.shape[1] != 4:
        raise misfit("rois are not rectangles", "rois", "[regions,4]", rois)
    if numbers.shape != rois.shape[:1]:
        raise misfit("batch_indices do not fit rois", "batch_indices", f"[{len(rois)}]", numbers)
    check_range(numbers, len(x), "batch_indices", "image")
    one_of("coordinate_transformation_mode", words[0], ("half_pixel", "output_half_pixel"))
    one_of("mode", words[1], ("avg", "max"))
    for name, size, least in zip(("output_height", "output_width", "sampling_ratio"), sizes, (1, 1, 0), strict=True):
        require(name, size >= least, f"{least} or more", size)


def _samples(
    start: float, extent: float, bins: int, size: int, ratio: int, least: bool, ctx: Context
) -> tuple[Array, Array, Array, Array]:
    """Along one axis: the elements before and after each sample, int64 [bins,samples], and their weights."""
    extent = max(extent, 1.0) if least else extent
    count = ratio or max(math.ceil(extent / bins), 0)
    ctx.claim((bins, count), 64, "samples")
    positions = start + (np.arange(bins)[:, None] + (np.arange(count) + 0.5) / max(count, 1)) * (extent / bins)
    away = (positions < -1) | (positions > size)
    positions = np.clip(positions, 0, size - 1)
    before = np.floor(positions).astype(np.int64)
    after = np.minimum(before + 1, size - 1)
    part = positions - before
    return before, after, np.where(away, 0.0, 1 - part), np.where(away, 0.0, part)


def _pool(image: Array, rows: tuple[Array, ...], columns: tuple[Array, ...], largest: bool, ctx: Context) -> Array:
    """The means, or the maxima, of the samples of each bin: [C,bins,bins] of an image [C,H,W]."""
    (bins, count), (others, width) = rows[0].shape, columns[0].shape
    if not count * width:
        return np.zeros((len(image), bins, others))
    ctx.claim((len(image), bins, count, others, width), 64 if largest else 32, "samples")
    parts = []
    for y, share in ((rows[0], rows[2]), (rows[1], rows[3])):
        for x, part in ((columns[0], columns[2]), (columns[1], columns[3])):
            weight = share[:, :, None, None] * part
            parts.append(image[:, y[:, :, None, None], x] * weight)
    if largest:
        return extreme(np.maximum, np.stack(parts), (0, 3, 5), False, -np.inf)
    return np.asarray(sum(parts).sum(axis=(2, 4)) / (count * width))
