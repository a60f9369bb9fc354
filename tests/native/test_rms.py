"""Native normalization by the root mean square equals the reference kernels bit for bit,
alone and behind other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.models import make_model
from helpers.native import Array, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import MS, assert_equal, node_model
from helpers.widths import every_width
from native.test_normalize import rows
from onnx import helper

from qrun.native.kernels.rowwise import InverseRms, RmsNorm
from qrun.ops.layernorm import simplified_layer_normalization

F, H = np.float32, np.float16
SIMPLIFIED, SKIPPED = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"


def marked(rng: np.random.Generator, count: int, length: int) -> Array:
    """Rows with zeros of both signs among them, some of nothing else."""
    x = rows(rng, count, length)
    x[rng.random(x.shape) < 0.1] = -0.0
    x[::7] = 0
    return x


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_rows(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(2)
    for length in edges.ROWS:
        x, scale = marked(rng, 40, length), rng.normal(0, 0.5, length).astype(F)
        for epsilon in (1e-5, 1e-12, 0.0):
            want = [np.asarray(y) for y in simplified_layer_normalization(x, scale, epsilon=epsilon)]
            for threads in (1, 2):
                native, number = engine(isa, threads), float(F(epsilon))
                norm = RmsNorm(native, x.shape, scale, number)
                assert_equal(run_placed(native, norm, [x], (0, 0), at_end), want[0], f"{length}, {epsilon}")
                inverse = InverseRms(native, x.shape, length, (40, 1), number)
                assert_equal(run_placed(native, inverse, [x], (0, 0), at_end), want[1], f"{length}, {epsilon}")


@pytest.mark.parametrize("dtype", [F, H])
def test_nodes(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    for shape, axis in (((2, 3, 40), -1), ((2, 3, 40), 1), ((3, 17), 0), ((1, 1, 64), 2)):
        x, scale = rng.normal(size=shape).astype(dtype), rng.normal(size=shape[axis:]).astype(dtype)
        for op_type, outputs in (("RMSNormalization", [dtype]), (SIMPLIFIED, [dtype]), (SIMPLIFIED, [dtype, F])):
            for weight in (scale, scale.reshape(-1)[:1]):
                model, feeds = node_model(
                    op_type, [x, weight], {"axis": axis}, opset=23, outputs=outputs, constants=[1], ir_version=11
                )
                event = same_everywhere(model, feeds).events[0]
                assert (event.backend == "native") == (len(outputs) == 1 or dtype == F), event.why


def test_what_is_left_to_the_reference() -> None:
    x, scale = np.ones((2, 8), F), np.ones(8, F)
    for text, constants, inputs, attributes in (
        ("scale is not constant", [], [x, scale], {}),
        ("epsilon is negative", [1], [x, scale], {"epsilon": -0.5}),
        ("differs from row to row", [1], [x, x], {}),
        ("no elements", [1], [x[:0], scale], {}),
        ("not float32", [1], [x, scale.astype(H)], {}),
        ("in another type", [1], [x, scale], {"stash_type": 10}),
    ):
        outputs = [inputs[1].dtype, H] if "stash_type" in attributes else [inputs[1].dtype]
        model, feeds = node_model(SIMPLIFIED, inputs, attributes, outputs=outputs, constants=constants)
        assert text in same_everywhere(model, feeds).events[0].why


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("op_type", [SKIPPED, "SkipLayerNormalization"])
def test_behind_other_nodes(op_type: str, kept: bool) -> None:
    """The sums, an output of the graph or read by another node, are made once, and read by the normalization."""
    rng = np.random.default_rng(5)
    x = [rng.normal(size=(1, 5, 48)).astype(F) for _ in range(2)]
    weights = {name: rng.normal(size=48).astype(F) for name in ("gamma", "beta", "bias")}
    names = ["gamma", "bias"] if op_type == SKIPPED else ["gamma", "beta", "bias"]
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["product"]),
        helper.make_node(op_type, ["product", "b", *names], ["y", "", "", "sum"], domain=MS, epsilon=1e-6),
        helper.make_node("Neg", ["sum"], ["less"]),
        helper.make_node(op_type, ["less", "y", *names], ["z"], domain=MS),
    ]
    feeds = dict(zip("ab", x, strict=True))
    model = make_model(nodes, feeds, "sum y z" if kept else "z", {n: weights[n] for n in names}, opset=17)
    ran = same_everywhere(model, feeds)
    assert {event.backend for event in ran.events} == {"native"}, [event.why for event in ran.events]
