"""RoiAlign."""

from __future__ import annotations

import math

import numpy as np

from qrun.ops._float import narrow, single, widen
from qrun.ops._op import Array, Context, op, refuse


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

    X [N,C,H,W]; rois [regions,4], x1, y1, x2, y2, times spatial_scale; batch_indices int64 [regions]. half_pixel takes 0.5 from coordinates; output_half_pixel does not, and regions are 1 wide at least.
    A bin has sampling_ratio samples along each axis, or as many as the region's width over the output's, rounded up. A
    sample lies between four elements, in straight lines; more than 1 beyond X it is 0. max: of the four weighted elements
    of all samples. In float64 and rounded once.
    Raises OperatorError for shapes, indices and attributes that do not fit. Source: ONNX operators, RoiAlign-22;
    version 10 has output_half_pixel only.
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
            raise refuse("a region is no number", "rois", "finite numbers", str(rois[number].tolist()))
        sides = [(y1, y2 - y1, output_height, X.shape[2]), (x1, x2 - x1, output_width, X.shape[3])]
        lines = [_samples(*side, sampling_ratio, words[0] != "half_pixel", ctx) for side in sides]
        image = widen(X[int(batch_indices[number])])
        made[number] = _pooled(image, lines[0], lines[1], mode == "max", ctx)
    return narrow(made, X.dtype)


def _check(x: Array, rois: Array, numbers: Array, words: tuple[str, str], sizes: tuple[int, int, int]) -> None:
    if x.ndim != 4 or not x.shape[2] * x.shape[3]:
        raise refuse("X is no image", "X", "[N,C,H,W], H and W 1 or more", x, code="QR208")
    if rois.ndim != 2 or rois.shape[1] != 4:
        raise refuse("rois are no rectangles", "rois", "[regions,4]", rois, code="QR208")
    if numbers.shape != rois.shape[:1]:
        raise refuse("batch_indices do not fit rois", "batch_indices", f"[{len(rois)}]", numbers, code="QR208")
    if numbers.size and (numbers.min() < 0 or numbers.max() >= len(x)):
        bad = int(numbers.max() if numbers.max() >= len(x) else numbers.min())
        raise refuse(f"there is no image {bad}", "batch_indices", f"0 to {len(x) - 1}", str(bad), code="QR209")
    for name, value, allowed in (
        ("coordinate_transformation_mode", words[0], ("half_pixel", "output_half_pixel")),
        ("mode", words[1], ("avg", "max")),
    ):
        if value not in allowed:
            raise refuse(f"{name} is {value}", name, ", ".join(allowed), value, code="QR204")
    for name, size, least in zip(("output_height", "output_width", "sampling_ratio"), sizes, (1, 1, 0), strict=True):
        if size < least:
            raise refuse(f"{name} is {size}", name, f"{least} or more", str(size), code="QR204")


def _samples(
    start: float, extent: float, bins: int, size: int, ratio: int, least: bool, ctx: Context
) -> tuple[Array, Array, Array, Array]:
    """Along one axis: elements before and after each sample, int64 [bins,samples], and their shares."""
    extent = max(extent, 1.0) if least else extent
    count = ratio or max(math.ceil(extent / bins), 0)
    ctx.claim((bins, count), 64, "samples")
    place = start + (np.arange(bins)[:, None] + (np.arange(count) + 0.5) / max(count, 1)) * (extent / bins)
    away = (place < -1) | (place > size)
    place = np.clip(place, 0, size - 1)
    before = np.floor(place).astype(np.int64)
    after = np.minimum(before + 1, size - 1)
    part = place - before
    return before, after, np.where(away, 0.0, 1 - part), np.where(away, 0.0, part)


def _pooled(image: Array, rows: tuple[Array, ...], columns: tuple[Array, ...], largest: bool, ctx: Context) -> Array:
    """[C,bins,bins] of an image [C,H,W]."""
    (bins, count), (others, width) = rows[0].shape, columns[0].shape
    if not count * width:
        return np.zeros((len(image), bins, others))
    ctx.claim((len(image), bins, count, others, width), 32, "samples")
    parts = []
    for y, share in ((rows[0], rows[2]), (rows[1], rows[3])):
        for x, part in ((columns[0], columns[2]), (columns[1], columns[3])):
            weight = share[:, :, None, None] * part
            parts.append(image[:, y[:, :, None, None], x] * weight)
    if largest:
        return np.asarray(np.maximum.reduce(parts).max(axis=(2, 4)))
    return np.asarray(sum(parts).sum(axis=(2, 4)) / (count * width))
