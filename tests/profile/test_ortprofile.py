"""onnxruntime's profile on the nodes of the model: every form of the digits models, and a small residual network."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from helpers.passes import Graph
from helpers.profile import model_of, residual
from onnx import TensorProto, helper

import qrun
from qrun.errors import QrunError, UnsupportedError
from qrun.ir import Model
from qrun.ir.load import load
from qrun.peers import Peer
from qrun.peers.ortprofile import Profiler, multiply_adds, ort_profiles
from qrun.running.extents import common_extents
from qrun.running.profiling import Profile, measure_in_turns

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits"
FORMS = ("float", "qoperator", "qdq", "dynamic")
FOLDED = {"DequantizeLinear", "QuantizeLinear", "Constant", "Unsqueeze", "Reshape"}
"""What may depend on constants only, in these models."""


def profiles(model: Model, feeds: dict[str, Any], data: bytes | None = None, **more: Any) -> list[Profile]:
    peer = Peer(model, "ort", data=data, threads=1)
    return ort_profiles(peer, feeds, data=data, threads=1, runs=4, **more)


def digits(form: str) -> tuple[Model, dict[str, Any]]:
    model = load(DIGITS / form / "model.onnx")
    return model, {model.inputs[0].name: np.load(DIGITS / "x.npy")}


def covered(model: Model, profile: Profile) -> list[list[str]]:
    """The operators behind each event, quantization aside."""
    skip = ("QuantizeLinear", "DequantizeLinear")
    ops = ([model.nodes[i].op_type for i in e.group] for e in profile.last.events)
    return [[op for op in group if op not in skip] or group for group in ops]


@pytest.mark.parametrize("form", FORMS)
def test_every_node_of_the_digits_models_is_found(form: str) -> None:
    model, feeds = digits(form)
    (profile,) = profiles(model, feeds)
    times = Counter(i for e in profile.last.events for i in e.group)
    assert {model.nodes[i].op_type for i in times if times[i] > 1} <= {"DequantizeLinear"}
    assert {n.op_type for n in model.nodes if n.index not in times} <= FOLDED
    inserted = [e for e in profile.last.events if not e.group]
    assert {e.node.op_type for e in inserted if e.node} <= {"Transpose", "ReorderInput", "ReorderOutput"}
    assert all(e.index >= len(model.nodes) for e in inserted)
    assert len({e.index for e in profile.last.events}) == len(profile.last.events)
    assert all("qrun." not in name for e in profile.last.events for name in _names(e))
    for group in covered(model, profile):
        assert sum(op in ("Conv", "QLinearConv", "ConvInteger", "MaxPool", "Gemm", "QGemm") for op in group) <= 1, group


def _names(event: Any) -> list[str]:
    return [event.node.name, *event.node.inputs, *event.node.outputs, *(t.name for t in event.outputs)]


@pytest.mark.parametrize("where", ["digits", "residual"])
def test_conversions_go_with_what_they_convert(where: str) -> None:
    """A QuantizeLinear with the node before it, a DequantizeLinear with one behind it, where anything fused them."""
    if where == "digits":
        model, feeds = digits("qdq")
        (profile,) = profiles(model, feeds)
    else:
        model, data, _ = model_of(graph := residual())
        (profile,) = profiles(model, graph.feeds, data)
    checked = 0
    for found in profile.last.events:
        if len(found.group) == 1 or not found.group:
            continue
        for node in (model.nodes[i] for i in found.group):
            checked += 1
            if node.op_type == "QuantizeLinear":
                assert model.producers[node.inputs[0]].index in found.group
            if node.op_type == "DequantizeLinear":
                assert any(reader.index in found.group for reader in model.consumers[node.outputs[0]])
    assert checked > 20
    quantized = [n for n in model.nodes if n.op_type == "QuantizeLinear" and n.inputs[0] in model.producers]
    alone = [e for e in profile.last.events if len(e.group) == 1 and e.group[0] in {n.index for n in quantized}]
    assert all(e.node is not None and e.node.op_type == "QuantizeLinear" for e in alone), "no layout change is one"


def test_node_times_are_those_of_the_last_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run number k takes 100 k us, and in it every node takes k us."""
    model, data, _ = model_of(graph := residual())

    def written(profiler: Profiler) -> str:
        events = []
        for run in range(1, 7):
            for ran in profiler.nodes:
                events.append({"cat": "Node", "name": f"{ran.proto.name}_kernel_time", "dur": run, "ts": 1000 * run + 5,
                               "args": {}})  # fmt: skip
            events.append({"cat": "Session", "name": "model_run", "dur": 100 * run, "ts": 1000 * run})
        (tmp_path / "p.json").write_text(json.dumps(events))
        return str(tmp_path / "p.json")

    with Profiler(model, data=data, threads=1) as profiler:
        plain, watched = measure_in_turns([profiler.runner(graph.feeds)] * 2, 2, 1, 3.0)
        monkeypatch.setattr(profiler, "_loaded", SimpleNamespace(finish=lambda: written(profiler)))
        found = profiler.finish(plain, watched, {})
    assert found.profiled_ns == (500_000, 600_000)
    assert {tuple(row) for row in found.node_ns.tolist()} == {(5000, 6000)}
    assert found.run_ns == plain.run_ns
    assert {e.start_ns for e in found.last.events} == {5000}
    assert found.last.duration_ns == 600_000


def test_what_ran_a_node_is_told() -> None:
    model, feeds = digits("qdq")
    (profile,) = profiles(model, feeds)
    ran = {model.nodes[e.index].op_type: e.node.op for e in profile.last.events if e.group and e.node}
    assert ran["Conv"] == "com.microsoft::QLinearConv"
    assert ran["MaxPool"].endswith("MaxPool")
    events = {e.index: e for e in profile.last.events}
    conv = next(e for e in events.values() if e.group and model.nodes[e.index].op_type == "Conv")
    assert [t.dtype for t in conv.outputs] == [np.uint8]
    assert all(e.backend == "ort" for e in profile.last.events)


def test_unnamed_nodes_are_found_as_well() -> None:
    model, data, _ = model_of(graph := residual("unnamed"))
    (profile,) = profiles(model, graph.feeds, data)
    groups = sorted(e.group for e in profile.last.events if e.group)
    named, other, _ = model_of(residual("named"))
    (wanted,) = profiles(named, graph.feeds, other)
    assert groups == sorted(e.group for e in wanted.last.events if e.group)
    ops = [op for group in covered(model, profile) for op in group if op not in ("QuantizeLinear", "DequantizeLinear")]
    assert Counter(ops) == Counter(Conv=4, Relu=2, Add=2, GlobalAveragePool=1, Flatten=1, Gemm=1, Softmax=1)
    assert all(len(set(group) & {"Conv", "Add", "Gemm", "Softmax"}) <= 1 for group in covered(model, profile))


def test_onnxruntime_refuses_equal_names_before_it_is_profiled() -> None:
    model, data, _ = model_of(graph := residual("equal"))
    with pytest.raises(UnsupportedError, match="QR013"):
        profiles(model, graph.feeds, data)


def test_fusions_of_float_nodes() -> None:
    """Conv with Relu, with the Add of a shortcut and its Relu, and MatMul with Add."""
    rng, graph = np.random.default_rng(3), Graph()
    weight = lambda *shape: graph.const(rng.standard_normal(shape).astype(np.float32))  # noqa: E731
    x = graph.node("Relu", graph.node("Conv", graph.feed(np.ones((1, 16, 8, 8), np.float32)), weight(16, 16, 1, 1)))
    y = graph.node("Relu", graph.node("Conv", x, weight(16, 16, 3, 3), pads=[1, 1, 1, 1]))
    y = graph.node("Relu", graph.node("Add", graph.node("Conv", y, weight(16, 16, 1, 1)), x))
    y = graph.node("Flatten", graph.node("GlobalAveragePool", y))
    graph.output(graph.node("Add", graph.node("MatMul", y, weight(16, 4)), weight(4)))
    model, data, _ = model_of(graph)
    (profile,) = profiles(model, graph.feeds, data)
    groups = [e.group for e in profile.last.events if e.group]
    assert groups == [(0, 1), (2, 3), (4, 5, 6), (7,), (8,), (9, 10)]
    assert [model.nodes[e.index].op_type for e in profile.last.events if e.group] == [
        "Conv", "Conv", "Conv", "GlobalAveragePool", "Flatten", "MatMul",
    ]  # fmt: skip


def test_times_are_those_of_the_runs_asked_for() -> None:
    model, data, _ = model_of(graph := residual())
    (profile,) = profiles(model, graph.feeds, data, warmup=3)
    assert profile.node_ns.shape == (len(profile.last.events), 4)
    assert len(profile.run_ns) == len(profile.profiled_ns) == 4
    assert len(profile.warmup_ns) == 3
    assert (profile.node_ns.sum(0) <= np.array(profile.profiled_ns)).all(), (
        "whole runs with the profiler hold their nodes"
    )
    assert profile.run_ns != profile.profiled_ns
    starts = [e.start_ns for e in profile.last.events]
    assert starts == sorted(starts)
    assert starts[-1] + profile.last.events[-1].duration_ns <= profile.last.duration_ns


@pytest.mark.parametrize("form", FORMS)
def test_beside_qrun_every_node_is_in_one_group(form: str) -> None:
    model, feeds = digits(form)
    session = qrun.Session(model)
    mine, other = profiles(model, feeds, session=session)
    found = common_extents(model, mine.last.events, other.last.events)
    assert sorted(i for e in found for i in e.nodes) == [n.index for n in model.nodes]
    assert sorted(i for e in found for i in e.first) == list(range(len(mine.last.events)))
    assert sorted(i for e in found for i in e.second) == list(range(len(other.last.events)))
    both = [e for e in found if e.first and e.second]
    assert len(both) > 5, "they are not all one"
    convs = [n.index for n in model.nodes if "Conv" in n.op_type]
    assert all(any(c in e.nodes for e in both) for c in convs)
    assert max(sum(c in e.nodes for c in convs) for e in both) == 1


def test_multiply_adds_are_counted_once() -> None:
    model, data, _ = model_of(graph := residual())
    session = qrun.Session(model)
    known = multiply_adds(session.execute(graph.feeds))
    assert sum(known.values()) > 8 * 8 * 64 * 10
    (profile,) = profiles(model, graph.feeds, data, macs=known)
    assert sum(e.macs for e in profile.last.events) == sum(known.values())
    mine, other = profiles(model, graph.feeds, data, session=session)
    assert sum(e.macs for e in other.last.events) == sum(e.macs for e in mine.last.events)


def test_nothing_stays_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model, data, _ = model_of(graph := residual())
    with Profiler(model, data=data, threads=1) as profiler:
        assert [p.stat().st_mode & 0o077 for p in tmp_path.iterdir()] == [0]
        profiler.runner(graph.feeds).burst(1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnsupportedError):
        Profiler(model, data=_broken(), threads=1)
    assert list(tmp_path.iterdir()) == []


def _broken() -> bytes:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    return make_model([node], {"x": [1]}, {"y": [1]}).SerializeToString()


def test_weights_in_another_file(tmp_path: Path) -> None:
    graph = residual()
    onnx.save(graph.proto(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=16)
    model = load(tmp_path / "m.onnx")
    assert model.external_files
    (profile,) = profiles(model, graph.feeds)
    assert any(len(e.group) > 2 for e in profile.last.events)


def test_a_model_with_subgraphs_keeps_the_names_of_tensors() -> None:
    from qrun.peers.ortnodes import with_marks

    model, _, proto = model_of(residual())
    branch = helper.make_graph([helper.make_node("Identity", [model.nodes[0].outputs[0]], ["b"])], "b", [],
                               [helper.make_tensor_value_info("b", TensorProto.UINT8, None)])  # fmt: skip
    before = [list(n.output) for n in proto.graph.node]
    proto.graph.node.append(helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch))
    marked = with_marks(model, proto)
    assert [list(n.output) for n in marked.graph.node][:-1] == before
    assert [n.name for n in marked.graph.node[:2]] == ["qrun.0;", "qrun.1;"]


def test_nodes_inside_a_node_are_part_of_its_time() -> None:
    data = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3,4] x, int64 n, bool c) => (float[3,4] z) {
            y = Loop <body = b (int64 i, bool go, float[3,4] a) => (bool more, float[3,4] d) {
                more = Identity (go)
                s = Add (a, x)
                d = If (go) <then_branch = t () => (float[3,4] p) { p = Exp (s) },
                             else_branch = e () => (float[3,4] q) { q = Neg (s) }>
            }> (n, c, x)
            z = Softmax (y)
        }""").SerializeToString()
    model = load(data)
    feeds = {"x": np.full((3, 4), -2, np.float32), "n": np.array(3), "c": np.array(True)}
    (profile,) = profiles(model, feeds, data)
    assert [e.node.op_type for e in profile.last.events if e.node] == ["Loop", "Softmax"]
    assert [e.group for e in profile.last.events] == [(0,), (1,)]
    assert profile.node_ns.sum(0).max() <= max(profile.profiled_ns)


def test_functions_of_the_model() -> None:
    """Each call is the nodes of the function's body, as in the loaded model."""
    opset = helper.make_opsetid("", 21)
    body = [helper.make_node("Relu", ["p"], ["r"]), helper.make_node("Neg", ["r"], ["q"])]
    function = helper.make_function("d", "F", ["p"], ["q"], body, [opset])
    calls = [helper.make_node("F", [a], [b], domain="d") for a, b in ("xm", "my")]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph(calls, "g", value[:1], value[1:])
    opsets = [opset, helper.make_opsetid("d", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=[function]).SerializeToString()
    (profile,) = profiles(load(data), {"x": np.ones(4, np.float32)}, data)
    assert [e.group for e in profile.last.events] == [(0,), (1,), (2,), (3,)]


def test_an_operator_that_onnxruntime_takes_apart() -> None:
    """onnxruntime has no kernel for GroupNormalization-21: it runs the nodes of its body, which have no names."""
    graph = Graph(opset=21)
    ones = graph.const(np.ones(4, np.float32))
    x = graph.node("Relu", graph.feed(np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)))
    graph.output(graph.node("Neg", graph.node("GroupNormalization", x, ones, ones, num_groups=2)))
    model, data, _ = model_of(graph)
    (profile,) = profiles(model, graph.feeds, data)
    assert [e.group for e in profile.last.events if e.group in ((0,), (2,))] == [(0,), (2,)]
    body = [e for e in profile.last.events if e.group not in ((0,), (2,))]
    assert len(body) > 5
    assert {e.group for e in body} == {(1,)}
    assert all(e.node is not None and e.node.name for e in body)
    assert len({e.index for e in profile.last.events}) == len(profile.last.events)
    mine, other = profiles(model, graph.feeds, data, session=qrun.Session(model))
    found = common_extents(model, mine.last.events, other.last.events)
    assert [e.nodes for e in found] == [(0,), (1,), (2,)]


def test_an_input_that_does_not_fit_is_an_error_of_qrun() -> None:
    model, data, _ = model_of(graph := residual())
    name = next(iter(graph.feeds))
    with pytest.raises(QrunError):
        profiles(model, {name: np.zeros((1, 3, 2, 2), np.float32)}, data)
