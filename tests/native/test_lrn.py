"""Native LRN equals the reference kernel bit for bit, on every instruction set, within its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import OBJECTS, Guarded, engine
from helpers.pointwise import Rows, guarded
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.native.kernels.rowwise import Lrn
from qrun.ops.normalization import lrn

F = np.float32


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    x = (rng.integers(-128, 128, shape) * F(0.37)).astype(F)
    return np.where(rng.random(shape) < 0.05, rng.choice([0, np.inf, 1e30, 1e-30, np.nan], shape), x).astype(F)


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_sizes_and_gaps(isa: str, at_end: bool) -> None:
    rng, native, guard = np.random.default_rng(2), engine(isa), Guarded()
    for channels in (1, 2, 3, 4, 7, 8, 9, 17, 64):
        x = numbers(rng, (2, channels, 3, 1))
        for size, alpha, bias in ((1, 1e-4, 1.0), (2, 0.5, 2.0), (5, 1e-4, 1.0), (5, -0.3, 0.1), (16, 1e-2, 0.0)):
            before, after = min((size - 1) // 2, channels - 1), min(size // 2, channels - 1)
            planned = Lrn(native, x.shape, before, after, float(F(alpha)) / size, float(F(bias)))
            want = lrn(x, alpha=alpha, bias=bias, size=size)
            for strides in ((0, 0), (4 * channels + 12, 0), (4 * channels + 4, 4 * channels + 20)):
                got = Rows(planned, strides, guarded(guard, at_end)).run(native, [x])
                rows = np.ascontiguousarray(np.moveaxis(want, 1, -1)).reshape(-1, channels)
                assert_equal(got.view(F), rows, f"{channels} channels, size {size}, {strides}")


@pytest.mark.parametrize("threads", [1, 2])
def test_sessions(threads: int) -> None:
    x = numbers(np.random.default_rng(3), (2, 40, 30, 20))
    for attributes in ({"size": 5}, {"size": 4, "alpha": 0.3, "bias": 1.5}, {"size": 15, "alpha": 2.0}):
        model, feeds = node_model("LRN", [x], attributes, outputs=[F])
        session = qrun.Session(model, threads=threads, cache=OBJECTS)
        for _ in range(3):
            result = session.execute(feeds, observe=False)
            assert result.events[0].backend == "native"
            assert_equal(result.outputs["y0"], lrn(x, **attributes))


@pytest.mark.parametrize(
    ("x", "attributes", "why"),
    [
        (np.ones((1, 3, 2), F), {"size": 3, "beta": 0.5}, "not float32 to the power of 0.75"),
        (np.ones((1, 3, 2)), {"size": 3}, "not float32 to the power of 0.75"),
        (np.ones((1, 40, 2), F), {"size": 17}, "sums of more than 16 squares"),
    ],
)
def test_what_the_reference_runs(x: Any, attributes: dict[str, Any], why: str) -> None:
    model, feeds = node_model("LRN", [x], attributes, outputs=[x.dtype])
    result = qrun.Session(model, cache=OBJECTS).execute(feeds)
    assert (result.events[0].backend, result.events[0].why) == ("reference", why)
    assert_equal(result.outputs["y0"], lrn(x, **attributes))
