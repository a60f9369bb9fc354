"""The oracle's fast sums are those of its loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import linear, sums


@pytest.mark.parametrize("attributes", [
    {}, {"strides": [2, 1], "pads": [1, 0, 2, 1]}, {"dilations": [1, 2], "group": 2}, {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    {"group": 2, "strides": [3, 2], "dilations": [2, 1], "pads": [0, 2, 1, 0]},
])  # fmt: skip
def test_convolutions_as_loops(attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    group = attributes.get("group", 1)
    x = rng.integers(-128, 128, (2, 4, 5, 6)).astype(np.int8)
    w = rng.integers(0, 256, (6, 4 // group, 2, 3)).astype(np.uint8)
    zeros, bias = [7, 0, 255, 3, 9, 128], [2**31 - 1, -(2**31), 0, 5, -7, 2**31 - 9]
    due = linear.conv(x, w, -5, zeros, bias, **attributes)
    assert np.array_equal(sums.conv(x, w, -5, zeros, bias, **attributes), due)


@pytest.mark.parametrize(("a", "b", "az", "bz"), [
    ((3, 9), (9, 4), (), ()), ((3, 9), (9, 4), (3,), (4,)), ((2, 3, 9), (9, 4), (2, 3, 1), (4,)), ((2, 1, 3, 5), (1, 3, 5, 2), (), (1, 3, 1, 2)),
    ((9,), (9,), (), ()), ((9,), (9, 2), (), ()),
])  # fmt: skip
def test_products_as_loops(a: tuple[int, ...], b: tuple[int, ...], az: tuple[int, ...], bz: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    given = [np.asarray(rng.integers(0, 256, shape)).astype(np.uint8) for shape in (a, b, az, bz)]
    due = linear.matmul(*given)
    made = sums.matmul(*given)
    assert np.array_equal(made, due)
    assert made.dtype == due.dtype
