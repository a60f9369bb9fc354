"""Adapters read and write a runtime's bits: types that numpy lacks, types of less than a byte, and which NaN it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from qrun.conform.adapters import OpenVino, Ort
from qrun.conform.run import conform
from qrun.conform.runtimes import runtime
from qrun.conform.suite import Suite
from qrun.conform.tensors import EXTENDED, PACKED, Tensor, packed, packed_size, unpacked


def all_codes(number: int) -> Tensor:
    """Every code of a type, and one more so that bytes are not full."""
    bits = PACKED.get(number, 16 if number == 16 else 8)
    codes = np.append(np.arange(1 << bits), 1).astype(np.uint16 if bits == 16 else np.uint8)
    return Tensor(number, codes.shape, codes.tobytes())


def copy(number: int, count: int) -> bytes:
    """A model that returns its input."""
    ends = [make_tensor_value_info(name, number, [count]) for name in ("x", "y0")]
    graph = make_graph([make_node("Identity", ["x"], ["y0"])], "g", ends[:1], ends[1:])
    return bytes(make_model(graph, opset_imports=[make_opsetid("", 21)], ir_version=10).SerializeToString())


@pytest.mark.parametrize("number", [*EXTENDED])
def test_packed_elements_are_unpacked_as_they_were(number: int) -> None:
    given = all_codes(number)
    data = packed(given)
    assert len(data) == packed_size(number, given.shape)
    assert unpacked(number, given.shape, data) == given


def test_elements_are_packed_as_onnx_packs_them() -> None:
    for number in (21, 22):
        codes = np.array([1, 2, 13], np.uint8)
        want = onnx.numpy_helper.from_array(codes.view(Tensor(number, (3,), codes.tobytes()).numpy().dtype))
        assert packed(Tensor(number, (3,), codes.tobytes())) == want.raw_data


@pytest.mark.parametrize("number", [16, 17, 18, 19, 20])
def test_onnxruntime_returns_the_bits_it_was_given(number: int) -> None:
    pytest.importorskip("onnxruntime")
    runs, given = Ort(), all_codes(number)
    runs.version()
    for tensor in (given, Tensor(number, (0,), b"")):
        made = runs.run(copy(number, tensor.shape[0]), {"x": tensor}, {"y0": (number, tensor.shape)}, "")
        assert made == [tensor]


@pytest.mark.parametrize("number", [16, 17, 19, 21, 22, 24])
def test_openvino_returns_the_bits_it_was_given(number: int) -> None:
    pytest.importorskip("openvino")
    runs, given = OpenVino(), all_codes(number)
    runs.version()
    made = runs.run(copy(number, given.shape[0]), {"x": given}, {"y0": (number, given.shape)}, "")
    assert made == [given]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ort", "quantizelinear-21/narrow/float8e5m2fnuz,quantizelinear-21/narrow/int4,quantizelinear-21/narrow/uint4"),
        ("ort", "dequantizelinear-21/narrow/float8,dequantizelinear-21/narrow/int4-odd-count"),
        ("openvino", "quantizelinear-21/narrow/float8e4m3fn-scaled,dequantizelinear-21/narrow/int4-odd-count"),
        ("openvino", "dequantizelinear-21/narrow/float8e5m2,dequantizelinear-21/narrow/float8e4m3fn-"),
    ],
)
def test_answers_in_narrow_types_are_read_right(name: str, words: str) -> None:
    pytest.importorskip({"ort": "onnxruntime"}.get(name, name))
    suite = Suite()
    found = conform(suite, suite.select([words]), runtime(name))
    assert found.counts["exact"] >= 2
    assert {case.id: case.verdict for case in found.cases if case.verdict in ("wrong", "refused")} == {}
