"""ONNX's own backend tests, by ONNX's own runner, in qrun.backend: what the backend scoreboard runs.

One test runs the node cases of one operator, one more those of several nodes (the expanded bodies of function
operators), and one each the other categories of the runner.
"""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.node_cases import SEVERAL, cases
from onnx import TensorProto, helper
from onnx.backend.test import BackendTest

import qrun
import qrun.backend
from qrun.backend import EXCLUDED
from qrun.ir.schema import MS
from qrun.ops import operators

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = sorted({op_type for domain, op_type in operators() if domain != MS})
NODES = "OnnxBackendNodeModelTest"
OTHERS = {"Real": 9, "Simple": 21, "PyTorchConverted": 59, "PyTorchOperator": 24}
"""The runner's other categories, and the number of their models with operators of opset 7 and later."""


class Exact(BackendTest):
    """The runner, which forgives 0.1 % of an integer too: here integers are equal."""

    @classmethod
    def assert_similar_outputs(cls, ref_outputs: Any, outputs: Any, *tolerance: Any, **named: Any) -> None:
        super().assert_similar_outputs(ref_outputs, outputs, *tolerance, **named)
        for want, got in zip(ref_outputs, outputs, strict=True):
            if isinstance(got, np.ndarray) and got.dtype.kind in "biu":
                np.testing.assert_array_equal(got, want)


@cache
def runner_tests() -> Mapping[str, type[unittest.TestCase]]:
    """The runner's tests by category; those that qrun excludes must fail."""
    cases()  # imports them without their warnings
    runner = Exact(qrun.backend, __name__)
    for name in EXCLUDED:
        runner.xfail(name)
    return runner.test_cases


def run_tests(category: str, names: Iterable[str]) -> unittest.TestResult:
    """Run tests. Fails with what failed, and with what passed although qrun excludes it."""
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            runner_tests()[category](name).run(result)
    failed = [f"{test}\n{text}" for test, text in (*result.failures, *result.errors)]
    assert not failed, "\n".join(failed)
    assert not result.unexpectedSuccesses, f"remove from EXCLUDED: {result.unexpectedSuccesses}"
    return result


@pytest.mark.parametrize("op_type", [*OPERATORS, SEVERAL])
def test_node_cases(op_type: str) -> None:
    names = [f"{case.name}_cpu" for case in cases().get(op_type, ())]
    result = run_tests(NODES, names)
    assert len(result.expectedFailures) == len(EXCLUDED.keys() & set(names))
    assert not result.skipped


def test_every_case_is_of_an_operator() -> None:
    """So that `test_node_cases` runs them all."""
    assert cases().keys() <= {*OPERATORS, SEVERAL}
    names = {f"{case.name}_cpu" for group in cases().values() for case in group}
    assert len(names) > 1800
    assert set(EXCLUDED) <= names
    assert all(EXCLUDED.values())


@pytest.mark.parametrize("category", OTHERS)
def test_other_categories(category: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))
    name = f"OnnxBackend{category}ModelTest"
    found = [
        test for test in unittest.defaultTestLoader.getTestCaseNames(runner_tests()[name]) if test.endswith("_cpu")
    ]
    result = run_tests(name, found)
    assert result.testsRun - len(result.skipped) == OTHERS[category]


@pytest.mark.parametrize("wrong", [[2.1], [np.float64(2)], [[2.0]]])
def test_the_runner_sees_a_wrong_output(wrong: Sequence[Any]) -> None:
    """A value, a type, a shape."""
    right, got = [np.array([2], np.float32)], [np.asarray(wrong, getattr(wrong[0], "dtype", np.float32))]
    Exact.assert_similar_outputs(right, right, 1e-3, 1e-7)
    with pytest.raises(AssertionError):
        Exact.assert_similar_outputs(right, got, 1e-3, 1e-7)
    with pytest.raises(AssertionError):
        Exact.assert_similar_outputs([np.array([100000])], [np.array([100001])], 1e-3, 1e-7)


def test_the_page_runs_them(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", page, re.S)
    (tmp_path / "test_onnx.py").write_text(code, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "test_onnx.py", "-k", "qlinearconv or test_bernoulli_cpu"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert f"skips {len(EXCLUDED)} that" in page


def add_one() -> onnx.ModelProto:
    """y = x + b, where b = 1 has a default value."""
    b = onnx.numpy_helper.from_array(np.float32([1]), "b")
    x, y, also = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xyb")
    graph = helper.make_graph([helper.make_node("Add", ["x", "b"], ["y"])], "g", [x, also], [y], [b])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_inputs_by_place_or_by_name() -> None:
    made, two = qrun.backend.prepare(add_one(), backend="reference", rtol=0.1), np.float32([2])
    assert made.session.backend == "reference"
    for given in ([two], (two,), two, {"x": two}):
        assert made.run(given) == (3,)
    assert made.run({"x": two, "b": two}) == (4,)
    with pytest.raises(qrun.CallError, match="2 inputs for a model of 1"):
        made.run([two, two])


def test_one_node() -> None:
    a, b = np.uint8([1, 2]), np.uint8([3, 4])
    assert qrun.backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [a, b])[0].tolist() == [4, 6]
    assert qrun.backend.run_node(helper.make_node("Add", ["a", "a"], ["c"]), {"a": a})[0].tolist() == [2, 4]
    with pytest.raises(qrun.QrunError):  # Add-13 has no uint8
        qrun.backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [a, b], opset_version=13)
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], domain="com.microsoft")
    assert qrun.backend.run_node(node, [np.float32([1, 2]), np.float32(0.5)])[0].tolist() == [2, 4]


def test_what_is_compatible() -> None:
    model = add_one()
    assert qrun.backend.supports_device("CPU:0")
    assert not qrun.backend.supports_device("CUDA")
    assert qrun.backend.is_compatible(model)
    with pytest.raises(qrun.CallError, match="device 'CUDA' does not exist"):
        qrun.backend.prepare(model, "CUDA")
    model.graph.node[0].op_type = "Nothing"
    assert not qrun.backend.is_compatible(model)
