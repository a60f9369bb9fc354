"""The graphs of If, Loop and Scan, compared node by node: where they first differ, in which iteration, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from onnx import TensorProto, helper

import qrun
from qrun.comparing.causes import Reason
from qrun.comparing.comparison import Comparison, GraphDifference
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide
from qrun.io.inputs import Feeds
from qrun.ir import Array
from qrun.report.compare import comparison_fields, comparison_sheet, first_facts, verdict
from qrun.report.json import document

f32, i64 = np.float32, np.int64
pytest.importorskip("onnxruntime")
INT4, FLOAT, BOOL, INT64 = TensorProto.INT4, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
value = helper.make_tensor_value_info


def casts(x: str, y: str) -> list[onnx.NodeProto]:
    """Through int4: qrun cuts fractions off, onnxruntime rounds them."""
    return [helper.make_node("Cast", [x], [f"{y}_q"], f"{y}_cast", to=INT4),
            helper.make_node("Cast", [f"{y}_q"], [y], f"{y}_back", to=FLOAT)]  # fmt: skip


def branching(x: str, y: str, condition: str) -> onnx.NodeProto:
    """Casts in then_branch, the same number in else_branch."""
    then = helper.make_graph(casts(x, f"{y}_then"), "then", [], [value(f"{y}_then", FLOAT, None)])
    other = [helper.make_node("Identity", [x], [f"{y}_else"])]
    otherwise = helper.make_graph(other, "else", [], [value(f"{y}_else", FLOAT, None)])
    return helper.make_node("If", [condition], [y], "branch", then_branch=then, else_branch=otherwise)


def looping(inner: list[onnx.NodeProto], made: str) -> onnx.ModelProto:
    """Adds 0.2 to a state in each of six turns, from 0; `inner` makes a scan output of the state s_out."""
    nodes = [helper.make_node("Add", ["s_in", "step"], ["s_out"], "add"), *inner]
    nodes.append(helper.make_node("Identity", ["c_in"], ["c_out"], "go"))
    ends = [value("c_out", BOOL, []), value("s_out", FLOAT, [1]), value(made, FLOAT, [1])]
    body = helper.make_graph(
        nodes, "body", [value("i", INT64, []), value("c_in", BOOL, []), value("s_in", FLOAT, [1])], ends
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["last", "y"], "loop", body=body)
    stored = {"n": np.array(6), "step": np.array([0.2], f32), "yes": np.array(True)}
    return make_model([node], {"x": [1]}, {"y": typed(f32, [6, 1])}, stored, opset=21)


def compared(proto: onnx.ModelProto, feeds: Mapping[str, Array], **more: Any) -> Comparison:
    data = proto.SerializeToString()
    model = qrun.load(data)
    return compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data), feeds, **more)


def inside(found: Comparison) -> tuple[GraphDifference, Reason]:
    first = found.first
    assert first is not None
    assert first.guilt is not None
    assert first.guilt.inside is not None
    return first.guilt.inside, first.guilt.reason


X = np.array([0.0], f32)


def test_a_branch_is_compared_node_by_node() -> None:
    proto = make_model([branching("x", "y", "c")], {"x": [1], "c": typed(BOOL, [])}, {"y": [1]}, {}, opset=21)
    found = compared(proto, {"x": np.array([2.7], f32), "c": np.array(True)})
    there, reason = inside(found)
    assert (there.where, there.tensor.name, there.tensor.node.name) == ("then_branch", "y_then_q", "y_then_cast")
    assert reason.cause == "cast-rounding"
    assert [t.differs for t in there.found.tensors] == [True, True]
    assert compared(proto, {"x": np.array([2.7], f32), "c": np.array(False)}).equal
    assert "cast-rounding inside its then_branch, at y_then_cast" in verdict(found)


def test_the_iteration_of_a_loop_is_named() -> None:
    """0.2 and 0.4 are 0 either way, 0.6 is 1 in onnxruntime."""
    found = compared(looping(casts("s_out", "q"), "q"), {"x": X})
    there, reason = inside(found)
    assert (there.turn, there.tensor.name, reason.cause) == (2, "q_q", "cast-rounding")
    assert found.first is not None
    facts = first_facts(found, found.first)
    assert ("inside", "body in iteration 2 (the first is 0), fed the previous iteration of ort") in facts


def test_a_branch_in_a_loop() -> None:
    found = compared(looping([branching("s_out", "q", "yes")], "q"), {"x": X})
    there, reason = inside(found)
    assert (there.turn, there.tensor.node.op_type, reason.cause) == (2, "If", "cast-rounding")
    assert there.tensor.guilt is not None
    assert there.tensor.guilt.inside is not None
    assert there.tensor.guilt.inside.where == "then_branch"
    assert "cast-rounding inside its body in iteration 2, then_branch, at q_then_cast" in verdict(found)


@pytest.mark.parametrize(("backwards", "turn"), [(0, 3), (1, 1)])
def test_the_iteration_of_a_scan_is_named(backwards: int, turn: int) -> None:
    """A scan along the second axis, with a state that counts."""
    nodes = [helper.make_node("Add", ["s", "one"], ["t"], "count"), *casts("e", "q")]
    body = helper.make_graph(
        nodes,
        "body",
        [value("s", FLOAT, [1]), value("e", FLOAT, [2])],
        [value("t", FLOAT, [1]), value("q", FLOAT, [2])],
    )
    node = helper.make_node(
        "Scan", ["s0", "x"], ["last", "y"], "scan", body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[backwards],
    )  # fmt: skip
    stored = {"s0": np.zeros(1, f32), "one": np.ones(1, f32)}
    proto = make_model([node], {"x": [2, 5]}, {"last": [1], "y": typed(f32, [5, 2])}, stored, opset=21)
    x = np.array([[0, 1, 2, 3.5, 4], [0, 1, 2, 3, 4]], f32)
    there, reason = inside(compared(proto, {"x": x}))
    assert (there.where, there.tensor.name, reason.cause) == (f"body in iteration {turn}", "q_q", "cast-rounding")


def test_differences_that_add_up() -> None:
    """Each turn is off by a few units in the last place, which --rtol allows; the sixth power of it is not allowed."""
    rng = np.random.default_rng(3)
    nodes = [helper.make_node("MatMul", ["s_in", "w"], ["s_out"], "product")]
    nodes.append(helper.make_node("Identity", ["c_in"], ["c_out"], "go"))
    body = helper.make_graph(
        nodes, "body", [value("i", INT64, []), value("c_in", BOOL, []), value("s_in", FLOAT, [4, 300])],
        [value("c_out", BOOL, []), value("s_out", FLOAT, [4, 300])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=body)
    stored = {"n": np.array(6), "w": (rng.standard_normal((300, 300)) / 17).astype(f32)}
    proto = make_model([node], {"x": [4, 300]}, {"y": [4, 300]}, stored, opset=21)
    tight = qrun.comparing.differences.Tolerance(0, 0, 1e-6)
    found = compared(proto, {"x": rng.standard_normal((4, 300)).astype(f32)}, tolerance=tight)
    if found.equal:
        pytest.skip("this CPU adds in an order that is near enough")
    there, reason = inside(found)
    assert (there.tensor.node.name, reason.cause) == ("product", "float-order")


def test_what_is_inside_is_in_the_json_and_on_the_screen() -> None:
    found = compared(looping(casts("s_out", "q"), "q"), {"x": X})
    fields = json.loads(document("compare", [], comparison_fields(found, Feeds({"x": X}))))
    own = next(t["by_itself"] for t in fields["tensors"] if t["by_itself"])
    assert (own["cause"], own["inside"]["graph"], own["inside"]["iteration"]) == ("cast-rounding", "body", 2)
    assert [t["name"] for t in own["inside"]["tensors"] if not t["equal"]] == ["q_q", "q"]
    titles = [block.title for block in comparison_sheet(found, 10).blocks]
    assert "Inside node 0, body in iteration 2: tensors that differ" in titles
