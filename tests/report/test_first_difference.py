"""What the block of the first difference says does not contradict itself, and says nothing twice."""

from __future__ import annotations

import io

import numpy as np
from helpers.comparing import Changed
from helpers.models import make_model
from helpers.mutator import MODELS
from helpers.support import MS, node_model
from onnx import helper

import qrun
from qrun.comparing.comparison import ComparedTensor, Comparison
from qrun.comparing.differences import Tolerance
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide
from qrun.declare.frozen import replace
from qrun.report.compare import comparison_sheet, verdict
from qrun.report.compare import first_facts as facts_of
from qrun.report.screen import Out, Screen
from qrun.report.sheet import print_sheet

f32, i32, u8, i8 = np.float32, np.int32, np.uint8, np.int8


def first_facts(found: Comparison) -> list[tuple[str, str]]:
    blocks = comparison_sheet(found, None).blocks
    return list(next(block.facts for block in blocks if block.title.startswith("First difference")))


def test_the_evidence_counts_the_elements_that_it_reproduces() -> None:
    """The bias that is left out moves one column by a step, which --lsb 1 allows, and one by twenty."""
    a, b = np.array([[103, 110], [96, 101]], u8), np.array([[1, -2], [3, 4]], i8)
    given = [a, f32(1), u8(100), b, f32(1), i8(0), np.array([4, 80], i32), f32(4), u8(90)]
    proto, feeds = node_model("QGemm", given, domain=MS, opset=17, outputs=(u8,))
    model = qrun.load(proto.SerializeToString())
    theirs = np.rint((a.astype(int) - 100) @ b.astype(int) / 4).clip(-90, 165).astype(int) + 90
    found = compare_runtimes(QrunSide(model), Changed(model, {"y0": theirs.astype(u8)}), feeds, Tolerance(lsb=1))
    facts = dict(first_facts(found))
    assert facts["differ"] == "2 of 4 elements beyond lsb 1, largest of these 20 steps"
    assert facts["different bits"] == "4 elements, largest 20 steps"
    assert facts["evidence"] == "4 of 4 elements with different bits reproduced bit for bit"


def test_numbers_that_stay_the_same_are_told_once() -> None:
    """What `b` reads differs in one bit, which changes none of the numbers that are shown."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    model = qrun.load(make_model(nodes, "x", "b").SerializeToString())
    bit = f32(2**-23)
    theirs = {"a": np.array([-1, -1 - bit], f32), "b": np.array([1.5, 1 + 2 * bit], f32)}
    found = compare_runtimes(QrunSide(model), Changed(model, theirs), {"x": np.ones(2, f32)}, Tolerance())
    facts = first_facts(found)
    assert dict(facts)["isolated"] == "fed the values of changed, it differs by the same amount"
    assert len({name for name, _ in facts}) == len(facts)


def test_nan_on_one_side_is_named_and_not_measured() -> None:
    model = qrun.load(make_model([helper.make_node("Neg", ["x"], ["y"])], "x", "y").SerializeToString())
    theirs = {"y": np.array([np.nan, -1 - 2**-23, -1], f32)}
    found = compare_runtimes(QrunSide(model), Changed(model, theirs), {"x": np.ones(3, f32)}, Tolerance())
    assert verdict(found).startswith("differ: first at node 0 with NaN on one side, ")
    facts = dict(first_facts(found))
    assert facts["differ"].endswith("largest of these NaN on one side")
    assert facts["different bits"] == "2 elements, largest finite difference 1.192e-07"
    tables = [block.grid for block in comparison_sheet(found, None).blocks if block.grid is not None]
    shown = [str(table) for table in tables if "max abs" in str(table)]
    assert len(shown) == 2
    assert all("NaN" in table and "1.192e-07" not in table for table in shown)


def test_titles_fit_the_width() -> None:
    """That of the table explains the brackets: `b` differs in two elements, in one of them by itself."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    model = qrun.load(make_model(nodes, "x", "b").SerializeToString())
    theirs = {"a": np.array([-1, -2], f32), "b": np.array([1.5, 2], f32)}
    found = compare_runtimes(QrunSide(model), Changed(model, theirs), {"x": np.ones(2, f32)}, Tolerance())
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    screen = Screen(stream, terminal=False, width=80, color=False)
    print_sheet(Out(screen, screen), comparison_sheet(found, None))
    stream.flush()
    lines = stream.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    assert "unknown (1)" in " ".join(lines)
    assert "(in brackets: elements whose difference is not inherited)" in " ".join(line.strip() for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_group_of_an_optimized_graph_is_said_to_be_compared_as_one() -> None:
    """onnxruntime's optimized graph has no tensor between the nodes of a group; an emulated one has them all."""
    model = qrun.load(MODELS / "digits" / "qdq" / "model.onnx")
    feeds = {"images": np.load(MODELS / "digits" / "x.npy")}
    found = compare_runtimes(QrunSide(model), QrunSide(model, fuse=True), feeds, Tolerance(rtol=0, atol=0))
    first = found.first
    assert first is not None
    assert first.guilt is not None
    assert len(first.unit.group) == 3
    assert not facts_of_group(found, first)
    optimized = replace(found, names=("qrun", "ort-optimized"))
    assert facts_of_group(optimized, first) == [
        "onnxruntime shows no tensor between these 3 nodes, so they are compared as one"
    ]
    for cause, said in (("pair-saturation", "compares them one by one"), ("unknown", "shows whether saturation")):
        reason = replace(first.guilt.reason, cause=cause)
        told = facts_of_group(optimized, replace(first, guilt=replace(first.guilt, reason=reason)))
        assert f"--emulate avx2 {said}" in told[0]


def facts_of_group(found: Comparison, tensor: ComparedTensor) -> list[str]:
    return [text for label, text in facts_of(found, tensor) if label == "group"]
