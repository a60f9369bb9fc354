"""Finds tensors that a node quantizes with one stored scale and zero point, and computes a scale that fits values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qrun.checking.rules._forms import all_quantizers
from qrun.checking.rules._scope import Scope
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node, once_per_model
from qrun.ops import Quantizer, facts, find

BOUNDS = {
    "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Cos": (-1.0, 1.0),
}
"""The smallest and the largest value of each function, for any inputs."""


@frozen
class OneScaled:
    """A tensor quantized with one scale and zero point. low, high: the smallest and the largest code of its type."""

    name: str
    node: Node
    scale: float
    zero: int
    low: int
    high: int

    def reals(self, low: float, high: float) -> tuple[float, float]:
        """The real values of two codes."""
        return (low - self.zero) * self.scale, (high - self.zero) * self.scale

    def code(self, value: float) -> int:
        return int(np.clip(np.rint(value / self.scale) + self.zero, self.low, self.high))

    def fit_range(self, low: float, high: float) -> tuple[float, int]:
        """The scale and zero point that fit values from low to high; a symmetric tensor stays symmetric."""
        low, high = min(low, 0.0), max(high, 0.0)
        if self.zero == 0 and self.low < 0:
            return max(-low, high) / self.high, 0
        scale = (high - low) / (self.high - self.low)
        return scale, self.low + round(-low / scale) if scale else 0


@once_per_model
def one_scaled(model: Model) -> Mapping[str, OneScaled]:
    """The tensors of the main graph with one scale and zero point, by name."""
    found = {}
    for scope, node, q in all_quantizers(model):
        made = _one(scope, node, q) if q.is_output and scope.outer is None else None
        if made is not None:
            found[made.name] = made
    return found


def _one(scope: Scope, node: Node, q: Quantizer) -> OneScaled | None:
    scale = scope.value(q.scale.tensor) if q.scale else None
    zero = scope.value(q.zero_point.tensor) if q.zero_point and q.zero_point.tensor else np.zeros((), np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or zero.dtype.kind not in "iu":
        return None
    real, limits = float(scale.reshape(())), np.iinfo(zero.dtype)
    if not 0 < real < np.inf:
        return None
    return OneScaled(q.tensor.tensor, node, real, int(zero.reshape(())), int(limits.min), int(limits.max))


def source(model: Model, one: OneScaled) -> Node | None:
    """The node that computes the quantized values, before nodes that only move them; None for a graph input."""
    node: Node | None = one.node
    if node is not None and node.op_type == "QuantizeLinear":
        node = model.producers.get(node.inputs[0])
        while node is not None and _moves(node):
            node = model.producers.get(node.inputs[0])
    return node


def bounds(model: Model, one: OneScaled) -> tuple[str, float, float] | None:
    """The function whose values are quantized, with its smallest and largest value; None if it has no such bounds."""
    node = source(model, one)
    if node is None:
        return None
    known = facts(node.domain, node.op_type)
    name = known.real.op_type if known and known.real else node.op_type
    return (name, *BOUNDS[name]) if name in BOUNDS else None


def _moves(node: Node) -> bool:
    definition = find(node.domain, node.op_type, node.version)
    return definition is not None and definition.form == "moves" and bool(node.inputs and node.inputs[0])


def distinct(values: Array) -> int:
    """The number of distinct values."""
    # np.unique imports numpy.ma, which takes a tenth of the time to check a small model
    rising = np.sort(values, axis=None)
    return min(rising.size, 1) + int(np.count_nonzero(rising[1:] != rising[:-1]))


def joining_concat(model: Model, one: OneScaled) -> Node | None:
    """The Concat or QLinearConcat that joins the tensor, as codes or dequantized, with others; None without one."""
    read = list(model.consumers.get(one.name, ()))
    made = [name for node in read if node.op_type == "DequantizeLinear" for name in node.outputs]
    read += [node for name in made for node in model.consumers.get(name, ())]
    return next((node for node in read if node.op_type in ("Concat", "QLinearConcat")), None)
