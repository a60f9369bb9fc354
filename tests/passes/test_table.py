"""The operator Table: looked up element by element; hidden, and out of reach for files."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.passes import codes
from onnx import helper

import qrun
from qrun.checking.rules import check
from qrun.errors import OperatorError, UnsupportedError
from qrun.ops import REGISTRY, find, near_operators

TABLE: Any = find("qrun", "Table", 1)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("out", [np.uint8, np.int8])
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3, 4, 5), (300, 3, 200)])
def test_one_table(dtype: Any, out: Any, shape: Any) -> None:
    x, table = codes(RNG, dtype, shape), codes(RNG, out, (256,))
    for view in (x, x[::-1] if shape else x, x.T):
        want = [table[int(v) % 256] for v in view.ravel()]
        got = TABLE(view, table)
        assert (got.dtype, got.shape, got.ravel().tolist()) == (out, view.shape, want)


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3, 4), 1), ((2, 3, 4), -1), ((3, 4), 0), ((4,), 0), ((0, 2), 1), ((900, 2, 99), 1)]
)
def test_one_table_for_each_channel(shape: Any, axis: int) -> None:
    x, table = codes(RNG, np.int8, shape), codes(RNG, np.uint8, (shape[axis], 256))
    got = TABLE(x, table, axis=axis)
    for c in range(shape[axis]):
        part = (slice(None),) * (axis % len(shape)) + (c,)
        np.testing.assert_array_equal(got[part], table[c][x[part].view(np.uint8)])


@pytest.mark.parametrize(
    ("shape", "table", "options", "param"),
    [
        ((2, 3), (255,), {}, "table"),
        ((2, 3), (3, 4, 256), {}, "table"),
        ((2, 3), (), {}, "table"),
        ((2, 3), (2, 256), {}, "x"),
        ((2, 3), (3, 256), {"axis": 2}, "axis"),
        ((), (1, 256), {"axis": 0}, "axis"),
        ((2, 3), (256,), {"input_dtype": 3}, "x"),
    ],
)
def test_refused(shape: Any, table: Any, options: Any, param: str) -> None:
    with pytest.raises(OperatorError) as error:
        TABLE(codes(RNG, np.uint8, shape), codes(RNG, np.uint8, table), **options)
    assert error.value.param == param


def test_it_is_listed_nowhere() -> None:
    assert ("qrun", "Table") not in REGISTRY
    assert "Table" not in near_operators("Tabel")


def foreign(domain: str, version: int) -> onnx.ModelProto:
    names = [helper.make_tensor_value_info(n, onnx.TensorProto.UINT8, [None]) for n in ("x", "t", "y")]
    node = helper.make_node("Table", ["x", "t"], ["y"], domain=domain, name="n")
    graph = helper.make_graph([node], "g", names[:2], names[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(domain, version)])


@pytest.mark.parametrize("version", [1, 2, 99])
def test_in_a_file_its_domain_is_as_unknown_as_another(version: int) -> None:
    for backend in ("reference", "native"):
        with pytest.raises(UnsupportedError) as error:
            qrun.Session(foreign("qrun", version), backend=backend)
        with pytest.raises(UnsupportedError) as other:
            qrun.Session(foreign("some.other", version), backend=backend)
        assert str(error.value) == str(other.value).replace("some.other", "qrun")
    findings = [f for f in check(qrun.load(foreign("qrun", version))) if f.rule == "QR201"]
    assert len(findings) == 1


def test_a_function_of_that_domain_is_the_files_own() -> None:
    model = foreign("qrun", 1)
    body = [helper.make_node("Add", ["a", "b"], ["c"])]
    model.functions.append(
        helper.make_function("qrun", "Table", ["a", "b"], ["c"], body, [helper.make_opsetid("", 21)])
    )
    x = np.array([1, 2], np.uint8)
    np.testing.assert_array_equal(qrun.Session(model, backend="reference").run({"x": x, "t": x})["y"], x + x)
