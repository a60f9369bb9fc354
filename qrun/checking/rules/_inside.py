"""Stored weights of integer products that are steps of a larger operator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._scope import Scope, nodes
from qrun.checking.rules._weights import QuantizedOperand, Weight
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.ops import Slot, find

_STEPS = {"QAttention": ("weight",), "DynamicQuantizeLSTM": ("W", "R")}
INSIDE = tuple(f"{MS}::{op_type}" for op_type in _STEPS)
"""The operators that have such weights, as users write them."""


def weights_inside(model: Model) -> Iterator[Weight]:
    """Their weights; of recurrent operators one for each direction. What R meets is quantized in each step and has no
    name: then `x.tensor` is empty."""
    for scope, node in nodes(model, [(MS, op_type) for op_type in _STEPS]):
        for name in _STEPS[node.op_type]:
            yield from _weights(scope, node, name)


def _weights(scope: Scope, node: Node, name: str) -> Iterator[Weight]:
    definition = find(node.domain, node.op_type, node.version)
    if definition is None:
        return
    names = [p.name for p in definition.inputs]

    def value(of: str) -> Array | None:
        place = names.index(of)
        return scope.value(node.inputs[place]) if place < len(node.inputs) and node.inputs[place] else None

    codes, zero, rank = value(name), value(f"{name}_zero_point"), 2 if len(_STEPS[node.op_type]) == 1 else 3
    if codes is None or codes.ndim != rank or not codes.size:
        return
    slot = Slot(name, names.index(name), node.inputs[names.index(name)])
    matrices = codes if rank == 3 else codes[None]
    zeros = np.zeros(1, np.int8) if zero is None else zero
    parts = zeros if rank == 3 and zeros.ndim and len(zeros) == len(matrices) else [zeros] * len(matrices)
    for matrix, own in zip(matrices, parts, strict=True):
        x = _met(scope, node, name)
        flat = np.asarray(own).reshape(-1)
        yield Weight(scope, node, slot, slot.tensor, codes.dtype, matrix, 1, None, flat, x, None, False)


def _met(scope: Scope, node: Node, name: str) -> QuantizedOperand:
    if node.op_type == "QAttention":
        return QuantizedOperand(scope, node.inputs[0], scope.dtype(node.inputs[0]), None, None, node)
    return QuantizedOperand(scope, node.inputs[0] if name == "W" else "", np.dtype(np.uint8), None, None, node)
