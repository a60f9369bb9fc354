"""``qrun run --json`` prints what its schema says, which is shipped."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import call, conv_model, npy, quantize_model, save
from onnx import TensorProto, helper

SCHEMA = json.loads(files("qrun").joinpath("schemas/run-1.0.json").read_text())


def valid(document: dict[str, Any]) -> dict[str, Any]:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)
    return document


def rows(path: Path, *shape: int) -> None:
    """A model that returns an input of this shape."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("backend", ["native", "reference", "ort", "onnx-ref"])
def test_a_report(folder: Path, backend: str) -> None:
    save(conv_model(), folder / "m.onnx")
    found = valid(call("m.onnx", "--json", "--backend", backend).json)
    assert found["exit_code"] == 0
    save(quantize_model(), folder / "q.onnx")
    npy(folder / "x.npy", np.float32([np.nan, 1, np.inf]))
    valid(call("q.onnx", "-i", "x.npy", "--json", "--backend", backend).json)


def test_a_failure(folder: Path) -> None:
    assert valid(call("nothing.onnx", "--json").json)["exit_code"] == 2
    (folder / "m.onnx").write_bytes(b"")
    assert valid(call("m.onnx", "--json").json)["exit_code"] == 3


@pytest.mark.parametrize(("count", "left"), [(64, None), (65, 1), (200, 136)])
def test_it_says_how_many_rows_it_leaves_out(folder: Path, count: int, left: int | None) -> None:
    rows(folder / "m.onnx", count, 3)
    (output,) = valid(call("m.onnx", "--json").json)["outputs"]
    assert len(output["argmax_rows"]) == 64
    assert output.get("argmax_rows_left") == left


@pytest.mark.parametrize(
    "values", [[np.inf, 1, 2], [-np.inf, 1, 2], [np.nan] * 3, [np.inf, -np.inf, np.nan], [0, 1, 2]]
)
def test_infinities_are_texts_that_the_schema_allows(folder: Path, values: list[float]) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    npy(folder / "x.npy", np.float32(values))
    (output,) = valid(call("m.onnx", "-i", "x.npy", "--json").json)["outputs"]
    known = [value for value in values if not np.isnan(value)]
    assert (output["max"] == "inf") == (np.inf in values)
    assert (output["min"] == "-inf") == (-np.inf in values)
    assert (output["min"] is None) == (not known)
