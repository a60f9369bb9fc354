"""Values that follow from shapes: constants of a native program, other ones for other shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from helpers.native import ISAS, OBJECTS, Array
from helpers.placed import same_runs
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.running.derived import SMALL, derived_tensors

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
Node = tuple[str, Sequence[str], str, dict[str, Any]]


def model(
    nodes: Sequence[Node], constants: Mapping[str, Array], outputs: Sequence[str], fed: Sequence[str] = ()
) -> onnx.ModelProto:
    """x is float32 of unknown lengths; `fed` are the initializers that a run may replace."""
    made = [helper.make_node(op_type, inputs, [output], output, **a) for op_type, inputs, output, a in nodes]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m", 6])]
    inputs += [helper.make_tensor_value_info(n, TensorProto.INT64, constants[n].shape) for n in fed]
    return make_model(made, inputs, dict.fromkeys(outputs, onnx.TypeProto()), constants, opset=17)


HEADS: list[Node] = [
    ("Relu", ["x"], "r", {}),
    ("Shape", ["r"], "shape", {}),
    ("Gather", ["shape", "zero"], "n", {}),
    ("Gather", ["shape", "one"], "m", {}),
    ("Unsqueeze", ["n", "axes"], "n1", {}),
    ("Unsqueeze", ["m", "axes"], "m1", {}),
    ("Concat", ["n1", "m1", "rest"], "sizes", {"axis": 0}),
    ("Reshape", ["r", "sizes"], "h", {}),
    ("Neg", ["h"], "y", {}),
]
NUMBERS = {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([0]), "rest": np.array([2, 3])}


def run_both(made: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]], outputs: Sequence[str] = ()) -> qrun.Session:
    """Each of the feeds three times in turn, by one native session: always what the reference makes."""
    return same_runs(made, [*feeds, *feeds[::-1], *feeds], outputs, times=1)


def feeds(*shapes: tuple[int, int]) -> list[dict[str, Array]]:
    return [{"x": np.random.default_rng(shape).normal(0, 1, (*shape, 6)).astype(F)} for shape in shapes]


def backends(session: qrun.Session, fed: Mapping[str, Array]) -> dict[str, str]:
    return {event.node.name: event.backend for event in session.execute(fed).events}


def test_a_reshape_to_a_computed_shape_is_native() -> None:
    made = model(HEADS, NUMBERS, ["y"])
    session = run_both(made, feeds((2, 5), (1, 1), (0, 3), (2, 5), (7, 2)))
    found = backends(session, feeds((2, 5))[0])
    assert [found[name] for name in ("r", "h", "y")] == ["native"] * 3
    whys = {event.node.name: event.why for event in session.execute(feeds((2, 5))[0]).events}
    assert {whys[name] for name in ("shape", "n", "m")} == {"follows from shapes"}


def test_derived_values_can_be_outputs() -> None:
    run_both(model(HEADS, NUMBERS, ["y", "sizes", "n"]), feeds((2, 5), (3, 1)))
    run_both(model(HEADS, NUMBERS, ["y"]), feeds((2, 5), (3, 1)), ["y", "m", "shape", "sizes"])


def test_what_a_run_may_replace_is_not_derived() -> None:
    made = model(HEADS, NUMBERS, ["y"], ["rest"])
    assert "sizes" not in derived_tensors(qrun.load(made))
    assert {"shape", "n", "m1"} <= derived_tensors(qrun.load(made))
    fed = feeds((2, 5))[0]
    run_both(made, [fed, {**fed, "rest": np.array([3, 2])}, {**fed, "rest": np.array([6, 1])}])


def test_what_data_decide_is_not_derived() -> None:
    nodes: list[Node] = [
        ("NonZero", ["x"], "places", {}),
        ("Shape", ["places"], "count", {}),
        ("ReduceMax", ["x"], "most", {"keepdims": 0}),
        ("Cast", ["most"], "c", {"to": 7}),
        ("Add", ["count", "c"], "y", {}),
        ("Neg", ["x"], "z", {}),
    ]
    made = model(nodes, {}, ["y", "z"])
    assert derived_tensors(qrun.load(made)) == {"count"}
    x = feeds((2, 5))[0]["x"]
    run_both(made, [{"x": x}, {"x": x * 3}, {"x": np.maximum(x, 0)}, {"x": np.zeros_like(x) + 7}])


@pytest.mark.parametrize("count", [SMALL - 1, SMALL, SMALL + 1, 5 * SMALL])
def test_large_ones_are_made_in_each_run(count: int) -> None:
    nodes: list[Node] = [
        ("Shape", ["x"], "shape", {}),
        ("Slice", ["shape", "zero", "one", "zero"], "n", {}),
        ("ConstantOfShape", ["n"], "filled", {"value": numpy_helper.from_array(np.array([2.5], F))}),
        ("Relu", ["x"], "r", {}),
        ("Unsqueeze", ["filled", "axes"], "column", {}),
        ("Mul", ["r", "column"], "y", {}),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "axes": np.array([1, 2])}
    run_both(model(nodes, constants, ["y"]), feeds((count, 1), (count + 1, 1)))


def test_scales_computed_from_shapes() -> None:
    nodes: list[Node] = [
        ("Shape", ["x"], "shape", {}),
        ("Cast", ["shape"], "real", {"to": 1}),
        ("Div", ["real", "two"], "half", {}),
        ("Floor", ["half"], "whole", {}),
        ("Cast", ["whole"], "sizes", {"to": 7}),
        ("Expand", ["small", "sizes"], "wide", {}),
        ("Shape", ["wide"], "y", {}),
        ("Neg", ["x"], "z", {}),
    ]
    run_both(model(nodes, {"two": F(2), "small": np.ones((1, 1, 1), F)}, ["y", "z"]), feeds((4, 6), (9, 2)))


def test_what_reads_constants_only_is_told_apart_from_shapes() -> None:
    nodes: list[Node] = [
        ("Add", ["two", "two"], "four", {}),
        ("Neg", ["four"], "less", {}),
        ("Shape", ["x"], "shape", {}),
        ("Sub", ["shape", "less"], "y", {}),
        ("Neg", ["x"], "z", {}),
    ]
    made = model(nodes, {"two": np.array([2])}, ["y", "z"])
    session = qrun.Session(made, fuse=False, cache=OBJECTS)
    whys = {event.node.name: event.why for event in session.execute(feeds((2, 5))[0]).events}
    assert (whys["less"], whys["shape"]) == ("reads constants only", "follows from shapes")
