"""DeformConv, product by product, beside onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_rounded, qrun_node

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


@pytest.mark.parametrize("dtype", [F, D, H, BF])
def test_against_its_definition(dtype: Any) -> None:
    peer = Peer()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        rank, group, groups = (2, 1, 2, 3)[seed % 4], 1 + seed // 4 % 2, 1 + seed // 2 % 2
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
        assert_rounded(made, convolved(x, w, offset, b, mask, a, out), f"seed {seed}", 1e-11)
        if dtype == F and rank == 2:
            peer.check("DeformConv", [x, w, offset, b, mask], a, message=f"seed {seed}", rtol=1e-4, atol=1e-4, opset=19)
    if dtype == F:
        peer.finish(0.9)


X, W, OFFSET = np.ones((1, 2, 3, 3), F), np.ones((1, 2, 2, 2), F), np.zeros((1, 8, 2, 2), F)


def test_infinities_count_only_where_a_sample_is() -> None:
    x = X.copy()
    x[0, 0, 2, 2] = np.inf
    assert qrun_node("DeformConv", [x, W, OFFSET], {}, opset=19).tolist() == [[[[8, 8], [8, np.inf]]]]
    assert qrun_node("DeformConv", [X[:0], W, OFFSET[:0]], {}, opset=19).shape == (0, 1, 2, 2)
    assert not qrun_node("DeformConv", [X, W, OFFSET + F(1e30)], {}, opset=19).any()


@pytest.mark.parametrize(
    ("text", "inputs", "attributes"),
    [
        ("offset does not fit", [X, W, OFFSET[:, 1:]], {}),
        ("mask does not fit", [X, W, OFFSET, None, OFFSET], {}),
        ("do not fit offset_group", [X, W, OFFSET], {"offset_group": 3}),
        ("a place that is no number", [X, W, OFFSET + np.inf], {}),
        ("the bias has the wrong shape", [X, W, OFFSET, np.ones(2, F)], {}),
        ("kernel_shape differs", [X, W, OFFSET], {"kernel_shape": [3, 3]}),
    ],
)
def test_refusals(text: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node("DeformConv", inputs, attributes, opset=19)
