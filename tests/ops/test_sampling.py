"""GridSample, AffineGrid, RoiAlign, MaxRoiPool and DeformConv: number by number, beside onnxruntime."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_refused, assert_rounded, qrun_node
from helpers.support import assert_equal

F, H, D, BF = np.float32, np.float16, np.float64, ml_dtypes.bfloat16
PADDINGS = ("zeros", "border", "reflection")


def folded(place: float, size: int, padding: str, align: int) -> float | None:
    """A place beyond the elements, brought back by one reflection after the other; None: there is nothing."""
    if padding == "zeros":
        return place if 0 <= place <= size - 1 else None
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    if padding == "reflection":
        while high > low and not low <= place <= high:
            place = 2 * low - place if place < low else 2 * high - place
    return min(max(place, 0.0), size - 1.0)


def cubic(distance: float) -> float:
    d, a = abs(distance), -0.75
    return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a


def sampled(image: np.ndarray, place: list[float], mode: str, padding: str, align: int) -> float:
    """Of an image of any rank, at a place in elements."""
    if mode == "nearest":
        weights = [{round(p): 1.0} for p in place]
    elif mode == "linear":
        if padding != "zeros":
            place = [folded(p, n, padding, align) for p, n in zip(place, image.shape, strict=True)]
        weights = [{math.floor(p): 1 - (p - math.floor(p)), math.floor(p) + 1: p - math.floor(p)} for p in place]
    else:
        weights = [{math.floor(p) + k: cubic(p - math.floor(p) - k) for k in (-1, 0, 1, 2)} for p in place]
    total: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for line in weights:
        total = [((*at, n), share * weight) for at, share in total for n, weight in line.items()]
    found = []
    for at, share in total:
        where = [folded(float(n), size, padding, align) for n, size in zip(at, image.shape, strict=True)]
        if None not in where:
            found.append(share * float(image[tuple(round(w) for w in where)]))
    return math.fsum(found)


def case(seed: int, dtype: Any = F) -> tuple[list[np.ndarray], dict[str, Any], np.ndarray]:
    rng = np.random.default_rng(seed)
    mode = ("linear", "nearest", "cubic")[seed % 3]
    rank = 2 if mode == "cubic" else 1 + seed // 3 % 3
    size = [int(n) for n in rng.integers(1 if seed % 2 else 2, 5, rank)]
    out = [int(n) for n in rng.integers(1, 4, rank)]
    x = rng.normal(size=(2, 2, *size)).astype(dtype)
    grid = rng.uniform(-1.8, 1.8, (2, *out, rank)).astype(dtype if dtype != BF else F)
    align, padding = seed // 2 % 2, PADDINGS[seed // 6 % 3]
    want = np.zeros((2, 2, *out))
    for n, c, *at in np.ndindex(want.shape):
        place = []
        for axis, length in enumerate(size):
            g = float(grid[(n, *at, rank - 1 - axis)])
            place.append((g + 1) / 2 * (length - 1) if align else ((g + 1) * length - 1) / 2)
        want[(n, c, *at)] = sampled(x[n, c], place, mode, padding, align)
    return [x, grid], {"mode": mode, "padding_mode": padding, "align_corners": align}, want


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_grid_sample_against_its_definition(dtype: Any) -> None:
    for seed in range(108 if dtype == F else 36):
        inputs, attributes, want = case(seed, dtype)
        assert_rounded(qrun_node("GridSample", inputs, attributes, opset=22), want, f"seed {seed} {attributes}")


def test_grid_sample_before_version_20() -> None:
    inputs, attributes, _ = case(2)
    for name, old in (("linear", "bilinear"), ("cubic", "bicubic"), ("nearest", "nearest")):
        made = [
            qrun_node("GridSample", inputs, {**attributes, "mode": mode}, opset=opset)
            for mode, opset in ((name, 20), (old, 16))
        ]
        assert_equal(*made)


def test_grid_sample_of_other_types() -> None:
    grid = np.array([[[-1.0, -1.0], [0.9, 0.9], [3.0, 0.0]]], F)[None]
    for dtype in (np.uint8, np.int64, bool, np.complex64):
        x = np.array([[0, 1], [2, 3]]).astype(dtype)[None, None]
        made = qrun_node("GridSample", [x, grid], {"mode": "nearest"}, opset=20)
        assert made.tolist() == [[[[x[0, 0, 0, 0], x[0, 0, 1, 1], np.zeros((), dtype)]]]]
    whole = qrun_node("GridSample", [np.array([[[[0, 5]]]], np.uint8), np.array([[[[0.0, 0.0]]]], F)], opset=20)
    assert whole.tolist() == [[[[2]]]]


def test_grid_sample_beside_onnxruntime() -> None:
    peer = Peer()
    for seed in range(72):
        inputs, attributes, _ = case(seed)
        if inputs[0].ndim == 4 and 1 not in inputs[0].shape:
            peer.check("GridSample", inputs, attributes, message=f"seed {seed}", rtol=1e-3, atol=1e-4, opset=20)
    peer.finish(0.9)


@pytest.mark.parametrize("dtype", [F, H, D, BF])
def test_affine_grid(dtype: Any) -> None:
    peer = Peer()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        rank, align = 2 + seed % 2, seed // 2 % 2
        dims = [2, 3, *(int(n) for n in rng.integers(2 if align else 1, 5, rank))]
        theta = rng.normal(size=(2, rank, rank + 1)).astype(dtype)
        inputs = [theta, np.array(dims, np.int64)]
        want = np.zeros((2, *dims[2:], rank))
        for n, *at in np.ndindex(2, *dims[2:]):
            point = [
                -1 + 2 * i / (length - 1) if align else (2 * i + 1) / length - 1
                for i, length in zip(at, dims[2:], strict=True)
            ]
            for row in range(rank):
                line = theta[n, row].astype(D).tolist()
                want[(n, *at, row)] = math.fsum(
                    [*(a * b for a, b in zip(line, reversed(point), strict=False)), line[-1]]
                )
        assert_rounded(qrun_node("AffineGrid", inputs, {"align_corners": align}, opset=20), want, f"seed {seed}")
        if dtype == F:
            peer.check("AffineGrid", inputs, {"align_corners": align}, message=f"seed {seed}", opset=20)
    if dtype == F:
        peer.finish(0.9)


def aligned(x: np.ndarray, roi: list[float], attributes: dict[str, Any]) -> np.ndarray:
    """One region of one image [C,H,W]: [C,height,width]."""
    half = attributes["coordinate_transformation_mode"] == "half_pixel"
    x1, y1, x2, y2 = (v * float(F(attributes["spatial_scale"])) - (0.5 if half else 0.0) for v in roi)
    width, height = (x2 - x1, y2 - y1) if half else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
    rows, columns = attributes["output_height"], attributes["output_width"]
    ratio = attributes["sampling_ratio"]
    down, across = ratio or math.ceil(height / rows), ratio or math.ceil(width / columns)
    made = np.zeros((len(x), rows, columns))
    for c, r, k in np.ndindex(made.shape):
        found, weighted = [], []
        for i, j in np.ndindex(max(down, 0), max(across, 0)):
            y = y1 + (r + (i + 0.5) / down) * height / rows
            z = x1 + (k + (j + 0.5) / across) * width / columns
            outside = not -1 <= y <= x.shape[1] or not -1 <= z <= x.shape[2]
            y, z = min(max(y, 0.0), x.shape[1] - 1.0), min(max(z, 0.0), x.shape[2] - 1.0)
            four = []
            for row, share in ((math.floor(y), 1 - y % 1), (math.floor(y) + 1, y % 1)):
                for column, part in ((math.floor(z), 1 - z % 1), (math.floor(z) + 1, z % 1)):
                    value = float(x[c, min(row, x.shape[1] - 1), min(column, x.shape[2] - 1)])
                    four.append(0.0 if outside else share * part * value)
            found.append(math.fsum(four))
            weighted += four
        if found:
            made[c, r, k] = max(weighted) if attributes["mode"] == "max" else math.fsum(found) / len(found)
    return made


def test_the_greatest_of_zeros() -> None:
    """-0 is less than +0, wherever it stands."""
    attributes = {"mode": "max", "output_height": 1, "output_width": 1, "sampling_ratio": 4}
    for places in ((), (0,), (5,), (10,), (2, 7)):
        x = np.full(16, -0.0, F)
        x[list(places)] = 0
        inputs = [x.reshape(1, 1, 4, 4), np.array([[0.5, 0.5, 2.5, 2.5]], F), np.zeros(1, np.int64)]
        made = qrun_node("RoiAlign", inputs, attributes, opset=16)
        assert_equal(made, np.full((1, 1, 1, 1), 0.0 if places else -0.0, F), f"{places}")


@pytest.mark.parametrize("dtype", [F, D])
def test_roi_align(dtype: Any) -> None:
    peer = Peer()
    for seed in range(48):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(2, 2, *rng.integers(1, 7, 2))).astype(dtype)
        corners = rng.uniform(-3, 12, (3, 2))
        rois = np.concatenate([corners, corners + rng.uniform(0 if seed % 4 else -2, 9, (3, 2))], 1).astype(dtype)
        numbers = rng.integers(0, 2, 3)
        attributes = {
            "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")[seed % 2],
            "mode": ("avg", "max")[seed // 2 % 2],
            "output_height": int(rng.integers(1, 4)),
            "output_width": int(rng.integers(1, 4)),
            "sampling_ratio": int(rng.integers(0, 3)),
            "spatial_scale": 0.7,
        }
        want = [aligned(x[n], roi, attributes) for n, roi in zip(numbers, rois.astype(D).tolist(), strict=True)]
        inputs = [x, rois, numbers]
        assert_rounded(qrun_node("RoiAlign", inputs, attributes, opset=16), np.array(want), f"seed {seed} {attributes}")
        if dtype == F and attributes["mode"] == "avg" and seed % 4:
            peer.check("RoiAlign", inputs, attributes, message=f"seed {seed}", rtol=1e-3, atol=1e-4, opset=16)
    if dtype == F:
        peer.finish(0.9)


def test_roi_align_before_version_16() -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(1, 1, 5, 5)).astype(F), np.array([[0.5, 1, 3, 4]], F), np.array([0])]
    size = {"output_height": 2, "output_width": 2}
    old = qrun_node("RoiAlign", inputs, size, opset=10)
    new = {"coordinate_transformation_mode": "output_half_pixel", **size}
    assert_equal(old, qrun_node("RoiAlign", inputs, new, opset=16))


X, GRID = np.ones((1, 1, 3, 3), F), np.zeros((1, 2, 2, 2), F)
ROIS, REGIONS = np.array([[0, 0, 1, 1]], F), np.array([[0, 0, 0, 1, 1]], F)


def test_refusals() -> None:
    assert_refused(
        [
            ("grid does not fit", "GridSample", [X, GRID[..., :1]], {}),
            ("mode is bad", "GridSample", [X, GRID], {"mode": "bad"}),
            ("mode is cubic", "GridSample", [X[0], GRID[0, :1, :, :1]], {"mode": "cubic"}),
            ("padding_mode is bad", "GridSample", [X, GRID], {"padding_mode": "bad"}),
            ("grid is not finite", "GridSample", [X, GRID + np.inf], {}),
            ("no elements to sample", "GridSample", [X[:, :, :0], GRID], {}),
            ("nothing between them", "GridSample", [X > 0, GRID], {}),
            ("theta does not fit", "AffineGrid", [np.ones((1, 2, 2), F), np.array([1, 1, 2, 2])], {}),
            ("size is not an image size", "AffineGrid", [np.ones((1, 2, 3), F), np.array([1, 1, 2])], {}),
            ("X is not an image", "RoiAlign", [X[0], ROIS, np.array([0])], {}),
            ("rois are not rectangles", "RoiAlign", [X, ROIS[:, :3], np.array([0])], {}),
            ("batch_indices do not fit", "RoiAlign", [X, ROIS, np.array([0, 0])], {}),
            ("no image 1", "RoiAlign", [X, ROIS, np.array([1])], {}),
            ("a region is not a number", "RoiAlign", [X, ROIS * np.nan, np.array([0])], {}),
            ("mode is min", "RoiAlign", [X, ROIS, np.array([0])], {"mode": "min"}),
            ("output_width is 0", "RoiAlign", [X, ROIS, np.array([0])], {"output_width": 0}),
        ],
        opset=20,
    )


def nearest(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2)) if value >= 0 else -math.floor(-value + Fraction(1, 2))


def pooled(x: np.ndarray, roi: list[float], shape: list[int], scale: float) -> np.ndarray:
    made = np.zeros((x.shape[1], *shape))
    x1, y1, x2, y2 = (nearest(Fraction(c) * Fraction(float(F(scale)))) for c in roi[1:])
    for channel, i, j in np.ndindex(*made.shape):
        inside = []
        for (y, x_place), value in np.ndenumerate(x[int(roi[0]), channel].astype(D)):
            held = True
            for place, start, end, bin_, bins in ((y, y1, y2, i, shape[0]), (x_place, x1, x2, j, shape[1])):
                wide = Fraction(max(end - start + 1, 1), bins)
                held &= start + math.floor(bin_ * wide) <= place < start + math.ceil((bin_ + 1) * wide)
            inside += [value] if held else []
        made[channel, i, j] = (
            math.nan
            if any(v != v for v in inside)
            else max(inside, key=lambda v: (v, math.copysign(1, v)), default=0.0)
        )
    return made


@pytest.mark.parametrize("dtype", [F, D, H, BF])
def test_max_roi_pool_against_fractions(dtype: Any) -> None:
    peer = Peer()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shape = 2, 2, *rng.integers(1, 7, 2)
        x = (rng.normal(size=shape) if seed % 5 else rng.choice([0.0, -0.0], shape)).astype(dtype)
        corners = rng.integers(-6, 18, (3, 2)) / 2
        ends = corners + rng.integers(0 if seed % 4 else -4, 16, (3, 2)) / 2
        rois = np.concatenate([rng.integers(0, 2, (3, 1)), corners, ends], 1).astype(dtype)
        attributes = {"pooled_shape": rng.integers(1, 5, 2).tolist(), "spatial_scale": (1.0, 0.5, 0.7)[seed % 3]}
        want = [pooled(x, roi, *attributes.values()) for roi in rois.astype(D).tolist()]
        opset = 22 if dtype == BF else 21
        assert_equal(qrun_node("MaxRoiPool", [x, rois], attributes, opset=opset), np.array(want).astype(dtype))
        if dtype == F and seed % 3 < 2:  # its coordinates and bins are float32 numbers
            whole = {**attributes, "pooled_shape": [2, 4]}
            peer.check("MaxRoiPool", [x, rois], whole, message=f"seed {seed} {whole}", rtol=0, atol=0)
    if dtype == F:
        peer.finish(1.0)


def test_nan_and_images_without_elements() -> None:
    x = np.array([[[[1, np.nan], [3, 4]]]], F)
    made = qrun_node("MaxRoiPool", [x, np.array([[0, 0, 0, 1, 1]], F)], {"pooled_shape": [1, 2]})
    assert_equal(made, np.array([[[[3, np.nan]]]], F))
    for shape, regions in (((1, 2, 0, 3), 1), ((1, 0, 3, 3), 1), ((1, 2, 3, 3), 0)):
        rois = np.zeros((regions, 5), F)
        made = qrun_node("MaxRoiPool", [np.ones(shape, F), rois], {"pooled_shape": [2, 2]})
        assert_equal(made, np.zeros((regions, shape[1], 2, 2), F))


def test_refusals_of_max_roi_pool() -> None:
    cases = [
        ("X is not an image", X[0], REGIONS, [1, 1]),
        ("rois are not rectangles", X, REGIONS[:, 1:], [1, 1]),
        ("pooled_shape is", X, REGIONS, [1]),
        ("pooled_shape is", X, REGIONS, [1, 0]),
        ("no image 1", X, REGIONS + F([1, 0, 0, 0, 0]), [1, 1]),
        ("no image 0.5", X, REGIONS + F([0.5, 0, 0, 0, 0]), [1, 1]),
        ("a region is not a number", X, REGIONS + F([0, np.inf, 0, 0, 0]), [1, 1]),
    ]
    assert_refused((text, "MaxRoiPool", [x, rois], {"pooled_shape": shape}) for text, x, rois, shape in cases)


def weighed(plane: np.ndarray, place: list[float]) -> float:
    """Every element, weighted by how near it is along each axis: nothing from 1 on."""
    return math.fsum(
        float(value) * math.prod(max(0.0, 1 - abs(p - i)) for p, i in zip(place, at, strict=True))
        for at, value in np.ndenumerate(plane)
    )


def convolved(x: Any, w: Any, offset: Any, b: Any, mask: Any, a: dict[str, Any], out: tuple[int, ...]) -> np.ndarray:
    made = np.zeros((len(x), len(w), *out))
    kernel, rank = w.shape[2:], x.ndim - 2
    for n, m, *at in np.ndindex(*made.shape):
        parts = [float(b[m])] if b is not None else []
        for c in range(w.shape[1]):
            channel = m // (len(w) // a["group"]) * w.shape[1] + c
            g = channel // (x.shape[1] // a["offset_group"])
            for k, tap in enumerate(np.ndindex(*kernel)):
                number = g * math.prod(kernel) + k
                place = [
                    at[d] * a["strides"][d] + tap[d] * a["dilations"][d] - a["pads"][d]
                    + float(offset[(n, number * rank + d, *at)]) for d in range(rank)
                ]  # fmt: skip
                share = 1.0 if mask is None else float(mask[(n, number, *at)])
                parts.append(float(w[(m, c, *tap)]) * weighed(x[n, channel], place) * share)
        made[(n, m, *at)] = math.fsum(parts)
    return made


@pytest.mark.parametrize("dtype", [F, D])
def test_deform_conv_against_its_definition(dtype: Any) -> None:
    peer = Peer()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        rank, group, groups = 2, 1 + seed // 4 % 2, 1 + seed // 2 % 2
        size, kernel = rng.integers(2, 4, rank), rng.integers(1, 3, rank)
        a: dict[str, Any] = {
            "group": group, "offset_group": groups, "strides": rng.integers(1, 3, rank).tolist(),
            "dilations": rng.integers(1, 3, rank).tolist(), "pads": rng.integers(1, 3, 2 * rank).tolist(),
        }  # fmt: skip
        out = tuple(
            (n + a["pads"][d] + a["pads"][d + rank] - (k - 1) * a["dilations"][d] - 1) // a["strides"][d] + 1
            for d, (n, k) in enumerate(zip(size.tolist(), kernel.tolist(), strict=True))
        )
        x, w = rng.normal(size=(2, 4, *size)).astype(dtype), rng.normal(size=(2, 4 // group, *kernel)).astype(dtype)
        taps = groups * math.prod(kernel.tolist())
        offset = (rng.integers(-12, 13, (2, taps * rank, *out)) / 8).astype(dtype)
        b = rng.normal(size=2).astype(dtype) if seed % 3 else None
        mask = rng.uniform(size=(2, taps, *out)).astype(dtype) if seed % 5 else None
        made = qrun_node("DeformConv", [x, w, offset, b, mask], a, opset=22)
        tolerance = 1e-5 if dtype == F else 1e-12
        want = convolved(x, w, offset, b, mask, a, out)
        np.testing.assert_allclose(made, want, tolerance, tolerance, err_msg=f"seed {seed}")
        if dtype == F:
            peer.check("DeformConv", [x, w, offset, b, mask], a, message=f"seed {seed}", rtol=1e-4, atol=1e-4, opset=19)
    if dtype == F:
        peer.finish(0.9)


def test_refusals_of_deform_conv() -> None:
    x, w, offset = np.ones((1, 2, 3, 3), F), np.ones((1, 2, 2, 2), F), np.zeros((1, 8, 2, 2), F)
    cases = [("Offset shape", offset[:, 1:]), ("OverflowError", offset + np.inf)]
    assert_refused(((text, "DeformConv", [x, w, given], {}) for text, given in cases), opset=19)
