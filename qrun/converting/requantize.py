"""Requantization by integer operators of ONNX: a model-local function for each arithmetic of `qrun.arithmetics` that
needs no floats, and the constants that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qrun.arithmetics.family import DERIVE, Arithmetic, Scales
from qrun.arithmetics.primitives import fixed_point, mantissa24
from qrun.ir import Array

DOMAIN = "qrun.requantize"
INPUTS = ("acc", "multiplier", "left", "half", "right", "raised", "zero", "low", "high")
"""Inputs of the functions: the int32 sums; then int64 numbers. `left` multiplies, `half` is added, `right` shifts,
`raised` is subtracted again after the shift; then zero point and limits of the result are added and applied."""
_RAISE = 62
"""Sums are raised by 2^62, above 0, because BitShift takes no negative numbers."""
_WORD = 31


def has_integer_form(family: Arithmetic) -> bool:
    """Whether integers alone compute an arithmetic, by one rounding or by gemmlowp's two."""
    return not family.hold.startswith("float") and family.steps in ("one", "high half")


def constants(family: Arithmetic, scales: Scales) -> Mapping[str, Array]:
    """The inputs `multiplier` to `raised` of a family's function for these scales, int64."""
    real = np.asarray(DERIVE[family.derive][1](scales), np.float64)
    if family.hold == "power of two":
        q, shift = np.ones(real.shape, np.int64), -np.rint(np.log2(real)).astype(np.int64)
    else:
        bits = int(family.hold.split()[0])
        q, shift = mantissa24(real) if bits == 24 else fixed_point(real, bits)
    q = np.where(shift > _RAISE - 1, 0, q)  # every product is below a half then
    if family.steps == "high half":
        left, right = np.maximum(_WORD - shift, 0), np.maximum(shift - _WORD, 0)
    else:
        left, right = np.maximum(-shift, 0), np.maximum(shift, 0)
    right = np.minimum(right, _RAISE - 1)
    one = np.int64(1)
    half = np.where(right > 0, one << np.maximum(right - 1, 0), 0)
    return {
        "multiplier": q,
        "left": one << np.minimum(left, _WORD),
        "half": np.asarray(half, np.int64),
        "right": right.astype(np.uint64),
        "raised": (one << _RAISE) >> right,
    }


def function(family: Arithmetic, opset: int) -> onnx.FunctionProto:
    """The function of a family: attribute ``to``, the element type of the codes; result: the codes."""
    body = _Body()
    acc = body.cast("acc", onnx.TensorProto.INT64)
    if family.steps == "high half":
        wide = body.op("Cast", body.op("Cast", body.op("Mul", acc, "left"), to=6), to=7)
        product = body.op("Add", body.op("Mul", wide, "multiplier"), body.number(1 << (_WORD - 1)))
        high = body.shift(product, body.number(_WORD, np.uint64), body.number(1 << (_RAISE - _WORD)))
        rounded = _TIES[family.ties](body, body.op("Min", high, body.number((1 << _WORD) - 1)))
    else:
        rounded = _TIES[family.ties](body, body.op("Mul", body.op("Mul", acc, "multiplier"), "left"))
    moved = body.op("Add", rounded, "zero")
    limited = body.op("Clip", moved, "low", "high")
    body.nodes.append(helper.make_node("Cast", [limited], ["codes"]))
    attribute = body.nodes[-1].attribute.add(name="to", ref_attr_name="to", type=onnx.AttributeProto.INT)
    assert attribute.ref_attr_name
    imports = [helper.make_opsetid("", opset)]
    return helper.make_function(DOMAIN, name_of(family), INPUTS, ["codes"], body.nodes, imports, attributes=["to"])


def name_of(family: Arithmetic) -> str:
    """The name of a family's function."""
    return family.name.replace("-", "_")


class _Body:
    """The nodes of a function."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def number(self, value: int, kind: type = np.int64) -> str:
        """Add a constant."""
        name = f"v{len(self.nodes)}"
        stored = onnx.numpy_helper.from_array(np.array(value, kind))
        self.nodes.append(helper.make_node("Constant", [], [name], value=stored))
        return name

    def cast(self, value: str, kind: int) -> str:
        """Add a Cast."""
        return self.op("Cast", value, to=kind)

    def shift(self, value: str, right: str = "right", raised: str = "raised") -> str:
        """value / 2^right rounded down, also below 0."""
        above = self.cast(self.op("Add", value, self.number(1 << _RAISE)), onnx.TensorProto.UINT64)
        shifted = self.cast(self.op("BitShift", above, right, direction="RIGHT"), onnx.TensorProto.INT64)
        return self.op("Sub", shifted, raised)

    def half_up(self, value: str) -> str:
        """Rounded to nearest, ties up."""
        return self.shift(self.op("Add", value, "half"))

    def half_down(self, value: str) -> str:
        """Rounded to nearest, ties down."""
        return self.op("Neg", self.half_up(self.op("Neg", value)))

    def signed(self, value: str, round_size: Callable[[str], str]) -> str:
        """The magnitude rounded, with the sign of the value."""
        return self.op("Mul", self.op("Sign", value), round_size(self.op("Abs", value)))

    def half_even(self, value: str) -> str:
        """Rounded to nearest, ties to even."""
        up, down = self.half_up(value), self.half_down(value)
        even = self.op("Equal", self.op("Mod", up, self.number(2)), self.number(0))
        return self.op("Where", even, up, down)


_TIES: Mapping[str, Callable[[_Body, str], str]] = {
    "even": _Body.half_even,
    "up": _Body.half_up,
    "down": _Body.half_down,
    "away": lambda body, value: body.signed(value, body.half_up),
    "zero": lambda body, value: body.signed(value, body.half_down),
    "floor": lambda body, value: body.shift(value),
    "cut": lambda body, value: body.signed(value, lambda size: body.shift(size)),
}
"""The rounding shift of each tie rule of `qrun.arithmetics.family.TIES`."""
