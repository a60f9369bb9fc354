"""Finds the scale and zero point of a tensor of quantized values, from the node that makes it or one that reads it.
Also finds the quantization step of a dequantized tensor."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.comparing.causes import broadcast
from qrun.comparing.differences import IDENTITY, AffineScale
from qrun.comparing.matching.operators import is_dequantize, moves
from qrun.comparing.sides import Values
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node, once_per_model
from qrun.ops import Quantizer, parameter_axis, quantizers

_KEEPS = ("MaxPool", "GlobalMaxPool")
"""Operators, other than those that move elements, whose output has the scale and zero point of their first input."""


@frozen
class Meaning:
    """The scale and zero point of a tensor of codes; a code's real number is (code - zero) * scale.

    scale, zero: names of tensors; "" for a zero point of 0. axis: the axis of codes along which non-scalars lie.
    whole:       are the codes still where the quantizer put them? If not, only scalar parameters are usable.
    """

    scale: str
    zero: str = ""
    axis: int = 1
    whole: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of scale and zero point."""
        return (self.scale, self.zero) if self.zero else (self.scale,)

    def parameters(self, values: Values) -> tuple[Array, Array] | None:
        """Scale and zero point; None if `values` lacks them, or if they are unusable (see `whole`)."""
        scale, zero = values.get(self.scale), values.get(self.zero) if self.zero else np.zeros((), np.int32)
        if scale is None or zero is None or not (self.whole or scale.size == zero.size == 1):
            return None
        return scale, zero

    def step(self, codes: Array, values: Values) -> Array | None:
        """The distance between neighbouring codes, in a shape that broadcasts with `codes`; None if not known."""
        found = self.parameters(values)
        return None if found is None else broadcast(found[0], codes, self.axis)

    def real(self, codes: Array, values: Values) -> Array | None:
        """The dequantized codes as float64; None if `values` lacks the parameters or their shapes do not fit."""
        found = self.parameters(values)
        if found is None:
            return None
        scale, zero = (broadcast(parameter, codes, self.axis) for parameter in found)
        with np.errstate(all="ignore"):
            try:
                return np.asarray((codes.astype(np.float64) - zero) * scale)
            except ValueError:
                return None


def meaning(model: Model, name: str) -> Meaning | None:
    """The scale and zero point of a tensor of codes, from the node that quantizes it, else one that dequantizes it.
    Looks through nodes that only move codes. None if no node has them.
    """
    return _maker(model, name) or _reader(model, name)


@once_per_model
def _known_makers(model: Model) -> dict[str, Meaning | None]:
    """Cache of the meanings by tensor, so that long chains of nodes that move codes are walked only once."""
    return {}


@once_per_model
def _known_readers(model: Model) -> dict[str, Meaning | None]:
    """What the readers of tensors say, as far as looked up."""
    return {}


def _maker(model: Model, name: str) -> Meaning | None:
    """The scale and zero point that a tensor's producer gives it, through nodes that keep values."""
    known, passed = _known_makers(model), []
    while name not in known:
        node = model.producers.get(name)
        made = _output_meaning(node, name) if node is not None and node.inputs else None
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
    """The scale and zero point that a tensor's readers give it, through nodes that keep values."""
    known, pending = _known_readers(model), [name]
    while pending:
        at = pending[-1]
        readers = model.consumers.get(at, ())
        found = next(
            (
                made
                for node in readers
                for index, read in enumerate(node.inputs)
                if read == at and (made := _input_meaning(node, index))
            ),
            None,
        )
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
    """Whether a node's output has the scale of its input."""
    return not node.domain and (moves(node) or node.op_type in _KEEPS)


def _output_meaning(node: Node, name: str) -> Meaning | None:
    """The scale and zero point of a node's output."""
    if node.op_type == "DynamicQuantizeLinear" and not node.domain:
        return Meaning(node.outputs[1], node.outputs[2]) if name == node.outputs[0] and len(node.outputs) > 2 else None
    return next(
        (_meaning(node, q) for q in quantizers(node) if q.is_output and q.scale and q.tensor.tensor == name), None
    )


def _input_meaning(node: Node, index: int) -> Meaning | None:
    """The scale and zero point of a node's input at a position."""
    found = (q for q in quantizers(node) if not q.is_output and q.scale and q.tensor.place == index)
    return next((_meaning(node, q) for q in found), None)


def _meaning(node: Node, q: Quantizer) -> Meaning:
    """The scale and zero point of a quantized tensor."""
    axis = parameter_axis(node, q.form)
    return Meaning(q.scale.tensor if q.scale else "", q.zero_point.tensor if q.zero_point else "", axis)


@frozen
class TensorScales:
    """Finds scales, zero points and steps of a model's tensors, from its constants and the inputs `feeds`."""

    model: Model
    feeds: Values

    def affine(self, name: str, dtype: np.dtype[Any]) -> AffineScale:
        """Scale and zero point of a tensor of codes, found by `meaning`; IDENTITY unless both are known scalars."""
        found = meaning(self.model, name)
        parameters = found.parameters(self.stored) if found is not None else None
        if found is None or parameters is None:
            return IDENTITY
        scale, zero = parameters
        fits = scale.size == zero.size == 1 and (not found.zero or zero.dtype == dtype)
        return AffineScale(float(scale.reshape(())), float(zero.reshape(()))) if fits else IDENTITY

    def step(self, name: str, like: Array) -> Array | None:
        """The quantization step of a tensor that a DequantizeLinear made, in a shape that broadcasts with `like`.
        Looks through nodes that move elements if the scale is one number. None if no DequantizeLinear made it.
        """
        whole = True
        while (node := self.model.producers.get(name)) is not None and node.inputs:
            if is_dequantize(node):
                scale = self.stored.get(node.inputs[1])
                if scale is None or not (whole or scale.size == 1):
                    return None
                return broadcast(scale, like, node.attributes.get("axis", 1))
            if not moves(node):
                return None
            name, whole = node.inputs[0], False
        return None

    @property
    def stored(self) -> Values:
        """Constants and inputs by name."""
        return ChainMap(self.model.constants, self.feeds)  # type: ignore[arg-type]
