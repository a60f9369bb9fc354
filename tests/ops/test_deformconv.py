"""DeformConv, product by product, beside onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, qrun_node

import qrun

F, H, D, BF = np.float32, np.float16, np.float64, ml_dtypes.bfloat16


def sample(plane: np.ndarray, place: list[float]) -> float:
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
                parts.append(float(w[(m, c, *tap)]) * sample(x[n, channel], place) * share)
        made[(n, m, *at)] = math.fsum(parts)
    return made


@pytest.mark.parametrize("dtype", [F, D])
def test_against_its_definition(dtype: Any) -> None:
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


def test_what_is_refused() -> None:
    x, w, offset = np.ones((1, 2, 3, 3), F), np.ones((1, 2, 2, 2), F), np.zeros((1, 8, 2, 2), F)
    with pytest.raises(qrun.QrunError, match="Offset shape"):
        qrun_node("DeformConv", [x, w, offset[:, 1:]], {}, opset=19)
    with pytest.raises(qrun.QrunError, match="OverflowError"):
        qrun_node("DeformConv", [x, w, offset + np.inf], {}, opset=19)
