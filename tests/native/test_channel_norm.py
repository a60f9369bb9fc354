"""Native InstanceNormalization and GroupNormalization have the bits of the reference, on every instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.models import make_model
from helpers.native import ISAS, OBJECTS, Array, assert_left
from helpers.placed import same_everywhere, same_refusal
from helpers.support import assert_equal, node_model
from helpers.widths import every_width
from onnx import helper

import qrun

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((1, 2, 3), 2),
    ((2, 6, 5, 7), 3),
    ((3, 4, 1), 2),
    ((2, 8, 33, 31), 1),
    ((1, 12, 3, 4, 5), 4),
    ((2, 3), 3),
    ((1, 1, 1, 700), 1),
]


def case(shape: tuple[int, ...], groups: int, dtype: Any, group: bool) -> tuple[Any, dict[str, Array]]:
    rng = np.random.default_rng(len(shape) + groups)
    x = rng.normal(0.3, 2, shape).astype(dtype)
    if x.size > 300:
        x[:, -1] = rng.choice([0.5, 0.5, np.inf, np.nan, -0.0], x[:, -1].shape)
        x[0, 0] = 3
    scale, bias = (rng.normal(0, 1, shape[1]).astype(dtype) for _ in range(2))
    scale[0], bias[-1] = -0.0, 0
    options = {"epsilon": 1e-3} | ({"num_groups": groups} if group else {})
    name = "GroupNormalization" if group else "InstanceNormalization"
    return node_model(name, [x, scale, bias], options, outputs=[dtype], constants=[1, 2])


@every_width
@pytest.mark.parametrize("group", [False, True])
def test_results_are_those_of_the_reference(isa: str, group: bool) -> None:
    for shape, groups in SHAPES:
        for threads in (1, 2):
            model, feeds = case(shape, groups, np.float32, group)
            ran = same_everywhere(model, feeds, isa=isa, threads=threads)
            assert [event.backend for event in ran.events] == ["native"], (shape, ran.events[0].why)


@pytest.mark.parametrize(("dtype", "group"), [(np.float16, False), (np.float16, True), (ml_dtypes.bfloat16, True)])
def test_narrow_types(dtype: Any, group: bool) -> None:
    for shape, groups in SHAPES:
        ran = same_everywhere(*case(shape, groups, dtype, group))
        assert ran.events[0].backend == "native"


def test_behind_what_a_chain_makes_and_for_other_shapes() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["a", "two"], ["m"]),
        helper.make_node("InstanceNormalization", ["m", "s", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GroupNormalization", ["d", "s", "b"], ["y"], num_groups=3),
    ]
    rng = np.random.default_rng(4)
    shapes = {"w": (6, 3, 3, 3), "s": (6,), "b": (6,), "two": (6, 1, 1)}
    stored = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    model = make_model(nodes, {"x": ["n", 3, "h", "w"]}, "y", stored)
    sessions = [qrun.Session(model, backend="native", cache=OBJECTS, threads=threads) for threads in (1, 2)]
    reference = qrun.Session(model, backend="reference")
    for shape in ((1, 3, 20, 24), (2, 3, 5, 5), (1, 3, 20, 24)):
        feeds = {"x": rng.normal(0, 1, shape).astype(np.float32)}
        want = reference.run(feeds)["y"]
        for session in sessions:
            for _ in range(3):
                assert_equal(session.run(feeds)["y"], want, str(shape))


def test_what_is_declined_and_refused() -> None:
    x, one = np.ones((1, 2, 3)), np.ones(2)
    for inputs, constants, why in (
        ([x, one, one], [1, 2], "no native kernel for float64"),
        ([x.astype(np.float32)] + [one.astype(np.float32)] * 2, [1], "B is not constant"),
        ([x[:, :, :0].astype(np.float32)] + [one.astype(np.float32)] * 2, [1, 2], "no elements"),
    ):
        model, feeds = node_model("InstanceNormalization", inputs, outputs=[inputs[0].dtype], constants=constants)
        assert_left(model, feeds, why)
    same_refusal(
        *node_model("GroupNormalization", [x, one, one], {"num_groups": 3}, outputs=[x.dtype], constants=[1, 2])
    )
    same_refusal(*node_model("InstanceNormalization", [x, one[:1], one], outputs=[x.dtype], constants=[1, 2]))
