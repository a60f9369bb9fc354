"""MaxRoiPool, bin by bin in fractions, beside onnxruntime."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, qrun_node
from helpers.support import assert_equal

import qrun

F, H, D, BF = np.float32, np.float16, np.float64, ml_dtypes.bfloat16


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
def test_against_fractions(dtype: Any) -> None:
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


X, ROIS = np.ones((1, 1, 3, 3), F), np.array([[0, 0, 0, 1, 1]], F)


@pytest.mark.parametrize(
    ("text", "x", "rois", "shape"),
    [
        ("X is no image", X[0], ROIS, [1, 1]),
        ("rois are no rectangles", X, ROIS[:, 1:], [1, 1]),
        ("pooled_shape is", X, ROIS, [1]),
        ("pooled_shape is", X, ROIS, [1, 0]),
        ("there is no image 1", X, ROIS + F([1, 0, 0, 0, 0]), [1, 1]),
        ("there is no image 0.5", X, ROIS + F([0.5, 0, 0, 0, 0]), [1, 1]),
        ("a region is no number", X, ROIS + F([0, np.inf, 0, 0, 0]), [1, 1]),
    ],
)
def test_refusals(text: str, x: Any, rois: Any, shape: list[int]) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node("MaxRoiPool", [x, rois], {"pooled_shape": shape})
