"""QR408 dynamic-constant."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.ir import Model
from qrun.ir.types import shape_text
from qrun.rules._parameters import MS
from qrun.rules._rule import Finding, rule
from qrun.rules._scope import nodes

_OPERATORS = (("", "DynamicQuantizeLinear"), (MS, "DynamicQuantizeMatMul"))


@rule(
    "QR408",
    "dynamic-constant",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html",
    fix="store the quantized tensor with its scale and zero point",
    applies=("DynamicQuantizeLinear", "com.microsoft::DynamicQuantizeMatMul"),
)
def dynamic_constant(model: Model) -> Iterator[Finding]:
    """A stored tensor is quantized dynamically, at every run.

    Why is this bad?
        The scale is the same each time, so the work is wasted, and the float tensor is kept in the file. If the stored
        tensor is all 0 (or empty), the scale is 0, and the specification, its reference and onnxruntime disagree about
        the zero point of such a tensor.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[3] y, float s, uint8 z)
        <float[3] w = {0.5, -1.0, 2.0}>
        {
            y, s, z = DynamicQuantizeLinear(w)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[3] x) => (uint8[3] y, float s, uint8 z)
        {
            y, s, z = DynamicQuantizeLinear(x)
        }
    """
    for scope, node in nodes(model):
        if (node.domain, node.op_type) not in _OPERATORS or not node.inputs:
            continue
        name = node.inputs[0]
        value, home = scope.value(name), scope.home(name)
        if value is None or home is None or any(d.name == name for d in home.model.defaults):
            continue
        empty = ", all 0: its scale is 0" if value.dtype.kind == "f" and not value.any() else ""
        yield Finding(
            f"{node.op_type} of the stored tensor {name}{empty}",
            **scope.at(node),
            tensor=f"{name} (input 0)",
            expected="a tensor that depends on the inputs",
            got=f"a stored tensor {shape_text(value.shape)}{empty}",
            why=f"{node.op}-{node.version} takes scale and zero point from the values, which never change here.",
        )
