"""A whole graph as onnxruntime runs it on CPUs without VNNI: groups fused, float32 multipliers, pairs that saturate."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qrun.comparing.causes import Suspect
from qrun.comparing.causes._product import resumed
from qrun.comparing.causes.pairs import lost_in_pairs
from qrun.comparing.sides import Unit, Values, run_alone
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS


def run_saturating(model: Model, feeds: Values, wanted: Iterable[str]) -> dict[str, Array]:
    """The tensors asked for, every node in onnxruntime's arithmetic, uint8 * int8 products added in saturating pairs.

    Depthwise convolutions have kernels of their own there, which are exact. Raises QrunError if a node cannot run.
    """
    values: dict[str, Array] = {**model.constants, **feeds}
    for node in model.nodes:
        made = run_alone(model, (_softmax(model, node) or node,), values, "reference", "ort")
        name = node.outputs[0] if node.outputs else ""
        if name in made and not _is_depthwise(node, values):
            suspect = Suspect(model, Unit(node, (node,)), name, values, made[name], None)
            lost = lost_in_pairs(suspect)
            changed = resumed(suspect, lost[0], "ort") if lost else None
            made[name] = made[name] if changed is None else changed
        values |= made
    return {name: values[name] for name in wanted}


def _softmax(model: Model, last: Node) -> Node | None:
    """DequantizeLinear, Softmax and this QuantizeLinear as the QLinearSoftmax that onnxruntime makes of them."""
    middle = model.producers.get(last.inputs[0]) if last.op_type == "QuantizeLinear" else None
    first = model.producers.get(middle.inputs[0]) if middle is not None and middle.op_type == "Softmax" else None
    if middle is None or first is None or first.op_type != "DequantizeLinear" or len(last.inputs) < 3:
        return None
    if len(first.inputs) < 3 or len(model.consumers[middle.outputs[0]]) > 1:
        return None
    old = middle.version < 13
    attributes = {"axis": middle.attributes.get("axis", 1 if old else -1), "opset": middle.version}
    return Node(
        last.index, middle.label, MS, "QLinearSoftmax", 1, (*first.inputs, *last.inputs[1:]), last.outputs, attributes
    )


def _is_depthwise(node: Node, values: Values) -> bool:
    group = node.attributes.get("group", 1)
    if node.op_type != "QLinearConv" or not isinstance(group, int) or group == 1:
        return False
    w = values[node.inputs[3]]
    return w.shape[1] == 1 and w.shape[0] == group and bool(np.ndim(w) >= 3)
