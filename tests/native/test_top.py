"""Native TopK is the definition's, on every instruction set, within its memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.native import ISAS, Array, assert_left, engine
from helpers.placed import run_placed, same_everywhere, same_refusal
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width

from qrun.native.kernels.reduce import Along, TopPlaces
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def elements(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Few different ones, or any; of floats also both zeros, infinities and NaN."""
    dtype = np.dtype(dtype)
    few, special = rng.integers(2), rng.random(shape) < rng.choice([0, 0.02, 0.5])
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        x = rng.integers(0, 3, shape) if few else rng.integers(int(info.min), int(info.max), shape, endpoint=True)
        return np.where(special, rng.choice([info.min, info.max], shape), x).astype(dtype)
    x = rng.choice([-1.5, -0.0, 0.0, 2.0], shape) if few else rng.normal(0, 1, shape)
    return np.where(special, rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0], shape), x).astype(dtype)


def best(row: Array, count: int, what: str) -> list[int]:
    """By the definition: NaN above all numbers, of equals the first one first."""
    values = [(value != value, 0.0 if value != value else value) for value in row.astype(np.float64).tolist()]
    return (
        sorted(range(len(values)), key=values.__getitem__)[:count]
        if what == "min"
        else sorted(range(len(values)), key=lambda n: (not values[n][0], -values[n][1]))[:count]
    )


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(16), name="seed", other=4)
def test_places_and_elements(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    native = engine(isa, threads)
    for _ in range(6):
        dtype = np.dtype(rng.choice(["float32", "int32"]))
        lead = tuple(int(n) for n in rng.choice([1, 2, 5, 0], int(rng.integers(0, 3)), p=[0.3, 0.3, 0.35, 0.05]))
        length = int(rng.choice([1, 2, 3, 16, 17, 50, 300]))
        count, what = int(rng.integers(0, length + 1)), str(rng.choice(["max", "min"]))
        x = elements(rng, (*lead, length), dtype)
        rows = x.reshape(-1, length)
        want = np.array([best(row, count, what) for row in rows], np.int64).reshape(*lead, count)
        operand, case = Operand(x.shape, dtype), f"{isa} {dtype} {x.shape} {count} {what}"
        top = TopPlaces(native, operand, count, what)
        places = run_placed(native, top, [x], (0, 0))
        assert_equal(places, want, case)
        along = Along(native, operand, top.result)
        assert_equal(run_placed(native, along, [x, places], (0, 0, 0)), np.take_along_axis(x, want, -1), case)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_nodes(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for shape, axis, k in (((9,), 0, 4), ((2, 1000), -1, 100), ((3, 21, 4), 1, 5), ((2, 3, 4, 5), 0, 2),
                           ((0, 4), 1, 2), ((4, 6), 1, 0), ((4, 6), 0, 4)):  # fmt: skip
        for largest in (0, 1):
            x = elements(rng, shape, dtype)
            options = {"axis": axis, "largest": largest}
            opset = 24 if dtype is ml_dtypes.bfloat16 else 11
            model, feeds = node_model(
                "TopK",
                [x, np.array([k])],
                options,
                opset=opset,
                outputs=[dtype, np.int64],
                constants=[1],
                ir_version=10,
            )
            for threads in (1, 2):
                for wanted in (None, ["y0"], ["y1"]):
                    (event,) = same_everywhere(model, feeds, wanted, threads=threads).events
                    assert (event.backend, event.why) == ("native", ""), (shape, options)


def test_of_an_older_version() -> None:
    x = elements(np.random.default_rng(1), (3, 40), np.float32)
    model, feeds = node_model("TopK", [x], {"k": 7}, opset=9, outputs=[np.float32, np.int64])
    assert same_everywhere(model, feeds).events[0].backend == "native"


def test_what_is_declined_and_refused() -> None:
    for x, constants, why in (
        (np.ones(3), [1], "no native kernel for float64"),
        (np.ones(3, np.int64), [1], "no native kernel for int64"),
        (np.ones(3, np.float32), [], "K is not constant"),
    ):
        outputs = [x.dtype, np.dtype(np.int64)]
        assert_left(*node_model("TopK", [x, np.array([2])], opset=11, outputs=outputs, constants=constants), why)
    for k, axis in ((4, 0), (1, 3), (-1, 0)):
        x = np.ones((3, 2), np.float32)
        options = {"axis": axis}
        same_refusal(
            *node_model("TopK", [x, np.array([k])], options, opset=11, outputs=[np.float32, np.int64], constants=[1])
        )
