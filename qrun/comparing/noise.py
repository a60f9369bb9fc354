"""By how much a tensor may differ because sums were added up in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import isfinite, pi, sqrt

import numpy as np

from qrun.comparing.causes.sums import SUMS
from qrun.comparing.differences import Tolerance, magnitude
from qrun.comparing.matching.operators import moves
from qrun.comparing.sides import Results
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node

_SUMS = (
    *SUMS,
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "LRN"),
)
_SLOPES = {
    **dict.fromkeys(("Relu", "LeakyRelu", "Clip", "Abs", "Neg", "Tanh", "Max", "Min", "MaxPool"), 1.0),
    **dict.fromkeys(("Concat", "Pad", "Identity"), 1.0),
    "Erf": 2 / sqrt(pi),
    "Gelu": 1.13,
}
"""The steepest slope of elementwise operators, and of those that choose elements of several inputs."""


def noises(model: Model, sides: Sequence[Results], tolerance: Tolerance) -> Mapping[str, float]:
    """What the `eps` of a tolerance allow in each tensor, absolute; tensors in which they allow nothing are left out.

    The rounding error of a sum is in proportion to its terms, even where these cancel (Higham 2002, section 4.2): a
    node that sums is allowed `eps` times the largest finite magnitude of its result, on the side where that is least.
    What is computed from such results inherits the noise to first order: nodes that move elements hand it on as it is,
    others multiply it by their slope, additions add it up. All other nodes hand on nothing.
    """
    work = _Noises(model.constants, sides)
    for node in model.nodes if tolerance.eps else ():
        for name in filter(None, node.outputs):
            allowed = tolerance.noise(work.reached(name)) if _is(node, *_SUMS) else work.inherited(node)
            if allowed and isfinite(allowed):
                work.found[name] = allowed
    return work.found


@frozen
class _Noises:
    constants: Mapping[str, Array]
    sides: Sequence[Results]
    found: dict[str, float] = field(default_factory=dict)

    def reached(self, name: str) -> float:
        """The largest magnitude of a tensor, on the side where it is smaller."""
        arrays = [array for side in (self.constants, *self.sides) if (array := side.get(name)) is not None]
        return min(map(magnitude, arrays), default=0.0)

    def inherited(self, node: Node) -> float:
        noises = [self.found.get(name, 0.0) for name in node.inputs]
        if not any(noises):
            return 0.0
        if _is(node, "Add", "Sub", "Sum"):
            return sum(noises)
        if _is(node, "Mul"):
            return sum(noise * self.reached(other) for noise, other in zip(noises, reversed(node.inputs), strict=True))
        if _is(node, "Div", "BatchNormalization"):
            return noises[0] * self._slope(node)
        return max(noises) * (1.0 if moves(node) else _SLOPES.get(node.op_type, 0.0))

    def _slope(self, node: Node) -> float:
        """The largest factor by which a linear node multiplies its first input; 0 if its constants are not known."""
        parameters = [self.constants.get(name) for name in node.inputs[1:]]
        with np.errstate(all="ignore"):
            if node.op_type == "Div" and parameters[0] is not None:
                return magnitude(1 / parameters[0])
            if node.op_type == "BatchNormalization" and parameters[0] is not None and parameters[3] is not None:
                return magnitude(parameters[0] / np.sqrt(parameters[3] + node.attributes.get("epsilon", 1e-5)))
        return 0.0


def _is(node: Node, *names: str) -> bool:
    return node.op_type in names and node.domain in ("", "com.microsoft")
