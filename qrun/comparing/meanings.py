"""What integer codes stand for: the scale and zero point of the node that made them, or of one that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from qrun.comparing.causes import spread
from qrun.comparing.matching_writer import is_dequantize, moves
from qrun.ir import Array, Model, Node
from qrun.ops import find

_KEEPS = ("MaxPool", "GlobalMaxPool")
"""Operators, besides those that move elements, whose codes mean what those of their first input do."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """(code - zero) * scale.

    scale, zero: names of tensors; no zero is 0. axis: along which they lie, if they are not scalars.
    whole:       are the codes in the places for which these were meant? If not, only scalars count.
    """

    scale: str
    zero: str = ""
    axis: int = 1
    whole: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return (self.scale, self.zero) if self.zero else (self.scale,)

    def parameters(self, values: Mapping[str, Array]) -> tuple[Array, Array] | None:
        """Scale and zero point; None if these values have them not, or they do not count."""
        scale, zero = values.get(self.scale), values.get(self.zero) if self.zero else np.zeros((), np.int32)
        if scale is None or zero is None or not (self.whole or scale.size == zero.size == 1):
            return None
        return scale, zero

    def step(self, codes: Array, values: Mapping[str, Array]) -> Array | None:
        """What two neighbouring codes are apart, as it broadcasts with the codes."""
        found = self.parameters(values)
        return None if found is None else spread(found[0], codes, self.axis)

    def real(self, codes: Array, values: Mapping[str, Array]) -> Array | None:
        """The real numbers as float64; None if these values do not tell them."""
        found = self.parameters(values)
        if found is None:
            return None
        scale, zero = (spread(parameter, codes, self.axis) for parameter in found)
        with np.errstate(all="ignore"):
            try:
                return np.asarray((codes.astype(np.float64) - zero) * scale)
            except ValueError:
                return None


def meaning(model: Model, name: str) -> Meaning | None:
    """Of a tensor of codes: of the node that quantizes it, or else of a node that dequantizes it, through those that
    move codes; None if no node tells.
    """
    return _maker(model, name) or _reader(model, name)


def _store(model: Model, what: str) -> dict[str, Meaning | None]:
    """What was found by tensor, kept with the model: long chains of nodes that move codes are walked once."""
    found: dict[str, Meaning | None] = vars(model).setdefault(f"_meanings_{what}", {})
    return found


def _maker(model: Model, name: str) -> Meaning | None:
    known, passed = _store(model, "made"), []
    while name not in known:
        node = model.producers.get(name)
        made = _made(node, name) if node is not None and node.inputs else None
        if made is None and node is not None and node.inputs and _keeps(node):
            passed.append(name)
            name = node.inputs[0]
        else:
            known[name] = made
    found = known[name]
    for moved in passed:
        known[moved] = found and replace(found, whole=False)
    return known[passed[0]] if passed else found


def _reader(model: Model, name: str) -> Meaning | None:
    known, pending = _store(model, "read"), [name]
    while pending:
        at = pending[-1]
        readers = model.consumers.get(at, ())
        found = next((made for node in readers for place, read in enumerate(node.inputs)
                      if read == at and (made := _taken(node, place))), None)  # fmt: skip
        if found is None:
            for node in readers:
                if _keeps(node) and node.inputs[0] == at and len(node.outputs) == 1:
                    moved = node.outputs[0]
                    if moved not in known:
                        pending.append(moved)
                        break
                    found = found or ((behind := known[moved]) and replace(behind, whole=False))
        if pending[-1] is at:
            known[pending.pop()] = found
    return known[name]


def _keeps(node: Node) -> bool:
    return not node.domain and (moves(node) or node.op_type in _KEEPS)


def _made(node: Node, name: str) -> Meaning | None:
    """By the parameters ..._scale and ..._zero_point that belong to no input."""
    if node.op_type == "DynamicQuantizeLinear" and not node.domain:
        return Meaning(node.outputs[1], node.outputs[2]) if name == node.outputs[0] and len(node.outputs) > 2 else None
    names = _parameters(node)
    tensors = {known for known in names if not known.endswith(("_scale", "_zero_point"))}
    place = next((at for at, p in enumerate(names) if p.endswith("_scale") and p[:-6] not in tensors), None)
    return None if place is None or name != node.outputs[0] else _meaning(node, names[place][:-6], names)


def _taken(node: Node, place: int) -> Meaning | None:
    if node.op_type == "QLinearConcat":
        return Meaning(node.inputs[place + 1], node.inputs[place + 2]) if place >= 2 and place % 3 == 2 else None
    names = _parameters(node)
    return _meaning(node, names[place], names) if place < len(names) else None


def _parameters(node: Node) -> list[str]:
    """The specification's names of the inputs, in lower case."""
    definition = find(node.domain, node.op_type, node.version)
    return [p.name.lower() for p in definition.inputs] if definition is not None else []


def _meaning(node: Node, tensor: str, names: list[str]) -> Meaning | None:
    given = {name: node.inputs[at] for at, name in enumerate(names) if at < len(node.inputs)}
    scale = given.get(f"{tensor}_scale", "")
    return Meaning(scale, given.get(f"{tensor}_zero_point", ""), _axis(node, tensor)) if scale else None


def _axis(node: Node, tensor: str) -> int:
    """Filters of a convolution, rows of a matrix product's left side and columns of its right one have scales of their own."""
    axis = node.attributes.get("axis", 1)
    if is_dequantize(node) or node.op_type == "QuantizeLinear":
        return axis if isinstance(axis, int) else 1
    return 0 if tensor == "w" else -1 if tensor == "b" else -2
