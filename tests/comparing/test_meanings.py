"""Codes against the real numbers of another model: by the scale of the node that made them,
or of one that reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.comparing import sheet_text
from helpers.models import make_model
from onnx import TensorProto, helper

import qrun
from qrun.comparing.accuracy import Accuracy, accuracy
from qrun.comparing.differences import Tolerance
from qrun.comparing.meanings import meaning
from qrun.report.accuracy import accuracy_fields, accuracy_sheet

f32, u8, i8 = np.float32, np.uint8, np.int8
W = np.random.default_rng(3).normal(0, 0.5, (8, 4)).astype(f32)
STEP = f32(np.abs(W).max() / 127)
STORED: dict[str, Any] = {
    "w": W, "codes": np.rint(W / STEP).astype(i8), "ws": np.array(STEP), "wz": np.array(0, i8), "xs": np.array(1 / 40, f32),
    "xz": np.array(128, u8), "ys": np.array(0.03, f32), "yz": np.array(128, u8), "shape": np.array([4, 2]),
    "columns": np.array([0.03, 0.02, 0.02, 0.03], f32), "column_zeros": np.array([128, 100, 128, 110], u8),
}  # fmt: skip
node = helper.make_node
QUANTIZE = node("QuantizeLinear", ["x", "xs", "xz"], ["xq"])
PRODUCT = node("QLinearMatMul", ["xq", "xs", "xz", "codes", "ws", "wz", "ys", "yz"], ["e1_quantized"])
TURN = node("Reshape", ["e1", "shape"], ["y"])


def model(
    nodes: Sequence[onnx.NodeProto], output: str, kind: int = TensorProto.UINT8, shape: tuple[int, ...] = (2, 4)
) -> onnx.ModelProto:
    read = {name for one in nodes for name in one.input}
    made = make_model(nodes, {"x": [2, 8]}, {}, {n: v for n, v in STORED.items() if n in read}, 21)
    made.graph.output.append(helper.make_tensor_value_info(output, kind, shape))
    return made


FLOAT = model([node("MatMul", ["x", "w"], ["e1"])], "e1", TensorProto.FLOAT)
FEEDS = [{"x": np.random.default_rng(5).normal(0, 1, (2, 8)).astype(f32)}]
FORMS: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "made by a product": ([QUANTIZE, PRODUCT], "e1_quantized"),
    "made by QuantizeLinear": (
        [node("MatMul", ["x", "w"], ["e"]), node("QuantizeLinear", ["e", "ys", "yz"], ["q"])],
        "q",
    ),
    "made with a scale per column": (
        [node("MatMul", ["x", "w"], ["e"]), node("QuantizeLinear", ["e", "columns", "column_zeros"], ["q"], axis=1)],
        "q",
    ),
    "made from its own range": (
        [node("MatMul", ["x", "w"], ["e"]), node("DynamicQuantizeLinear", ["e"], ["q", "s", "z"])],
        "q",
    ),
    "read by DequantizeLinear": (
        [
            QUANTIZE,
            node("MatMul", ["x", "w"], ["e"]),
            node("Div", ["e", "ys"], ["steps"]),
            node("Round", ["steps"], ["whole"]),
            node("Cast", ["yz"], ["zf"], to=TensorProto.FLOAT),
            node("Add", ["whole", "zf"], ["shifted"]),
            node("Cast", ["shifted"], ["q"], to=TensorProto.UINT8),
            node("DequantizeLinear", ["q", "ys", "yz"], ["ignored"]),
        ],
        "q",
    ),
}


def compared(first: onnx.ModelProto, second: onnx.ModelProto) -> Accuracy:
    return accuracy(qrun.load(first), qrun.load(second), FEEDS)


def text(found: Accuracy) -> str:
    return sheet_text(accuracy_sheet(found, None), 110)


@pytest.mark.parametrize("form", FORMS)
def test_an_output_of_codes_is_compared_by_what_it_stands_for(form: str) -> None:
    (output,) = compared(FLOAT, model(*FORMS[form])).outputs
    assert 25 < output.noise.sqnr < 60
    assert output.noise.largest < 0.1
    assert output.counted


@pytest.mark.parametrize("form", FORMS)
def test_the_other_way_round(form: str) -> None:
    (output,) = compared(model(*FORMS[form]), FLOAT).outputs
    assert 25 < output.noise.sqnr < 60


def test_steps_of_codes_count() -> None:
    quantized = [node("MatMul", ["x", "w"], ["e"]), node("QuantizeLinear", ["e", "ys", "yz"], ["q"])]
    for lsb, equal in ((0, False), (1, True)):
        found = accuracy(
            qrun.load(FLOAT), qrun.load(model(quantized, "q")), FEEDS,
            tolerance=Tolerance(lsb),
        )  # fmt: skip
        assert found.equal is equal


def test_two_models_with_codes_of_other_scales() -> None:
    finer = [QUANTIZE, node("QLinearMatMul", [*PRODUCT.input[:6], "xs", "xz"], ["e1_quantized"])]
    both = [model(nodes, "e1_quantized") for nodes in ([QUANTIZE, PRODUCT], finer)]
    one, other = (qrun.Session(qrun.load(m)).run(FEEDS[0])["e1_quantized"].astype(float) - 128 for m in both)
    want, got = one * f32(0.03), other * f32(1 / 40)
    (output,) = compared(*both).outputs
    assert output.noise.sqnr == pytest.approx(10 * np.log10((want**2).sum() / ((got - want) ** 2).sum()), abs=1e-3)
    assert compared(both[1], both[1]).equal


def test_codes_that_nothing_explains_have_no_decibels() -> None:
    sums = [QUANTIZE, node("MatMulInteger", ["xq", "codes", "xz", "wz"], ["sums"])]
    found = compared(FLOAT, model(sums, "sums", TensorProto.INT32))
    (output,) = found.outputs
    assert output.codes
    assert np.isnan(output.noise.sqnr)
    assert output.noise.count == 0
    assert not found.equal
    assert found.departure is None
    assert re.search(r"e1 / sums \W*codes", text(found))
    assert "differ: e1 holds codes" in text(found)
    (fields,) = accuracy_fields(found)["outputs"]
    assert fields["codes"] is True
    assert [t.codes for t in found.tensors if t.tensor == "sums"] == [True]


def test_codes_that_were_moved() -> None:
    moved = [QUANTIZE, PRODUCT, node("Reshape", ["e1_quantized", "shape"], ["q"])]
    plain = model([*FLOAT.graph.node, TURN], "y", TensorProto.FLOAT, (4, 2))
    (output,) = compared(plain, model(moved, "q", shape=(4, 2))).outputs
    assert 25 < output.noise.sqnr < 60


def test_the_reader_of_a_concatenation() -> None:
    nodes = [
        QUANTIZE,
        node("QLinearConcat", ["ys", "yz", "xq", "xs", "xz", "k", "ws", "wz"], ["q"], domain="com.microsoft"),
    ]
    found = qrun.load(make_model(nodes, {"x": [2, 8]}, {"q": None}, {**STORED, "k": np.zeros((2, 8), u8)}))
    assert meaning(found, "k") is not None
    assert meaning(found, "k").names == ("ws", "wz")  # type: ignore[union-attr]
    assert meaning(found, "q").names == ("ys", "yz")  # type: ignore[union-attr]
    assert meaning(found, "x") is None
