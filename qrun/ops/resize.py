"""Resize, Upsample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from qrun.ops._float import axes_in
from qrun.ops._op import Array, Context, bad_shape, misfit, one_of, op, refuse
from qrun.ops._resample import NEAREST_MODES, TRANSFORMS, ResampledAxis, ResizeAttributes, resample
from qrun.ops._shape import ints, same_length
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel

_POLICIES = ("stretch", "not_larger", "not_smaller")
_ROI_LIMIT = 2.0**20


@op("Upsample", since=7)
def upsample_7(X: Array, *, scales: tuple[float, ...], mode: str = "nearest", ctx: Context) -> Array:
    """Resize-10 with scales of 1 or more as an attribute. Source: ONNX operators, Upsample-7."""
    return _resize_10(X, _enlarging(_scales_7(scales)), mode, ctx)


def _scales_7(scales: Sequence[float]) -> Array:
    return np.array(scales, np.float64).astype(np.float32)


@op("Upsample", since=9)
def upsample_9(X: Array, scales: Array, *, mode: str = "nearest", ctx: Context) -> Array:
    """Resize-10 with scales of 1 or more. Source: it ended with opset 9."""
    _check_ended(ctx)
    return _resize_10(X, _enlarging(scales), mode, ctx)


def _check_ended(ctx: Context) -> None:
    if ctx.version >= 10:
        raise refuse(
            "Upsample ended with opset 9", "X", "Resize, in opset 10 and later", f"Upsample in opset {ctx.version}"
        )


def _enlarging(scales: Array) -> Array:
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
    return resample(x, *_axes_10(x, scales, mode, ctx), ctx)


def _axes_10(x: Array, scales: Array, mode: str, ctx: Context) -> tuple[list[ResampledAxis], ResizeAttributes]:
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
    """Resample the given axes (all by default) by `scales` or to `sizes`: nearest, linear or cubic, axis by axis.

    Output length: sizes as the policy adapts them, or floor(length * (end - start) * scale) in float32 as
    onnx.shape_inference computes it. roi: [starts ..., ends ...], for tf_crop_and_resize.
    A scale that is the float32 nearest to output / input length stands for that quotient itself.

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
    from qrun.ops.lowering.resize import resize_kernel

    axes, options = _axes_10(site.inputs[0], scales, site.attributes["mode"], site.ctx)
    return resize_kernel(site, options, lambda: axes)


@upsample_7.native
@EveryType
def _lower_upsample_7(site: LoweringContext) -> NativeKernel:
    return _lower_10(site, _enlarging(_scales_7(site.attributes["scales"])))


@upsample_9.native
@EveryType
def _lower_upsample_9(site: LoweringContext) -> NativeKernel:
    _check_ended(site.ctx)
    return _lower_10(site, _enlarging(site.inputs[1]))


@resize_10.native
@EveryType
def _lower_resize_10(site: LoweringContext) -> NativeKernel:
    return _lower_10(site, site.inputs[1])


def _region(roi: Array | None, count: int) -> list[tuple[float, float]]:
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
    values = [float(v) for v in scales.reshape(-1)[: 2 * x.ndim + 1]]
    if scales.ndim != 1 or len(values) != len(places):
        raise bad_shape("scales", f"[{len(places)}]", scales)
    found = []
    for number, (place, scale) in enumerate(zip(places, values, strict=True)):
        if not (scale > 0 and math.isfinite(scale)):
            raise refuse("a scale is not positive and finite", "scales", "numbers above 0", values)
        length = x.shape[place]
        start, end = region[number] if region else (0.0, 1.0)
        with np.errstate(all="ignore"):
            real = np.float32(scale) * np.float32(end - start) * np.float32(length)
        if not np.isfinite(real) or real < 0:
            raise refuse(
                "the output length is not a size", "scales", "a length of 0 or more", f"{real} on axis {place}"
            )
        out = int(real)
        ratio = (out, length) if length and out and np.float32(out / length) == np.float32(scale) else None
        found.append(ResampledAxis(place, length, out, scale, start, end, ratio))
    return found


def _by_sizes(
    x: Array, sizes: Sequence[int], places: Sequence[int], region: list[tuple[float, float]] | None, policy: str
) -> list[ResampledAxis]:
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
    for number, place in enumerate(places):
        start, end = region[number] if region else (0.0, 1.0)
        up, down = ratios[number]
        scale = up / down if down else 1.0
        found.append(
            ResampledAxis(place, x.shape[place], outs[number], scale, start, end, (up, down) if up and down else None)
        )
    return found
