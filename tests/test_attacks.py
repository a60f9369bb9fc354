"""Small inputs that make a careless program compute for ever or fail with a traceback."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import onnx
import onnx.inliner
import pytest
from helpers.models import make_model
from helpers.support import MS, node_model, run_qrun
from onnx import TensorProto, helper

from qrun import Session
from qrun.errors import CallError, ModelError
from qrun.io.inline import parse, to_array
from qrun.io.randoms import random_feeds
from qrun.io.sizes import Sizes
from qrun.ir.load import load
from qrun.memory import Budget


def _calling(functions: list[onnx.FunctionProto], top: str) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(top, ["x"], ["y"], domain="f")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def _chain(name: str, op_type: str, calls: int, domain: str = "f") -> onnx.FunctionProto:
    tensors = ["x", *(f"t{i}" for i in range(calls - 1)), "y"]
    nodes = [helper.make_node(op_type, [a], [b], domain=domain) for a, b in zip(tensors, tensors[1:], strict=False)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["x"], ["y"], nodes, opsets)


def _tower(levels: int, calls: int) -> onnx.ModelProto:
    base = _chain("A0", "Relu", 1, "")
    return _calling([base, *(_chain(f"A{i}", f"A{i - 1}", calls) for i in range(1, levels))], f"A{levels - 1}")


def test_functions_that_multiply_are_refused_before_they_are_inlined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(onnx.inliner, "inline_local_functions")
    with pytest.raises(ModelError, match="too many nodes"):
        Session(_tower(12, 10))


def test_functions_that_multiply_a_little_run() -> None:
    assert Session(_tower(5, 3)).run({"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, 2]


def test_functions_that_call_each_other_are_named() -> None:
    with pytest.raises(ModelError, match="call each other recursively") as caught:
        Session(_calling([_chain("A", "B", 1), _chain("B", "A", 1)], "A"))
    assert {"A", "B"} <= set(dict(caught.value.facts)["functions"].split(", "))


def test_the_calls_in_a_long_chain_of_functions_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("qrun.ir.localfunctions")
    looks, real = [], module._key_of
    monkeypatch.setattr(module, "_key_of", lambda node: (looks.append(1), real(node))[1])
    with pytest.raises(ModelError, match="inlined"):
        Session(_tower(9_000, 1))
    assert 9_000 <= len(looks) <= 9_002


def _relu(shape: list[int] | None) -> onnx.ModelProto:
    return make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, "y", opset=17)


def test_random_data_for_more_axes_than_numpy_has_is_refused() -> None:
    model = load(_relu([1] * 65))
    with pytest.raises(CallError, match="65 dimensions"):
        random_feeds(model, model.inputs, {}, Sizes(), 0, Budget())


@pytest.mark.parametrize("depth", [65, 500, 900, 20_000])
def test_json_lists_nested_too_deep_are_refused(depth: int) -> None:
    model = load(_relu(None))
    text = "[" * depth + "1" + "]" * depth
    with pytest.raises(CallError, match="does not fit input 'x'"):
        to_array(model, model.inputs[0], parse(text), text)


def test_json_list_of_64_axes_is_read() -> None:
    model = load(_relu(None))
    text = "[" * 64 + "1" + "]" * 64
    assert to_array(model, model.inputs[0], parse(text), text).shape == (1,) * 64


def test_per_column_scale_of_stacked_matrices_is_one_dimensional() -> None:
    a = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    b = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    scale, zero = np.array([1, 2, 0.5], np.float32), np.array([0, 3, 9], np.uint8)
    inputs = [a, b, np.float32(2), scale, None, zero]
    (got,) = run_qrun(*node_model("MatMulIntegerToFloat", inputs, domain=MS, opset=17))
    want = (a.astype(np.int64) @ (b.astype(np.int64) - zero)) * (2 * scale)
    assert got.tolist() == want.tolist()
