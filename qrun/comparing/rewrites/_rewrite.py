"""One place that the default session of onnxruntime rewrites, and what rewrites ask about nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS


@frozen
class Rewrite:
    """One place that onnxruntime rewrites.

    node:      the node to name in a finding.
    tensor:    the tensor whose meaning changes.
    text:      what onnxruntime does, as a clause.
    nodes:     the new nodes, by the first output of the node that they replace.
    constants: the stored tensors that the rewrite adds.
    """

    node: Node
    tensor: str
    text: str
    nodes: Mapping[str, tuple[Node, ...]]
    constants: Mapping[str, Array]

    def apply(self, model: Model) -> Model:
        """The rewritten model. New nodes have the index of the node that they replace."""
        made = (
            replace(new, index=node.index)
            for node in model.nodes
            for new in self.nodes.get(next(iter(node.outputs), ""), (node,))
        )
        return replace(model, nodes=tuple(made), constants={**model.constants, **self.constants})


@frozen
class StoredParameters:
    """A DequantizeLinear or QuantizeLinear with stored parameters."""

    node: Node
    scale: Array
    zero: Array | None

    @property
    def is_scalar(self) -> bool:
        return self.scale.size == 1

    def same(self, other: StoredParameters) -> bool:
        zero, others = (np.zeros(1) if p.zero is None else p.zero for p in (self, other))
        return np.array_equal(self.scale.ravel(), other.scale.ravel()) and np.array_equal(zero.ravel(), others.ravel())


def parameters(model: Model, node: Node | None, op_type: str = "DequantizeLinear") -> StoredParameters | None:
    """None if this is no such node, or its scale or zero point is not stored."""
    if node is None or node.op_type != op_type or node.domain not in ("", MS) or len(node.inputs) < 2:
        return None
    stored = {name: model.constants.get(name) for name in node.inputs[1:3] if name}
    if any(array is None or not array.size for array in stored.values()) or node.inputs[1] not in stored:
        return None
    scale, zero, *_ = (stored.get(name) for name in (*node.inputs[1:3], ""))
    return None if scale is None or scale.dtype.kind not in "fV" else StoredParameters(node, scale, zero)


def number(node: Node, name: str, default: float = 0) -> float:
    """An attribute that is a number; the default if it is not given or of another type."""
    value = node.attributes.get(name, default)
    return value if isinstance(value, int | float) else default


def readers(model: Model, node: Node) -> Sequence[Node]:
    """The nodes that read a node's first result; a node may have no result."""
    return model.consumers.get(node.outputs[0], ()) if node.outputs else ()


def only_reader(model: Model, node: Node) -> Node | None:
    """The only node that reads a node's result, if nobody else does."""
    found = readers(model, node)
    alone = len(found) == 1 and all(value.name != node.outputs[0] for value in model.outputs)
    return found[0] if alone else None


def product_end(model: Model, node: Node) -> Node:
    """The node that makes a product's result: Add of a stored vector joins MatMul of two matrices."""
    add = only_reader(model, node) if node.op_type == "MatMul" else None
    if add is None or add.op_type != "Add" or not add.outputs:
        return node
    vector = next((model.constants.get(name) for name in add.inputs if name != node.outputs[0]), None)
    matrices = all(_rank(model, name) == 2 for name in node.inputs[:2])
    return add if vector is not None and vector.ndim == 1 and matrices else node


def _rank(model: Model, name: str) -> int | None:
    """How many axes a tensor has by what the file states of it, or of what it is quantized from."""
    while True:
        stored, stated = model.constants.get(name), model.types.get(name)
        if stored is not None:
            return stored.ndim
        if stated is not None and stated.shape is not None:
            return len(stated.shape)
        maker = model.producers.get(name)
        if maker is None or maker.op_type not in ("DequantizeLinear", "QuantizeLinear") or not maker.inputs:
            return None
        name = maker.inputs[0]


def is_quantized(model: Model, node: Node) -> bool:
    """Does only a QuantizeLinear read a node's result?"""
    reader = only_reader(model, node)
    return reader is not None and reader.op_type == "QuantizeLinear"
