"""Constants that native kernels copy into the order in which other kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import OBJECTS

from qrun.native.kernels import packing
from qrun.native.kernels.packing import copy_into, pack_panels
from qrun.native.kernels.product import pack
from qrun.native.machine.engine import Engine

ENGINE = Engine.create(cache=OBJECTS, threads=2)


def large(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(packing, "LARGE", nbytes)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("channels", "taps", "k"), [(64, 1, 64), (70, 1, 7), (130, 2, 9), (16, 3, 4), (1, 1, 1), (257, 1, 258), (33, 9, 3)]
)
@pytest.mark.parametrize(("panels", "apart"), [(1, 0), (2, 16), (2, 32), (5, 64)])
def test_words_of_four_bytes(
    monkeypatch: pytest.MonkeyPatch, channels: int, taps: int, k: int, panels: int, apart: int, turned: bool
) -> None:
    rng = np.random.default_rng(channels)
    weights = rng.integers(-128, 128, (k, taps, channels) if turned else (channels, taps, k), np.int8)
    weights = weights.T if turned else weights
    lanes = np.arange(panels)[:, None] * apart + np.arange(16)
    pick = np.where(lanes < channels, lanes, -1)
    pick = pick[pick[:, 0] >= 0]
    if np.count_nonzero(pick[:-1] < 0):
        pick = pick[:1]
    depth = -(-k // 8) * 8
    want = np.zeros((len(pick), 16, taps, depth), np.int8)
    for panel, lane in np.ndindex(pick.shape):
        if pick[panel, lane] >= 0:
            want[panel, lane, :, :k] = weights[pick[panel, lane]]
    for nbytes in (1, 1 << 30):
        large(monkeypatch, nbytes)
        found = pack(ENGINE, weights, pick, depth).view(np.int8).reshape(len(pick), taps * depth // 4, 16, 4)
        np.testing.assert_array_equal(found, want.reshape(len(pick), 16, -1, 4).transpose(0, 2, 1, 3))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("number", "depth", "columns"), [(1, 512, 64), (1, 513, 65), (2, 255, 130), (3, 7, 31), (1, 1, 1), (1, 256, 64)]
)
def test_panels(monkeypatch: pytest.MonkeyPatch, number: int, depth: int, columns: int, turned: bool) -> None:
    shape = (number, columns, depth) if turned else (number, depth, columns)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    matrices, panels = values.swapaxes(1, 2) if turned else values, -(-columns // 32)
    want = [
        np.pad(matrices[n, k : k + 256], [(0, 0), (0, -columns % 32)])[:, 32 * panel :][:, :32].reshape(-1)
        for n in range(number)
        for k in range(0, depth, 256)
        for panel in range(panels)
    ]
    for nbytes in (1, 1 << 30):
        large(monkeypatch, nbytes)
        packed = pack_panels(ENGINE, matrices, 32, 256, 5)
        np.testing.assert_array_equal(packed[:, :-5].reshape(-1), np.concatenate(want))
        assert not packed[:, -5:].any()


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float32, np.float64])
def test_many_axes_and_steps(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    source = (
        np.arange(2 * 3 * 64 * 5 * 64 * 8)
        .astype(dtype)
        .reshape(2, 3, 64, 5, 64, 8)[:, :, ::2]
        .transpose(3, 0, 5, 2, 1, 4)
    )
    target = np.zeros((5, 2, 8, 32, 3, 64 + 2), dtype)[..., 1:-1]
    large(monkeypatch, 1)
    copy_into(ENGINE, target, source)
    np.testing.assert_array_equal(target, source)
