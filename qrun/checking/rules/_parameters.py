"""Which inputs of which operator are scales, zero points and biases, of which tensor, and in which forms they may come.

One table for all rules. Sources: ONNX operators, numerics of each page; onnxruntime ContribOperators for com.microsoft.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast

from qrun.ir import Node

Form = Literal["tensor", "channel", "row", "column", "gemm", "axis"]
"""tensor: one value. channel: one, or one for each index of the tensor's first axis (output channels of a weight).
row, column: one, or one for each row or column of a matrix. gemm: as column, of a matrix that transB may turn.
axis: by the node's axis and block_size."""

MS = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or output of a node: the specification's name, its place, and the tensor there."""

    name: str
    place: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Scale and zero point of one tensor of a node, those that are given. is_output: the tensor is an output."""

    tensor: Slot
    scale: Slot | None
    zero_point: Slot | None
    form: Form
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Bias:
    """The bias of a node, the weight it belongs to, and how many elements it has: the weight's size along `form`."""

    bias: Slot
    weight: Slot
    form: Form
    integer: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs by the specification's names; per quantized tensor ``tensor scale zero_point form``, ``-`` for none;
    bias: ``bias weight form``; repeat: names of input groups that repeat after the others."""

    inputs: str
    quantized: tuple[str, ...]
    bias: str = ""
    repeat: str = ""
    float_bias: bool = False


def _unary(x: str = "X", x_scale: str = "X_scale", x_zero: str = "X_zero_point", y: str = "Y") -> Signature:
    outs = f"{y}_scale {y}_zero_point"
    return Signature(f"{x} {x_scale} {x_zero} {outs}", (f"{x} {x_scale} {x_zero} tensor", f"> {outs} tensor"))


_CONV = Signature(
    "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B",
    ("x x_scale x_zero_point tensor", "w w_scale w_zero_point channel", "> y_scale y_zero_point tensor"),
    bias="B w channel",
)
_QUANTIZE = Signature("x y_scale y_zero_point", ("> y_scale y_zero_point axis",))
_DEQUANTIZE = Signature("x x_scale x_zero_point", ("x x_scale x_zero_point axis",))
_BINARY = Signature(
    "A A_scale A_zero_point B B_scale B_zero_point C_scale C_zero_point",
    ("A A_scale A_zero_point tensor", "B B_scale B_zero_point tensor", "> C_scale C_zero_point tensor"),
)
_POOL = _unary(x_scale="x_scale", x_zero="x_zero_point", y="y")

TABLE: dict[tuple[str, str], Signature] = {
    ("", "QLinearConv"): _CONV,
    (MS, "QLinearConv"): _CONV,
    ("", "ConvInteger"): Signature(
        "x w x_zero_point w_zero_point", ("x - x_zero_point tensor", "w - w_zero_point channel")
    ),
    ("", "QLinearMatMul"): Signature(
        "a a_scale a_zero_point b b_scale b_zero_point y_scale y_zero_point",
        ("a a_scale a_zero_point row", "b b_scale b_zero_point column", "> y_scale y_zero_point tensor"),
    ),
    ("", "MatMulInteger"): Signature(
        "A B a_zero_point b_zero_point", ("A - a_zero_point row", "B - b_zero_point column")
    ),
    ("", "QuantizeLinear"): _QUANTIZE,
    (MS, "QuantizeLinear"): _QUANTIZE,
    ("", "DequantizeLinear"): _DEQUANTIZE,
    (MS, "DequantizeLinear"): _DEQUANTIZE,
    (MS, "QLinearAdd"): _BINARY,
    (MS, "QLinearMul"): _BINARY,
    (MS, "QGemm"): Signature(
        "A a_scale a_zero_point B b_scale b_zero_point C y_scale y_zero_point",
        ("A a_scale a_zero_point tensor", "B b_scale b_zero_point gemm", "> y_scale y_zero_point tensor"),
        bias="C B gemm",
    ),
    (MS, "QLinearConcat"): Signature(
        "Y_scale Y_zero_point", ("> Y_scale Y_zero_point tensor",), repeat="tensor scale zero_point"
    ),
    (MS, "QLinearAveragePool"): _POOL,
    (MS, "QLinearGlobalAveragePool"): _POOL,
    (MS, "QLinearSigmoid"): _unary(),
    (MS, "QLinearLeakyRelu"): _unary(),
    (MS, "QLinearSoftmax"): _unary(x_zero="x_zero_point", y="y"),
    (MS, "QLinearReduceMean"): _unary("data", "data_scale", "data_zero_point", "reduced"),
    (MS, "QLinearWhere"): Signature(
        "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point",
        ("X x_scale x_zero_point tensor", "Y y_scale y_zero_point tensor", "> z_scale z_zero_point tensor"),
    ),
    (MS, "MatMulIntegerToFloat"): Signature(
        "A B a_scale b_scale a_zero_point b_zero_point bias",
        ("A a_scale a_zero_point tensor", "B b_scale b_zero_point column"),
        bias="bias B column",
        float_bias=True,
    ),
    (MS, "DynamicQuantizeMatMul"): Signature(
        "A B b_scale b_zero_point bias", ("B b_scale b_zero_point column",), bias="bias B column", float_bias=True
    ),
    ("", "Conv"): Signature("X W B", (), bias="B W channel", float_bias=True),
}


def operators(*forms: Form) -> tuple[str, ...]:
    """Operators with scales or zero points (of these forms), as users write them."""
    found = [
        f"{domain}::{op_type}" if domain else op_type
        for (domain, op_type), signature in TABLE.items()
        if any(not forms or row.split()[-1] in forms for row in signature.quantized)
    ]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Places:
    """A Signature with places instead of names; -1 for none, and for a tensor that is the output."""

    names: tuple[str, ...]
    group: tuple[str, ...]
    quantized: tuple[tuple[int, int, int, Form], ...]
    bias: tuple[int, int, Form] | None
    integer_bias: bool


@cache
def _places(domain: str, op_type: str) -> _Places | None:
    signature = TABLE.get((domain, op_type))
    if signature is None:
        return None
    names = signature.inputs.split()

    def at(name: str) -> int:
        return names.index(name) if name in names else -1

    rows = ((at(row[0]), at(row[-3]), at(row[-2]), cast(Form, row[-1])) for row in map(str.split, signature.quantized))
    bias = signature.bias.split()
    place = (at(bias[0]), at(bias[1]), cast(Form, bias[2])) if bias else None
    return _Places(tuple(names), tuple(signature.repeat.split()), tuple(rows), place, not signature.float_bias)


def input_name(node: Node, place: int) -> str:
    """The specification's name of an input of an operator in the table, else ``input N``."""
    known = _places(node.domain, node.op_type)
    if known is None:
        return f"input {place}"
    if place < len(known.names):
        return known.names[place]
    number, which = divmod(place - len(known.names), len(known.group) or 1)
    return f"{known.group[which]}[{number}]" if known.group else str(place)


def quantizers(node: Node) -> Iterator[Quantizer]:
    """The scales and zero points of a node, each with its tensor."""
    known = _places(node.domain, node.op_type)
    if known is None:
        return
    for tensor, scale, zero_point, form in known.quantized:
        owner = _output(node) if tensor < 0 else _slot(node, known, tensor)
        if owner:
            yield Quantizer(owner, _slot(node, known, scale), _slot(node, known, zero_point), form, tensor < 0)
    if known.group:
        step = len(known.group)
        for start in range(len(known.names), len(node.inputs) - step + 1, step):
            slots = [Slot(input_name(node, p), p, node.inputs[p]) for p in range(start, start + step)]
            yield Quantizer(slots[0], slots[1], slots[2] if slots[2].tensor else None, "tensor")


def bias(node: Node) -> Bias | None:
    """The bias of a node, if its operator has one and it is given."""
    known = _places(node.domain, node.op_type)
    if known is None or known.bias is None:
        return None
    place, weight, form = known.bias
    slot, owner = _slot(node, known, place), _slot(node, known, weight)
    return Bias(slot, owner, form, known.integer_bias) if slot and owner else None


def _output(node: Node) -> Slot | None:
    return Slot("output", 0, node.outputs[0]) if node.outputs else None


def _slot(node: Node, known: _Places, place: int) -> Slot | None:
    if not 0 <= place < len(node.inputs) or not node.inputs[place]:
        return None
    return Slot(known.names[place], place, node.inputs[place])
