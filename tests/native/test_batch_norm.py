"""Native BatchNormalization equals the reference kernel bit for bit, on every instruction set, within its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import Array, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

from qrun.native.kernels.rowwise import BatchNorm
from qrun.ops.normalization import batch_normalization

F = np.float32


def operands(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, list[Array]]:
    """x, and scale, bias, mean and variance, which may be 0 or negative."""
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38], shape)
    x = np.where(rng.random(shape) < 0.1, special, rng.standard_normal(shape)).astype(F)
    scale, bias, mean = (rng.standard_normal(shape[1]).astype(F) for _ in range(3))
    return x, [scale, bias, mean, rng.choice(np.array([0.5, 2.7, 0.0, 1e-9, -1.0], F), shape[1])]


@every_width
@pytest.mark.parametrize("threads", [1, 3])
def test_sizes_and_gaps(isa: str, threads: int) -> None:
    rng = np.random.default_rng(threads)
    for channels in (1, 3, 4, 7, 8, 15, 16, 17, 33, 64):
        for shape in ((2, channels, 3, 5), (7, channels), (1, channels, 40)):
            x, params = operands(rng, shape)
            want = batch_normalization(x, *params)[0]
            scale, bias, mean, var = (param.astype("d") for param in params)
            with np.errstate(all="ignore"):
                factor = scale / np.sqrt(var + float(F(1e-5)))
            operation = BatchNorm(engine(isa, threads), shape, mean, factor, bias)
            for gaps in ((0, 0), (3, 0), (1, 5)):
                strides = [4 * (channels + gap) if gap else 0 for gap in gaps]
                for at_end in (True, False):
                    made = run_placed(engine(isa, threads), operation, [x], strides, at_end)
                    assert_equal(made, want, f"{shape} {gaps}")


@every_width
def test_every_step_rounds(isa: str) -> None:
    """Sums that cancel show whether the product was rounded before."""
    rng = np.random.default_rng(4)
    scale, mean, near = (rng.standard_normal(64).astype(F) for _ in range(3))
    var = np.abs(rng.standard_normal(64)).astype(F)
    x = near[:, None] * (1 + rng.integers(-9, 10, (1, 64, 50)) * 2.0**-22).astype(F)
    factor = scale / np.sqrt(var.astype("d") + float(F(1e-5)))
    bias = ((mean.astype("d") - near) * factor).astype(F)
    operation = BatchNorm(engine(isa), x.shape, mean, factor, bias)
    assert_equal(engine(isa).run(operation, [x]), batch_normalization(x, scale, bias, mean, var)[0])


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_nodes(opset: int) -> None:
    rng = np.random.default_rng(opset)
    for shape in ((2, 5, 4, 3), (3, 20), (1, 9, 2, 3, 4)):
        x, params = operands(rng, shape)
        model, feeds = node_model(
            "BatchNormalization", [x, *params], {"epsilon": 0.01}, constants=(1, 2, 3, 4), opset=opset
        )
        assert same_everywhere(model, feeds).events[0].backend == "native"


def declining() -> list[tuple[Any, str]]:
    x, params = operands(np.random.default_rng(1), (2, 4, 3))
    constants = (1, 2, 3, 4)
    double = [v.astype("d") for v in (x, *params)]
    return [
        (node_model("BatchNormalization", [x, *params], opset=15), "scale is not constant"),
        (node_model("BatchNormalization", double, constants=constants, opset=15, outputs=[np.dtype("d")]), "float64"),
        (
            node_model("BatchNormalization", [x, *params], {"training_mode": 1}, constants=constants, opset=15),
            "statistics of the batch are asked for",
        ),
    ]


def test_what_is_declined() -> None:
    for (model, feeds), why in declining():
        assert why in same_everywhere(model, feeds).events[0].why
