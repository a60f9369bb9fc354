"""How alike two operators of two models are: kinds, constants, attributes."""

from __future__ import annotations

import numpy as np

from qrun.comparing.matching.graph import Reals
from qrun.ir import Array, Node

ALIKE = 0.9
"""Cosine from which constants count as the same ones, quantized."""
_KINDS = {"Gemm": "MatMul", "Flatten": "Reshape", "Squeeze": "Reshape", "Unsqueeze": "Reshape"}
_ABSORBED = ("Relu", "Clip", "BatchNormalization", "Add", "Sub", "Mul", "Div", "Reshape", "Pad")
COMMUTATIVE = ("Add", "Mul")
_ACTIVATIONS = {
    "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu", "Sigmoid",
    "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
}  # fmt: skip
_ENOUGH = 16
"""The fewest weights whose number a quantizer keeps."""
_FEW = 4
"""Numbers per channel below which their direction says nothing."""


def kind(node: Node) -> str:
    """What the node does, whatever it is called."""
    name = _KINDS.get(node.op_type, node.op_type)
    return f"{node.domain}::{name}" if node.domain else name


def is_absorbed(reals: Reals, place: int) -> bool:
    """May another model have merged this operator into the one before it: into its range, its weights or its bias?"""
    node = reals.nodes[place]
    return not node.domain and kind(node) in _ABSORBED and len(list(reals.inputs(place))) == 1


def likeness(a: Reals, first: int, b: Reals, second: int) -> float | None:
    """The mean absolute cosine between the output channels of two operators' largest constants.

    The scales of channels do not count, as a folded BatchNormalization changes them. None if neither has constants of
    several numbers, 0 if they do not fit.
    """
    one, other = _weights(a, first), _weights(b, second)
    if one is None and other is None:
        return None
    if one is None or other is None or one.size != other.size:
        return 0.0
    if one.shape != other.shape or one[0].size < _FEW:
        one, other = one.reshape(1, -1), other.reshape(1, -1)
    one, other = (x.reshape(len(x), -1).astype(np.float64) for x in (one, other))
    with np.errstate(all="ignore"):
        size = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        cosines = np.abs((one * other).sum(1)) / size
    known = cosines[np.isfinite(cosines)]
    return float(known.mean()) if known.size else 0.0


def are_activations(one: Node, other: Node) -> bool:
    """Are both functions of one tensor's elements, so that one may stand where the other did by mistake?"""
    return not (one.domain or other.domain) and {one.op_type, other.op_type} <= _ACTIVATIONS


def can_be(a: Reals, first: int, b: Reals, second: int) -> bool:
    """Have both operators as many weights, if both have some?"""
    one, other = _weights(a, first), _weights(b, second)
    return one is None or other is None or one.size == other.size or min(one.size, other.size) < _ENOUGH


def agreement(a: Reals, first: int, b: Reals, second: int) -> float:
    """The share of attributes and integer constants that are equal."""
    one, other = a.nodes[first].attributes, b.nodes[second].attributes
    equal = [str(one.get(name)) == str(other.get(name)) for name in {*one, *other}]
    indices = [
        [c for n in r.fixed(p) if (c := r.constant(n)) is not None and c.dtype.kind in "iu"]
        for r, p in ((a, first), (b, second))
    ]
    equal += [np.array_equal(x, y) for x, y in zip(*indices, strict=False)]
    return sum(equal) / len(equal) if equal else 1.0


def _weights(reals: Reals, place: int) -> Array | None:
    """The largest float constant of an operator, output channels first; None if it has at most one number."""
    node = reals.nodes[place]
    constants = ((reals.constant(name), at) for at, name in enumerate(node.inputs))
    found = [(value, at) for value, at in constants if value is not None and value.dtype.kind == "f"]
    if not found:
        return None
    weights, at = max(found, key=lambda pair: pair[0].size)
    if weights.size < 2:
        return None
    if kind(node) == "MatMul" and weights.ndim > 1 and at < 2:
        transposed = node.op_type == "Gemm" and node.attributes.get("transA" if at == 0 else "transB", 0)
        return weights if bool(transposed) == (at == 1) else np.moveaxis(weights, -1, 0)
    if kind(node) in ("Conv", "ConvTranspose"):
        return weights
    return weights.reshape(1, -1)
