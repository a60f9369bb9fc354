"""QR408 dynamic-constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from qrun.checking.rules._observed import tensors
from qrun.checking.rules._parameters import MS
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes
from qrun.ir import Array, Model, Node
from qrun.ir.types import shape_text

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
def dynamic_constant(model: Model, feeds: Mapping[str, Array] | None = None) -> Iterator[Finding]:
    """A constant tensor is quantized dynamically: a stored one, or one whose elements are all equal.

    The second is seen with recorded vectors, with the inputs of the first one.

    Why is this bad?
        The scale of a stored tensor is the same each time, so the work is wasted, and the float tensor is kept in the
        file. A tensor of equal elements says nothing about the range that others have. If all are 0 (or there are
        none, or their range / 255 underflows in float32), the scale is 0: the specification divides by it, its reference
        and onnxruntime each put another one in its place.

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
    changing = []
    for scope, node in nodes(model, _OPERATORS):
        if not node.inputs:
            continue
        name = node.inputs[0]
        value, home = scope.value(name), scope.home(name)
        if value is not None and home is not None and name not in home.model.fed:
            yield _stored(scope, node, value)
        elif scope.outer is None:
            changing.append((scope, node))
    seen = tensors(model, feeds, [node.inputs[0] for _, node in changing]) if feeds is not None and changing else {}
    for scope, node in changing:
        met = seen.get(node.inputs[0])
        if met is not None and met.size > 1 and met.min() == met.max():
            yield _flat(scope, node, met)


def _stored(scope: Scope, node: Node, value: Array) -> Finding:
    empty = f"{_size(value)}: its scale is 0" if value.dtype.kind == "f" and _vanishes(value) else ""
    return Finding(
        f"{node.op_type} of the stored tensor {node.inputs[0]}{empty}",
        **scope.at(node),
        tensor=f"{node.inputs[0]} (input 0)",
        expected="a tensor that depends on the inputs",
        got=f"a stored tensor {shape_text(value.shape)}{empty}",
        why=f"{node.op}-{node.version} takes scale and zero point from the values, which never change here.",
    )


def _size(value: Array) -> str:
    return ", all 0" if not value.any() else ", whose range / 255 underflows"


def _vanishes(value: Array) -> bool:
    """Whether the range of the values and 0, divided by 255 in float32, is 0."""
    with np.errstate(all="ignore"):
        ends = np.float32(max(0, value.max(initial=0))), np.float32(min(0, value.min(initial=0)))
        return not (ends[0] - ends[1]) / np.float32(255)


def _flat(scope: Scope, node: Node, value: Array) -> Finding:
    zero = ": its scale is 0" if _vanishes(value) else ""
    return Finding(
        f"{node.op_type} of {node.inputs[0]}, whose elements are all equal{zero}",
        **scope.at(node),
        tensor=f"{node.inputs[0]} (input 0)",
        expected="elements that differ",
        got=f"{value.size} times {value.flat[0]:.6g} with the recorded inputs{zero}",
        why=f"{node.op}-{node.version} takes scale and zero point from the range of the values and 0.",
        fix="record inputs that say more, or find the node that makes the tensor constant",
    )
