"""Tensors whose shapes follow from values: a program runs what does not depend on them natively,
whatever shapes come."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS
from helpers.support import assert_equal
from onnx import TensorProto, helper

import qrun
from qrun.running import pythonsteps

Array = np.ndarray[Any, Any]
F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def model(nodes: list[onnx.NodeProto], outputs: dict[str, int], **constants: Any) -> onnx.ModelProto:
    made = {name: typed(kind) for name, kind in outputs.items()}
    return make_model(nodes, {"x": ["n", 6]}, made, constants, opset=17)


def selecting() -> onnx.ModelProto:
    """What is positive, and where; how many, and numbers of as many; what depends on neither."""
    nodes = [
        helper.make_node("Neg", ["x"], ["m"]),
        helper.make_node("Relu", ["m"], ["steady"]),
        helper.make_node("NonZero", ["steady"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "rows"], ["values"]),
        helper.make_node("Mul", ["values", "values"], ["squares"]),
        helper.make_node("Shape", ["values"], ["count"]),
        helper.make_node("Expand", ["one", "count"], ["ones"]),
        helper.make_node("Add", ["ones", "squares"], ["y"]),
    ]
    outputs = {
        "y": TensorProto.FLOAT,
        "steady": TensorProto.FLOAT,
        "count": TensorProto.INT64,
        "rows": TensorProto.INT64,
    }
    return model(nodes, outputs, one=F(1))


def fed(rng: np.random.Generator, rows: int, share: float) -> dict[str, Array]:
    return {"x": np.where(rng.random((rows, 6)) < share, -1, 1).astype(F) * rng.integers(1, 9, (rows, 6)).astype(F)}


@pytest.mark.parametrize("few", [0, pythonsteps.FEW])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_values_decide_may_differ_in_each_run(few: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From no element to all of them; with native kernels for what depends on values, and without."""
    monkeypatch.setattr(pythonsteps, "FEW", few)
    made, rng = selecting(), np.random.default_rng(few)
    session = qrun.Session(made, backend="native", threads=threads)
    reference = qrun.Session(made, backend="reference", fuse=True)
    given = [fed(rng, 3, share) for share in (0.5, 0.5, 0.4, 0.6, 0.5, 0, 1, 0.3, 0.2, 0, 0.9)]
    for number, (feeds, wanted) in enumerate([(feeds, reference.run(feeds)) for feeds in given]):
        if number == 5:
            monkeypatch.setattr("qrun.running.runs.execute", None)
        found = session.run(feeds)
        for name, array in wanted.items():
            assert_equal(found[name], array)
            found[name][...] = 7  # the caller's own


def test_other_inputs_have_programs_that_know_what_varies() -> None:
    made, rng = selecting(), np.random.default_rng(3)
    session, reference = (qrun.Session(made, backend=backend, fuse=True) for backend in ("native", "reference"))
    for share in (0.5, 0.1, 0.2, 0.3):
        session.run(fed(rng, 3, share))
    for rows in (5, 5, 2, 5, 3, 2):
        feeds = fed(rng, rows, 0.4)
        for name, array in reference.run(feeds).items():
            assert_equal(session.run(feeds)[name], array)


def test_events_tell_the_shapes_of_their_run() -> None:
    session, rng = qrun.Session(selecting(), backend="native", threads=1), np.random.default_rng(4)
    for share in (0.5, 0.4, 0.3, 0.6, 0.2, 0, 0.7):
        feeds = fed(rng, 4, share)
        found = session.execute(feeds, observe=False)
        shapes = {info.name: info.shape for event in found.events for info in event.outputs}
        count = int((feeds["x"] < 0).sum())
        assert (shapes["places"], shapes["rows"], shapes["y"]) == ((2, count), (count, 2), (count,))
        assert found.outputs["y"].shape == (count,)
    told = {event.node.op_type: event for event in found.events if event.node}
    assert told["Relu"].backend == "native"
    assert told["Mul"].backend == "reference"
    assert told["Mul"].why
    watched = session.execute(feeds)
    assert watched.outputs["y"].shape == (count,)


def test_a_graph_inside_a_node_reads_what_varies() -> None:
    branch = helper.make_graph(
        [helper.make_node("Mul", ["values", "two"], ["twice"])],
        "b", [], [helper.make_tensor_value_info("twice", TensorProto.FLOAT, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Greater", ["x", "zero"], ["positive"]),
        helper.make_node("Compress", ["r", "mask"], ["values"]),
        helper.make_node("Reshape", ["positive", "flat"], ["mask"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch),
    ]
    nodes[2], nodes[3] = nodes[3], nodes[2]
    made = model(nodes, {"y": TensorProto.FLOAT, "r": TensorProto.FLOAT}, zero=F(0), two=F(2), yes=np.array(True), flat=np.array([-1]))  # fmt: skip
    session, rng = qrun.Session(made, backend="native", threads=1), np.random.default_rng(5)
    for share in (0.5, 0.4, 0.3, 0.6, 0.2, 0, 0.7):
        x = fed(rng, 2, share)["x"]
        assert_equal(session.run({"x": x})["y"], 2 * x[x > 0])
