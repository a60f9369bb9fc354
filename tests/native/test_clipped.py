"""Products whose sums of four stay in 16 bits: the plan's bounds, and results whatever the activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, TYPES, Array, codes, engine
from helpers.native_cases import reference, run, target_of

from qrun.native.kernels import copied
from qrun.native.kernels.conv import Conv
from qrun.native.proof import fold

ISA = "avx2"
Random = np.random.Generator
SHAPE = tuple[int, ...]
needs_avx2 = pytest.mark.skipif(ISA not in ISAS, reason="this CPU has no AVX2")
ACTIVATIONS: dict[str, Callable[[Random, SHAPE], Array]] = {
    "small": lambda rng, shape: rng.integers(0, 64, shape),
    "after a rectifier": lambda rng, shape: np.minimum(np.maximum(rng.normal(0, 60, shape), 0), 255),
    "a few large": lambda rng, shape: np.where(rng.random(shape) < 0.02, 255, 40),
    "one block large": lambda rng, shape: np.where(np.arange(shape[-1]) < 4, 255, rng.integers(0, 64, shape)),
    "uniform": lambda rng, shape: rng.integers(0, 256, shape),
    "all large": lambda rng, shape: np.full(shape, 255),
}
WEIGHTS: dict[str, Callable[[Random, SHAPE], Array]] = {
    "uniform": lambda rng, shape: rng.integers(-128, 128, shape),
    "normal": lambda rng, shape: np.clip(rng.normal(0, 40, shape), -127, 127),
    "alone or together": lambda rng, shape: together(shape) * rng.choice([-1, 1], (shape[0], *[1] * (len(shape) - 1))),
    "least": lambda rng, shape: np.full(shape, -128),
    "largest": lambda rng, shape: np.full(shape, 127),
}


def together(shape: SHAPE) -> Array:
    """One large weight among zeros in every other channel, equal ones in the rest."""
    flat = np.full((shape[0], int(np.prod(shape[1:]))), 55)
    flat[::2] = 100 * (np.arange(flat.shape[1]) % 8 == 0)
    return flat.reshape(shape)


@pytest.mark.parametrize("near", [200, 1 << 18])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_bounds_hold_for_every_channel_and_sign(kind: str, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "_NEAR_BOUNDS", near)
    rng = np.random.default_rng(4)
    weights = WEIGHTS[kind](rng, (30, 2, 21)).astype(np.int8)
    each, first = (bound.astype(np.int64).reshape(2, 3, 2, 2, 2) for bound in fold.lane_bounds(weights, 24))
    padded = np.zeros((30, 2, 24), np.int64)
    padded[:, :, :21] = np.maximum(weights, -127)
    lanes = padded.reshape(30, 2, 3, 2, 2, 2)
    for name, make in ACTIVATIONS.items():
        x = np.asarray(make(rng, (200, 2, 24)), np.int64).reshape(200, 1, 2, 3, 2, 2, 2)
        most = x.max(axis=(4, 6))[:, 0]
        limit = (each * x[:, 0]).sum(axis=(3, 5)) + first[:, :, 0, :, 0] * most
        assert not first[..., 1].any()
        for sign in (1, -1):
            sums = np.where(lanes * sign > 0, x * lanes * sign, 0).sum(axis=(4, 6))
            assert (sums <= limit[:, None]).all(), name


@needs_avx2
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_results_do_not_depend_on_how_large_activations_are(
    kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "_FEW", 1)
    rng = np.random.default_rng(5)
    for shape, w_shape, geometry in edges.CLIPPED:
        for activations, make in ACTIVATIONS.items():
            for weights, make_weights in WEIGHTS.items():
                unsigned = make(rng, shape).astype(np.uint8)
                case = {
                    "x": unsigned if kind == "u8" else (unsigned ^ 128).view(np.int8),
                    "x_zero_point": np.array(rng.integers(0, 20) - 128 * (kind == "s8"), TYPES[kind]),
                    "w": make_weights(rng, w_shape).astype(np.int8), "w_zero_point": np.int8(0),
                    "w_scale": (rng.uniform(0.0005, 0.002, w_shape[0]) / w_shape[1]).astype(np.float32),
                    "y_zero_point": codes(rng, (), kind), "out": kind,
                    "B": rng.integers(-900, 900, w_shape[0]).astype(np.int32), "geometry": geometry,
                }  # fmt: skip
                plan = planned(case, threads)
                assert {section.spec.kind for section in plan.tight} == {"clipped"}
                y = run(plan, case["x"])
                assert np.array_equal(y, reference(case)), (shape, w_shape, activations, weights)


def planned(case: dict[str, Array], threads: int) -> Conv:
    return Conv(
        engine(ISA, threads), case["x"].shape, case["w"], x_zero_point=case["x_zero_point"],
        w_zero_point=case["w_zero_point"], bias=case["B"], target=target_of(case), **case["geometry"],
    )  # fmt: skip
