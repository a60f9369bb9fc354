"""Scales, zero points and biases as they follow from the declarations, against the specifications,
written out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrun import ops
from qrun.ir import Array, Attribute, Node
from qrun.ir.schema import MS, QUARK, VAI
from qrun.ops import REGISTRY, OpDef, bias, facts, parameter_axis, quantized_operators, quantizers, real_operator
from qrun.ops._op import Real
from qrun.ops._quantized import quantized_index

_CONV = (
    "x x_scale x_zero_point tensor, w w_scale w_zero_point channel, output y_scale y_zero_point tensor",
    "B w channel int",
)
_BINARY = ("A A_scale A_zero_point tensor, B B_scale B_zero_point tensor, output C_scale C_zero_point tensor", "")
_POOL = ("X x_scale x_zero_point tensor, output y_scale y_zero_point tensor", "")
_UNARY = ("X X_scale X_zero_point tensor, output Y_scale Y_zero_point tensor", "")
_QUANTIZE, _DEQUANTIZE = ("output y_scale y_zero_point axis", ""), ("x x_scale x_zero_point axis", "")
WANTED = {
    ("", "QLinearConv"): _CONV,
    (MS, "QLinearConv"): _CONV,
    ("", "ConvInteger"): ("x - x_zero_point tensor, w - w_zero_point channel", ""),
    ("", "QLinearMatMul"): (
        "a a_scale a_zero_point row, b b_scale b_zero_point column, output y_scale y_zero_point tensor", ""),
    ("", "MatMulInteger"): ("A - a_zero_point row, B - b_zero_point column", ""),
    ("", "QuantizeLinear"): _QUANTIZE,
    (MS, "QuantizeLinear"): _QUANTIZE,
    ("", "DequantizeLinear"): _DEQUANTIZE,
    (MS, "DequantizeLinear"): _DEQUANTIZE,
    (QUARK, "ExtendedQuantizeLinear"): _QUANTIZE,
    (QUARK, "ExtendedDequantizeLinear"): _DEQUANTIZE,
    (VAI, "VitisQuantizeLinear"): _QUANTIZE,
    (VAI, "VitisDequantizeLinear"): _DEQUANTIZE,
    (MS, "QLinearAdd"): _BINARY,
    (MS, "QLinearMul"): _BINARY,
    (MS, "QGemm"): (
        "A a_scale a_zero_point tensor, B b_scale b_zero_point gemm, output y_scale y_zero_point tensor", "C B gemm int"),
    (MS, "QLinearConcat"): (
        "output Y_scale Y_zero_point tensor, tensor[0] scale[0] zero_point[0] tensor, tensor[1] scale[1] zero_point[1] tensor",
        ""),
    (MS, "QLinearAveragePool"): _POOL,
    (MS, "QLinearGlobalAveragePool"): _POOL,
    (MS, "QLinearSigmoid"): _UNARY,
    (MS, "QLinearLeakyRelu"): _UNARY,
    (MS, "QLinearSoftmax"): ("X X_scale x_zero_point tensor, output y_scale y_zero_point tensor", ""),
    (MS, "QLinearReduceMean"): (
        "data data_scale data_zero_point tensor, output reduced_scale reduced_zero_point tensor", ""),
    (MS, "QLinearWhere"): (
        "X x_scale x_zero_point tensor, Y y_scale y_zero_point tensor, output z_scale z_zero_point tensor", ""),
    (MS, "MatMulIntegerToFloat"): (
        "A a_scale a_zero_point tensor, B b_scale b_zero_point column", "bias B column float"),
    (MS, "DynamicQuantizeMatMul"): ("B b_scale b_zero_point column", "bias B column float"),
    ("", "Conv"): ("", "B W channel float"),
}  # fmt: skip


@pytest.mark.parametrize(("domain", "op_type"), WANTED)
def test_parameters(domain: str, op_type: str) -> None:
    known = facts(domain, op_type)
    assert known is not None
    inputs = tuple(f"t{place}" for place in range(len(known.names) + 6 * known.repeats))
    node = Node(0, "n", domain, op_type, 1, inputs, ("output",), {})
    found, b = list(quantizers(node)), bias(node)
    rows = [" ".join([*(s.name if s else "-" for s in (q.tensor, q.scale, q.zero_point)), q.form]) for q in found]
    told = f"{b.bias.name} {b.weight.name} {b.form} {'int' if b.integer else 'float'}" if b else ""
    assert (", ".join(rows), told) == WANTED[domain, op_type]
    slots = [slot for q in found for slot in (q.tensor, q.scale, q.zero_point) if slot and slot.name != "output"]
    assert all(slot.tensor == f"t{slot.place}" for slot in slots)


def test_no_other_operator_has_any() -> None:
    assert {key for key in REGISTRY if facts(*key)} <= set(WANTED)
    assert {*quantized_operators(), ("", "Conv")} == set(WANTED)
    per_channel = {key for key, (rows, _) in WANTED.items() if "channel" in rows}
    assert set(quantized_operators("channel")) == per_channel


def test_the_index_is_what_the_declarations_say() -> None:
    """If not: python scripts/make_quantized.py."""
    kept = Path(ops.__file__).with_name("quantized.txt").read_text("ascii")
    assert kept == quantized_index()
    assert "com.microsoft::QGemm gemm tensor" in kept.splitlines()


@pytest.mark.parametrize(("turned", "axis"), [(0, 1), (1, 0)])
def test_the_axis_of_the_columns_of_a_turned_matrix(turned: int, axis: int) -> None:
    node = Node(0, "n", MS, "QGemm", 1, tuple("abcdefghi"), ("y",), {"transB": turned})
    assert [parameter_axis(node, q.form) for q in quantizers(node) if q.form == "gemm"] == [axis]


def test_the_real_operator_has_the_attributes_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """ReduceMean has axes as an attribute until version 18, then as an input."""

    def kernel(
        data: Array, data_scale: Array, data_zero_point: Array, y_scale: Array, *, axes: tuple[int, ...] = ()
    ) -> None: ...

    trial = OpDef(MS, "QLinearTrial", 1, kernel, {}, lambda *_: 0, "", Real("ReduceMean"))
    monkeypatch.setitem(REGISTRY.declared, (MS, "QLinearTrial"), [trial])
    attributes: list[dict[str, Attribute]] = [{"axes": (1,)}, {}, {"unheard": 1}]
    nodes = [Node(0, "n", MS, "QLinearTrial", 1, ("x", "s", "z", "t"), ("y",), given) for given in attributes]
    found = [real_operator(node) for node in nodes]
    assert [definition and definition.since for definition in found] == [1, 18, None]
