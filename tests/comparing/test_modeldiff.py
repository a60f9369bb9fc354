"""In what two quantized models differ as files: each planted change is named, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import ROOT, call, save
from onnx import helper, numpy_helper

import qrun
from qrun.comparing.modeldiff import StoredDifference, stored_differences
from qrun.report.comparefiles import files_block

DIGITS = ROOT / "models" / "digits"
QDQ = DIGITS / "qdq/model.onnx"


def change(model: onnx.ModelProto, name: str, function: Callable[[Any], Any]) -> None:
    stored = next(t for t in model.graph.initializer if t.name == name)
    old = numpy_helper.to_array(stored)
    stored.CopyFrom(numpy_helper.from_array(np.asarray(function(old.copy())).astype(old.dtype), name))


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.name == name)


def one_weight(w: np.ndarray) -> np.ndarray:
    w[3, 0, 0, 0] += 5
    return w


def halved_from(w: np.ndarray) -> np.ndarray:
    w[4:] *= 0.5
    w[7] *= 0.5
    return w


def padded(model: onnx.ModelProto) -> None:
    conv = node(model, "Conv_c1.raw")
    next(a for a in conv.attribute if a.name == "pads").CopyFrom(helper.make_attribute("pads", [0, 0, 2, 2]))


def rewired(model: onnx.ModelProto) -> None:
    node(model, "Add_sum").input[0] = node(model, "Add_sum").input[1]


def with_abs(model: onnx.ModelProto) -> None:
    """An Abs behind the first convolution makes the tensor that the convolution made."""
    conv = node(model, "Conv_c1.raw")
    conv.output[0] = "c1_before"
    model.graph.node.insert(
        list(model.graph.node).index(conv) + 1, helper.make_node("Abs", ["c1_before"], ["c1"], "abs")
    )


Planted = tuple[Callable[[onnx.ModelProto], None], tuple[str, str, str, str, str]]
CHANGES: dict[str, Planted] = {
    "scale": (lambda m: change(m, "c2_scale", lambda x: x / 2), ("scale", "c2_scale", "0.1131", "0.05656", "x 0.5")),
    "scales by one factor": (
        lambda m: change(m, "conv1.weight_scale", lambda x: x * 1.5),
        ("scale", "conv1.weight_scale", "", "", "all 16: x 1.5"),
    ),
    "scales of some channels": (
        lambda m: change(m, "conv1.weight_scale", halved_from),
        ("scale", "conv1.weight_scale", "", "", "12 of 16 differ, most at [7]"),
    ),
    "zero point": (lambda m: change(m, "c2_zero_point", lambda x: x + 3), ("zero point", "c2_zero_point", "", "", "+3")),
    "weight": (
        lambda m: change(m, "conv1.weight_quantized", one_weight),
        ("weight", "conv1.weight_quantized", "", "", "1 of 144 differ, most at [3,0,0,0]"),
    ),
    "attribute": (padded, ("attribute", "pads", "[1,1,1,1]", "[0,0,2,2]", "")),
    "input": (rewired, ("input", "A", "", "", "reads a different tensor")),
}  # fmt: skip


def changed(plant: Callable[[onnx.ModelProto], None]) -> list[StoredDifference]:
    model = onnx.load(QDQ)
    plant(model)
    return stored_differences(qrun.load(QDQ), qrun.load(model.SerializeToString()))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_nothing_else(name: str) -> None:
    plant, (kind, what, a, b, words) = CHANGES[name]
    found = changed(plant)
    assert len(found) == 1, found
    assert (found[0].kind, found[0].name, found[0].change) == (kind, what, words)
    assert (a or found[0].a, b or found[0].b) == (found[0].a, found[0].b)


def test_a_node_more() -> None:
    """A node that is put in makes the tensor that another one made."""
    found = changed(with_abs)
    assert [(d.kind, d.name, d.a, d.b) for d in found if d.kind == "node"] == [("node", "Abs", "-", "Abs")]
    assert ("c1 of Conv_c1.raw", "c1 of abs") in [(d.a, d.b) for d in found]


def test_another_operator() -> None:
    def largest(model: onnx.ModelProto) -> None:
        node(model, "AveragePool_mean").op_type = "MaxPool"

    found = changed(largest)
    assert [(d.kind, d.a, d.b, d.change) for d in found] == [("node", "AveragePool", "MaxPool", "different operator")]


def test_names_and_defaults_are_no_differences() -> None:
    def renamed(model: onnx.ModelProto) -> None:
        for each in model.graph.node:
            each.input[:] = [f"new {n}" if n == "c2_scale" else n for n in each.input]
        next(t for t in model.graph.initializer if t.name == "c2_scale").name = "new c2_scale"
        node(model, "Gemm_logits").attribute.append(helper.make_attribute("alpha", 1.0))

    assert not changed(renamed)
    assert not changed(lambda model: None)


def test_every_name_is_another() -> None:
    def renamed(model: onnx.ModelProto) -> None:
        for each in model.graph.node:
            each.name = f"{each.name} 2"
            each.input[:] = [f"{n} 2" if n else n for n in each.input]
            each.output[:] = [f"{n} 2" for n in each.output]
        for value in (*model.graph.initializer, *model.graph.input, *model.graph.output, *model.graph.value_info):
            value.name = f"{value.name} 2"
        change(model, "c2_scale 2", lambda x: x / 2)

    assert [(d.kind, d.name, d.change) for d in changed(renamed)] == [("scale", "c2_scale / c2_scale 2", "x 0.5")]


def test_the_report_begins_with_the_files(tmp_path: Path) -> None:
    model = onnx.load(QDQ)
    change(model, "c2_scale", lambda x: x / 2)
    change(model, "c1_zero_point", lambda x: x + 1)
    save(model, tmp_path / "other.onnx")
    ended = call("compare", QDQ, tmp_path / "other.onnx", "-i", DIGITS / "x.npy", "--top", "1")
    assert "What differs in the files: 1 scale, 1 zero point" in ended.out
    assert "… 1 more row: 1 zero point   --top all, --json" in ended.out
    assert ended.out.index("What differs in the files") < ended.out.index("Outputs")
    stored = json.loads(call("compare", QDQ, tmp_path / "other.onnx", "-i", DIGITS / "x.npy", "--json").out)["stored"]
    assert [(d["kind"], d["name"]) for d in stored] == [("scale", "c2_scale"), ("zero point", "c1_zero_point")]


def test_a_float_model_has_no_list() -> None:
    ended = call("compare", DIGITS / "float/model.onnx", QDQ, "-i", DIGITS / "x.npy")
    assert "in the files" not in ended.out


def test_nodes_of_one_operator_are_one_row() -> None:
    found = stored_differences(qrun.load(QDQ), qrun.load(DIGITS / "qoperator/model.onnx"))
    lone = sum(d.kind == "node" for d in found)
    block = files_block(found, None)
    assert block.grid is not None
    assert len(block.grid.rows) < len(found) - lone / 2
    assert f"{lone} nodes" in block.title
