"""Nodes that run as one step are told with the time of all, on screens, in JSON and on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call
from helpers.native import ISAS, OBJECTS

import qrun
from qrun.documents.record import Item
from qrun.native.kernels import attention
from qrun.report.html.collect import page_of
from qrun.report.html.page import html

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
HEAD = '<ir_version: 9, opset_import: ["" : 20]>\n'
ATTENTION = """attention (float[1,2,40,32] a, float[1,2,32,40] b, float[1,40,2,32] c) => (float[1,2,40,32] y) <float half = {0.5}>
{ s = MatMul(a, b) t = Mul(s, half) p = Softmax<axis = -1>(t) d = Transpose<perm = [0, 2, 1, 3]>(c) y = MatMul(p, d) }"""
CHAIN = """chain (float[64] a, float[64] b) => (float[64] y, float[64] z)
{ s = Add(a, b) t = Div(s, b) u = Erf(t) v = Add(u, a) w = Mul(v, b) y = Sub(w, a) z = Floor(a) }"""


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "NEAR", 0)


def fed(text: str) -> tuple[Any, dict[str, Any]]:
    made = onnx.parser.parse_model(HEAD + text)
    for number, node in enumerate(made.graph.node):
        node.name = f"{node.op_type}_{number}"
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.input}
    return made, {name: rng.random(shape, np.float32) + 1 for name, shape in shapes.items()}


@pytest.mark.parametrize(("text", "steps"), [(ATTENTION, {4: (0, 1, 2, 4)}), (CHAIN, {5: (0, 1, 2, 3, 4, 5)})])
def test_the_node_that_has_the_time_tells_whose_it_is(text: str, steps: dict[int, tuple[int, ...]]) -> None:
    made, feeds = fed(text)
    session = qrun.Session(made, cache=OBJECTS, threads=1)
    result = session.profile(feeds, runs=3).last
    assert {event.index: event.step for event in result.events if event.step} == steps
    others = {index for doer, step in steps.items() for index in step if index != doer}
    assert [event.duration_ns for event in result.events if event.index in others] == [0] * len(others)


def saved(text: str) -> None:
    made, feeds = fed(text)
    onnx.save(made, "m.onnx")
    np.savez("x.npz", **feeds)


def test_a_screen_a_document_and_a_page_name_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(CHAIN)
    shown = call("profile", "m.onnx", "-i", "x.npz", "-n", "3", "--threads", "1").out
    assert "Add_0, Div_1, …, Sub_5" in shown
    assert "nodes listed together ran as one step; the time covers all of them" in shown
    document = json.loads(call("profile", "m.onnx", "-i", "x.npz", "-n", "3", "--threads", "1", "--json").out)
    assert [node.get("step") for node in document["nodes"]] == [None, None, None, None, None, [0, 1, 2, 3, 4, 5], None]
    page = html(page_of([("profile", Item(document, "p.json"))], [], "2026-01-01"))
    assert "Add_0, Div_1, …, Sub_5" in page
    assert "Nodes listed together ran as one step" in page


def test_a_run_names_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(ATTENTION)
    assert "MatMul_0, Mul_1, Softmax_2, MatMul_4" in call("run", "m.onnx", "-i", "x.npz").out
