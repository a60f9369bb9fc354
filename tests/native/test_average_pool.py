"""Native AveragePool of float32 equals the reference, bit for bit, on every instruction set, within its memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import edges
from helpers.native import Array, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width

from qrun.native.kernels.pool import AveragePool, Taps
from qrun.ops.pool import average_pool

F = np.float32
KINDS = ("normal", "ties", "hairs", "zeros", "special")


def numbers(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """ties: sums that are the middle of two float32 numbers; hairs: what float64 loses decides them."""
    x = rng.standard_normal(shape)
    if kind == "ties":
        x = rng.integers(-(2**24), 2**24, shape) * 2.0**-20
    elif kind == "hairs":
        x = rng.choice([1.0, 2.0**-24, -(2.0**-24), 2.0**-80, -(2.0**-80), 1 + 2.0**-23], shape)
    elif kind == "zeros":
        x = rng.choice([0.0, -0.0, -0.0, -0.0, 1.0, -1.0], shape)
    elif kind == "special":
        x = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e-45], shape), x)
    return x.astype(F)


def planned(isa: str, x: Array, kernel: tuple[int, int], stride: int, pad: int, threads: int = 1) -> AveragePool:
    """The mean over windows of this size, padding not counted."""
    size = x.shape[2:]
    out = tuple((n + 2 * pad - k) // stride + 1 for n, k in zip(size, kernel, strict=True))
    places = [np.arange(o)[:, None] * stride - pad + np.arange(k) for o, k in zip(out, kernel, strict=True)]
    inside = [np.where((p >= 0) & (p < n), p, -1) for p, n in zip(places, size, strict=True)]
    taps = Taps(size, tuple(inside))
    divisors = np.maximum(taps.inside, 1).astype(np.float64)
    return AveragePool(engine(isa, threads), x.shape, taps, divisors)


@thin_width(*edges.CHANNELS, name="channels", other=4)
@pytest.mark.parametrize("threads", [1, 3])
def test_windows(isa: str, channels: int, threads: int) -> None:
    rng = np.random.default_rng([channels, threads])
    for number, kind in enumerate(KINDS):
        kernel, stride, pad = (((2, 2), 2, 0), ((3, 3), 1, 1), ((5, 7), 1, 0), ((1, 3), 2, 1), ((3, 3), 2, 2))[number]
        x = numbers(kind, rng, (2, channels, 7, 9))
        geometry = {"kernel_shape": kernel, "strides": (stride,) * 2, "pads": (pad,) * 4}
        want = average_pool(x, **geometry)
        operation = planned(isa, x, kernel, stride, pad, threads)
        for columns, further in ((0, 0), (channels + 5, channels + 1)):
            for at_end in (True, False):
                made = run_placed(engine(isa, threads), operation, [x], (4 * columns, 4 * further), at_end)
                assert_equal(made, want, f"{kind} {channels} {columns}")


@pytest.mark.parametrize("number", range(len(edges.POOLS)))
def test_nodes(number: int) -> None:
    rng = np.random.default_rng(number)
    for kind, counted in (("normal", 0), ("ties", 1), ("hairs", 0), ("special", 1), ("zeros", 1)):
        x = numbers(kind, rng, (2, 5, 11, 10))
        model, feeds = node_model("AveragePool", [x], {**edges.POOLS[number], "count_include_pad": counted})
        assert same_everywhere(model, feeds).events[0].backend == "native"


@pytest.mark.parametrize("axes", [1, 3])
def test_other_numbers_of_axes(axes: int) -> None:
    x = numbers("ties", np.random.default_rng(axes), (2, 3, *(6, 5, 7)[:axes]))
    attributes = {"kernel_shape": [2] * axes, "dilations": [2] * axes, "pads": [1] * 2 * axes}
    model, feeds = node_model("AveragePool", [x], attributes)
    assert same_everywhere(model, feeds).events[0].backend == "native"
    double, feeds = node_model("AveragePool", [x.astype("d")], attributes, outputs=[np.dtype("d")])
    assert same_everywhere(double, feeds).events[0].why == "no native means of float64"


def test_means_are_the_reals_rounded() -> None:
    """Where sums are exact in float64."""
    x = numbers("ties", np.random.default_rng(9), (1, 8, 12, 12))
    got = engine("").run(planned("", x, (2, 2), 2, 0), [x])
    sums = x.astype(np.longdouble).reshape(1, 8, 6, 2, 6, 2).sum((3, 5))
    assert_equal(got, (sums / 4).astype(F))
    assert not math.isnan(got.sum())
