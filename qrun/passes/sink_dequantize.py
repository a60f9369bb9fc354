"""Moves DequantizeLinear behind nodes that only move data: Reshape(DequantizeLinear(x)) becomes
DequantizeLinear(Reshape(x)).

A node that only moves, copies, drops or repeats elements can do so with 8-bit integers:

    operators whose form is `moves`      DequantizeLinear, with one scale, works on every element alike
    Transpose                            also with one scale per place along an axis, which moves along
    Resize, Upsample                     nearest, unless tf_crop_and_resize fills the outside with a number
    Pad                                  if the number it fills with is the value of a code, such as 0
    MaxPool                              if no window lies wholly in the padding: a positive scale keeps the order
    Identity; Dropout when not training  their input takes their place
    Shape, Size                          read the integers

The results equal those of the literal graph, bit for bit, in every arithmetic. Only elementwise and arithmetic nodes
remain between DequantizeLinear and QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Model, Node
from qrun.ir.types import type_name
from qrun.ops import Arith, find
from qrun.passes._draft import Draft, Refused, Rewritten, unchanged_model
from qrun.passes._evaluate import accepting_version
from qrun.passes._shapes import windows_reach_input
from qrun.passes._sides import EIGHT, QuantizedTensor, dequantize_side, is_dequantize, levels

_NEAREST = ("Resize", "Upsample")
_INTEGERS = (*EIGHT, *(np.dtype(t) for t in (np.int16, np.uint16, np.int32)))


@frozen
class _Moved:
    """How a node moves integers: its version, its inputs after the first, and the axis of its output's scales."""

    version: int
    inputs: tuple[str, ...]
    axis: int | None


def sink_dequantize(model: Model, keep: Iterable[str], arith: Arith) -> Rewritten:
    """The model with every DequantizeLinear behind the nodes that only move its result."""
    if model.op_types.isdisjoint(("DequantizeLinear", "Identity")):
        return unchanged_model(model)
    return _Sink(Draft(model, keep, arith)).run()


class _Sink:
    """Performs the pass. sides: for each result of DequantizeLinear, the integers behind it."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.sides: dict[str, QuantizedTensor] = {}

    def run(self) -> Rewritten:
        """Visit all nodes in order and return the rewritten model."""
        for node in self.draft.model.nodes:
            if is_dequantize(node):
                self._remember(node)
            elif node.domain or not node.inputs:
                continue
            elif node.op_type == "Identity" or _is_inference(self.draft, node):
                self._drop(node)
            elif node.inputs[0] in self.sides:
                self._move(node, self.sides[node.inputs[0]])
        return self.draft.finish()

    def _remember(self, node: Node) -> None:
        """Note the scale and zero point of a DequantizeLinear's output."""
        with suppress(Refused):
            self.sides[node.outputs[0]] = dequantize_side(self.draft, node, "", _INTEGERS)

    def _drop(self, node: Node) -> None:
        """Replace the output by the input; for a Dropout only if the input certainly has a type that it takes."""
        source, name = node.inputs[0], node.outputs[0] if node.outputs else ""
        if not name or (node.op_type != "Identity" and source not in self.sides):
            return
        if self.draft.arith == "ort" and self.draft.value(source) is not None:
            return  # a product reads it: `fold_constants` has kept it
        self.draft.alias(name, source, node.index)
        if source in self.sides:
            self.sides[name] = self.sides[source]

    def _move(self, node: Node, side: QuantizedTensor) -> None:
        """Let a node work on codes instead of the dequantized tensor, if its result is the same."""
        draft = self.draft
        if node.op_type in ("Shape", "Size"):
            draft.put(node.index, (replace(node, inputs=(side.tensor, *node.inputs[1:])), [node.index]))
            return
        try:
            moved = _find_move(draft, node, side)
        except Refused as reason:
            draft.refused[node.index] = str(reason)
            return
        if moved is None:
            return
        outputs = tuple(draft.fresh(f"{name}_codes") if name else "" for name in node.outputs)
        inputs = (side.tensor, *moved.inputs)
        made = [(replace(node, version=moved.version, inputs=inputs, outputs=outputs), [node.index])]
        for name, codes in zip(node.outputs, outputs, strict=True):
            if name:
                attributes = dict(side.node.attributes) | ({} if moved.axis is None else {"axis": moved.axis})
                source = replace(
                    side.node, outputs=(name,), attributes=attributes, inputs=(codes, side.scale, side.zero)
                )
                made.append((source, [side.node.index]))
                self.sides[name] = replace(side, tensor=codes, axis=moved.axis, node=source)
                draft.state(codes, side.dtype, name)
        draft.put(node.index, *made)


def _find_move(draft: Draft, node: Node, side: QuantizedTensor) -> _Moved | None:
    """How the node moves integers. None if its operator does not move elements. Raises Refused if this node cannot."""
    definition = find(node.domain, node.op_type, node.version)
    form = definition.form if definition else ""
    inputs = node.inputs[1:]
    if node.op_type not in ("MaxPool", "Pad", *_NEAREST) and form != "moves":
        return None
    axis = _moved_axis(draft, node, side)
    version = accepting_version(node, side.dtype)
    if version is None:
        raise Refused(f"{node.op_type}-{node.version} does not take {type_name(side.dtype)}")
    if node.op_type == "Pad":
        inputs = _fill_inputs(draft, node, side)
    elif node.op_type == "MaxPool":
        _check_max_pool(node)
    elif node.op_type in _NEAREST:
        mode = node.attributes.get("mode", "nearest")
        if mode != "nearest" or node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            raise Refused(f"{node.op_type} computes new values")
    return _Moved(version, inputs, axis)


def _moved_axis(draft: Draft, node: Node, side: QuantizedTensor) -> int | None:
    """The axis along which the scales lie in the node's output; None if there is one scale."""
    if side.axis is None:
        return None
    shape = draft.shapes.get(side.tensor)
    perm = node.attributes.get("perm") or (tuple(range(len(shape)))[::-1] if shape else ())
    if node.op_type != "Transpose" or not isinstance(perm, tuple) or not -len(perm) <= side.axis < len(perm):
        raise Refused(f"its input has one scale per place along axis {side.axis}")
    axis = side.axis % len(perm)
    if axis not in perm:
        raise Refused("perm is not an order of the axes")
    return perm.index(axis)


def _fill_inputs(draft: Draft, node: Node, side: QuantizedTensor) -> tuple[str, ...]:
    """Pad's inputs after the first, with a code as the fill value."""
    if len(node.inputs) < 2 or node.attributes.get("mode", "constant") != "constant":
        return (*node.inputs[1:2], *(["", *node.inputs[3:]] if node.inputs[3:] else []))
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    fill = draft.value(name) if name else np.zeros((), np.float32)
    if fill is None or fill.dtype != np.float32 or fill.size != 1 or fill.ndim > 1:
        raise Refused("constant_value is not constant")
    values = levels(draft, side) if side.dtype in EIGHT else None
    bits = fill.reshape(1).view(np.uint32)
    codes = np.flatnonzero(values.view(np.uint32) == bits) if values is not None else np.zeros(0, np.intp)
    if not codes.size:
        raise Refused(f"constant_value {float(fill.reshape(()))!r} is not the value of a code")
    code = np.arange(256, dtype=np.uint8).view(side.dtype)[codes[0]]
    return (node.inputs[1], draft.constant(code, f"{node.label}_fill"), *node.inputs[3:])


def _check_max_pool(node: Node) -> None:
    """Raise Refused if a window has no element of the input. A positive scale keeps the order, also in float32."""
    if any(node.outputs[1:]):
        raise Refused("Indices are asked for")
    if not windows_reach_input(node):
        raise Refused("a window may lie wholly in the padding")


def _is_inference(draft: Draft, node: Node) -> bool:
    """Whether the node is a Dropout that certainly passes its input on, and whose mask nothing reads."""
    if node.op_type != "Dropout" or any(draft.consumers(n) or n in draft.preserved for n in node.outputs[1:] if n):
        return False
    numbers = [draft.value(name) for name in node.inputs[1:] if name]
    if any(value is None or value.size != 1 or value.ndim > 1 for value in numbers):
        return False
    training = draft.value(node.inputs[2]) if len(node.inputs) > 2 else None
    return training is None or not bool(training.reshape(()))
