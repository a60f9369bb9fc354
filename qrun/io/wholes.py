"""Inputs that say how much of the others counts, such as lengths of sequences and masks, where all of it counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.model import once_per_model
from qrun.ir.types import type_name
from qrun.ops import MASK, Whole, expansion, find

_MASK_NAME = "attention_mask"
"""What exporters call the mask of a model that has no operator of attention."""


@frozen
class Wholes:
    """Sizes of axes, by their names, as far as they are set, and the shapes of inputs that are set whole."""

    model: Model
    symbols: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def feed(self, value: TensorType, shape: Sequence[int]) -> Array | None:
        """The input's array; None for an input that says nothing of others."""
        readers = _readers(self.model).get(value.name, ())
        if not readers:
            return None
        made = np.ones(shape, value.dtype)
        whole = readers[0][1]
        if whole.of and not (whole.mask and made.ndim > 1):
            node, whole, count = next((found for found in self._counts(readers)), (*readers[0], 1))
            made[...] = min(count, np.iinfo(np.int32).max)
            if whole.mask:
                batch = self._size(node, whole.of[0][0], 0) or made.size
                made[batch : 2 * batch] = 0  # where sequences begin, if that is said behind their ends
        return made

    def total(self, value: TensorType) -> int | None:
        """The size of the last axis of a mask where nothing sets it: the past and what comes new; None for others."""
        if not any(whole == MASK or whole.mask for _, whole in _readers(self.model).get(value.name, ())):
            return None
        return next((count for _, _, count in self._counts(_pasts(self.model))), None)

    def _counts(self, readers: Sequence[tuple[Node, Whole]]) -> Iterator[tuple[Node, Whole, int]]:
        """What there is to count at each node, if its shapes are known."""
        for node, whole in readers:
            sizes = [self._size(node, name, _axis(node, axis)) for name, axis in whole.of]
            if None not in sizes:
                yield node, whole, max(sum(size for size in sizes if size is not None) - whole.less, 0)

    def _size(self, node: Node, name: str, axis: int) -> int | None:
        """The size of an axis of the node's input with this name; 0 of an omitted one, None if it is unknown."""
        tensor = _given(node, name)
        if not tensor:
            return 0
        shape = self.shapes.get(tensor)
        if shape is not None:
            return shape[axis] if -len(shape) <= axis < len(shape) else None
        value = _known(self.model, tensor)
        if value is None or not -len(value.sizes) <= axis < len(value.sizes):
            return None
        size = value.sizes[axis]
        return size if isinstance(size, int) else self.symbols.get(size, 1 if size in _axes(self.model) else None)


def _axis(node: Node, axis: int | str) -> int:
    found = node.attributes.get(axis, 0) if isinstance(axis, str) else axis
    return found if isinstance(found, int) else 0


def _given(node: Node, name: str) -> str:
    """The tensor that is the node's input of this name; "" if it is left out."""
    definition = find(node.domain, node.op_type, node.version)
    names = [p.name for p in definition.inputs] if definition else []
    place = names.index(name) if name in names else len(node.inputs)
    return node.inputs[place] if place < len(node.inputs) else ""


def _known(model: Model, tensor: str) -> TensorType | None:
    """The tensor's type, or that of the first tensor known before it: layers keep the axes of sequences."""
    for _ in range(len(model.nodes)):
        value = model.fed.get(tensor) or model.types.get(tensor) or _types(model).get(tensor)
        if value is not None and value.shape is not None:
            return value
        node = model.producers.get(tensor)
        if node is None or not node.inputs:
            return None
        tensor = node.inputs[0]
    return None


@once_per_model
def _types(model: Model) -> Mapping[str, TensorType]:
    """What the file states of its tensors, and what follows from that."""
    from qrun.ir.infer import with_inferred

    return with_inferred(model, model.path, expansion).types if model.path else model.types


@once_per_model
def _axes(model: Model) -> frozenset[int | str]:
    return frozenset(size for value in model.fed.values() for size in value.sizes)


@once_per_model
def _readers(model: Model) -> Mapping[str, Sequence[tuple[Node, Whole]]]:
    """By input: the nodes to which it says how much counts, and how."""
    found = {}
    for value in model.inputs:
        if value.kind != "tensor" or value.dtype is None or not _says_how_much(value):
            continue
        readers = list(_reached(model, value.name))
        if not readers and _MASK_NAME in value.name.lower():
            readers = [(node, MASK) for node in model.consumers.get(value.name, ())[:1]]
        if readers:
            found[value.name] = readers
    return found


def _says_how_much(value: TensorType) -> bool:
    return value.dtype is not None and (value.dtype.kind == "b" or "int" in type_name(value.dtype))


def _reached(model: Model, name: str) -> Iterator[tuple[Node, Whole]]:
    """The nodes that take a tensor, or what only converts or moves its elements, for an input that says how much."""
    left = [name]
    while left:
        name = left.pop(0)
        for node in model.consumers.get(name, ()):
            definition = find(node.domain, node.op_type, node.version)
            if definition is None:
                continue
            for place, tensor in enumerate(node.inputs):
                whole = definition.wholes.get(definition.param(place)) if tensor == name else None
                if whole is not None:
                    yield node, whole
            if node.inputs[0] == name and (definition.form == "moves" or node.op_type in ("Cast", "Identity")):
                left.append(node.outputs[0])


@once_per_model
def _pasts(model: Model) -> Sequence[tuple[Node, Whole]]:
    """The nodes that count places of a cache that is fed."""
    found = []
    for value in model.inputs:
        for node in model.consumers.get(value.name, ()):
            definition = find(node.domain, node.op_type, node.version)
            for whole in (definition.wholes if definition else {}).values():
                if len(whole.of) > 1 and not whole.less and _given(node, whole.of[-1][0]) == value.name:
                    found.append((node, whole))
    return found
