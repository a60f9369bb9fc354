"""Relu and Clip made in the kernels of the float sums that they follow: the bits of the nodes one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.models import make_model
from helpers.native import ISAS, Array
from helpers.placed import same_runs, schedules
from helpers.widths import every_width
from onnx import ModelProto, helper

from qrun.native.kernels.elementwise import Elementwise

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3e38, -3e38, 1, -1e-3], F)
LAYERS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (1, 3, 9, 8), (21, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("Conv", (2, 16, 5, 5), (40, 16, 1, 1), {}),
    ("Conv", (1, 20, 7, 6), (17, 20, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (1, 20, 6, 11), (20, 1, 3, 3), {"group": 20, "pads": [1, 1, 1, 1]}),
    ("Conv", (2, 8, 20), (8, 4, 3), {"group": 2}),
    ("Gemm", (17, 40), (40, 33), {"alpha": 0.5}),
    ("MatMul", (2, 3, 24), (24, 30), {}),
]
LIMITS: list[tuple[float, ...] | None] = [None, (0.0, 6.0), (-0.0, 0.5), (-1.0,), (3.0, -3.0), (np.nan, 1.0)]
"""None for Relu."""


def model_of(number: int, limits: tuple[float, ...] | None, w: Array, bias: Array | None) -> ModelProto:
    op, x_shape, _, options = LAYERS[number]
    tensors = {"w": w} if bias is None or op == "MatMul" else {"w": w, "bias": bias}
    ends = {f"limit{n}": F(limit) for n, limit in enumerate(limits or ())}
    nodes = [
        helper.make_node(op, ["x", *tensors], ["sums"], **options),
        helper.make_node("Relu" if limits is None else "Clip", ["sums", *ends], ["y"]),
    ]
    return make_model(nodes, {"x": x_shape}, "y", {**tensors, **ends}, opset=17)


def same(number: int, limits: tuple[float, ...] | None, x: Array, w: Array, bias: Array | None, isa: str) -> None:
    session = same_runs(model_of(number, limits, w, bias), {"x": x}, isa=isa, threads=1 + number % 2)
    assert not any(isinstance(p.operation, Elementwise) for s in schedules(session) for p in s.placement.placed)


def drawn(number: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    _, x_shape, w_shape, _ = LAYERS[number]
    columns = w_shape[0] if len(x_shape) == len(w_shape) and LAYERS[number][0] == "Conv" else w_shape[-1]
    return tuple(rng.normal(0, 1, shape).astype(F) for shape in (x_shape, w_shape, (columns,)))  # type: ignore[return-value]


@every_width
def test_every_kind_of_product(isa: str) -> None:
    for number in range(len(LAYERS)):
        x, w, bias = drawn(number, np.random.default_rng(number))
        for limits in (LIMITS[0], LIMITS[1], LIMITS[2 + number % 4], (3.0, -3.0)):
            same(number, limits, x, w, bias if number % 2 else None, isa)


@every_width
def test_numbers_that_are_special(isa: str) -> None:
    rng = np.random.default_rng(5)
    for number in range(len(LAYERS)):
        x, w, bias = drawn(number, rng)
        flat = x.reshape(-1)
        flat[rng.choice(flat.size, len(SPECIAL), replace=False)] = SPECIAL
        with np.errstate(all="ignore"):
            for limits in (None, (0.0, 6.0)):
                same(number, limits, x, w, bias, isa)


@every_width
def test_sums_that_round_to_a_zero(isa: str) -> None:
    """Relu makes 0 of -0, and Clip leaves each zero that equals a limit."""
    for number in range(len(LAYERS)):
        x, w, bias = drawn(number, np.random.default_rng(number))
        for limits in (None, (0.0, 6.0), (-0.0, 0.5), (-1.0, 0.0)):
            same(number, limits, x * F(1e-30), w * F(1e-30), None if number % 2 else bias * F(0), isa)


def test_limits_of_what_is_limited() -> None:
    x, w, bias = drawn(1, np.random.default_rng(1))
    model = model_of(1, (-1.0, 2.0), w, bias)
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    for names in (["z"], ["z", "y"], ["z", "sums"], ["sums"]):
        same_runs(model, {"x": x}, names)
