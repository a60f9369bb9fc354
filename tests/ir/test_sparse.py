"""Sparse initializers and constants are read as the dense tensors that they stand for; hostile ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import assert_equal, run_ort, run_qrun
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.ir.load import load


def sparse(values: np.ndarray, indices: Any, dims: Sequence[int], name: str = "w") -> onnx.SparseTensorProto:
    places = numpy_helper.from_array(np.asarray(indices), "i")
    return helper.make_sparse_tensor(numpy_helper.from_array(values, name), places, list(dims))


def adding(tensor: onnx.SparseTensorProto, kind: int = TensorProto.FLOAT, constant: bool = False) -> onnx.ModelProto:
    """y = x + w, with w an initializer or the output of a Constant."""
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], "add")]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], "c", sparse_value=tensor))
    ends = [helper.make_tensor_value_info(name, kind, None) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], sparse_initializer=[] if constant else [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    return model


VALUES = np.float32([1.5, -2, 7])
PLACES: list[Any] = [[1, 5, 10], [[0, 1], [1, 1], [2, 2]], [10, 5, 1]]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("indices", PLACES)
def test_a_sparse_tensor_runs_as_onnxruntime_runs_it(indices: Any, constant: bool) -> None:
    model, feeds = adding(sparse(VALUES, indices, [3, 4]), constant=constant), {"x": np.ones((3, 4), np.float32)}
    want = np.ones(12, np.float32)
    order = VALUES if indices is not PLACES[2] else VALUES[::-1]
    want[[1, 5, 10]] += order
    made = run_qrun(model, feeds)[0]
    assert_equal(made, want.reshape(3, 4))
    assert_equal(made, run_ort(model, feeds)[0])


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.bool_, np.int64])
def test_other_types_and_no_values(dtype: Any) -> None:
    for count in (0, 2):
        tensor = sparse(np.ones(count, dtype), np.arange(count) + 1, [4])
        made = load(adding(tensor, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))).constants["w"]
        assert_equal(made, np.array([0, *[1] * count, *[0] * (3 - count)], dtype))
        assert not made.flags.writeable


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (sparse(VALUES, [1, 5, 12], [3, 4]), "indices from 0 to 11.*12"),
        (sparse(VALUES, [1, 5, -1], [3, 4]), "indices from 0 to 11.*-1"),
        (sparse(VALUES, [[0, 1], [1, 4], [2, 2]], [3, 4]), "indices from 0 to 3 along axis 1.*4"),
        (sparse(VALUES, [1, 5, 5], [3, 4]), "two for element \\[1,1\\]"),
        (sparse(VALUES, [1, 5], [3, 4]), "indices of shape \\[3\\] or \\[3,2\\].*\\[2\\]"),
        (sparse(VALUES, np.int32([1, 5, 6]), [3, 4]), "indices of int64.*int32"),
        (sparse(VALUES, [0, 1, 2], [0, 2**40]), "no indices"),
        (sparse(VALUES, [1, 5, 6], [-3, 4]), "dims of 0 or more"),
        (sparse(VALUES, [1, 5, 6], []), "1 to 64 dims"),
        (sparse(VALUES[None], [1, 5, 6], [3, 4]), "values of shape \\[NNZ\\]"),
        (onnx.SparseTensorProto(), "1 to 64 dims"),
        (sparse(VALUES, [1, 5, 6], [2**62, 2**62]), "QR010.*tensor w"),
        (sparse(VALUES, [1, 5, 6], [2**44]), "QR010.*free memory: the model needs 64.0 TiB for its weights alone"),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_a_hostile_sparse_tensor_is_refused(tensor: onnx.SparseTensorProto, words: str, constant: bool) -> None:
    with pytest.raises(qrun.QrunError, match="(?s)" + words):
        load(adding(tensor, constant=constant))


@pytest.mark.parametrize("rank", [2, 33, 64])
def test_indices_of_every_rank(rank: int) -> None:
    """Two elements, at both ends of the first and the last axis."""
    ends = np.int64([[0, *[0] * (rank - 2), 1], [1, *[0] * (rank - 2), 0]])
    made = load(adding(sparse(np.float32([3, 4]), ends, [2, *[1] * (rank - 2), 2]))).constants["w"]
    assert made.shape == (2, *[1] * (rank - 2), 2)
    assert made.reshape(-1).tolist() == [0, 3, 4, 0]
    with pytest.raises(qrun.QrunError, match=f"two for element \\[1,{'0,' * (rank - 2)}0\\]"[:30]):
        load(adding(sparse(np.float32([3, 4]), ends[[1, 1]], [2, *[1] * (rank - 2), 2])))


def test_an_initializer_is_dense_or_sparse() -> None:
    model = adding(sparse(VALUES, [1, 5, 6], [3, 4]))
    model.graph.initializer.append(numpy_helper.from_array(VALUES, "w"))
    with pytest.raises(qrun.QrunError, match="initializer 'w' is defined twice"):
        load(model)
