"""What the tensors of a model stand for: scales and zero points of codes, and the steps of what was dequantized."""

from __future__ import annotations

from collections import ChainMap
from typing import Any

import numpy as np

from qrun.comparing.causes import spread
from qrun.comparing.matching_writer import is_dequantize, moves
from qrun.comparing.meanings import meaning
from qrun.comparing.sides import Values
from qrun.comparing.tensors import PLAIN, Code
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model


@frozen
class TensorScales:
    """Scales, zero points and steps of the tensors of a model whose inputs are `feeds`."""

    model: Model
    feeds: Values

    def code(self, name: str, dtype: np.dtype[Any]) -> Code:
        """Scale and zero point of a tensor of codes, if they are numbers; see `meaning`."""
        found = meaning(self.model, name)
        parameters = found.parameters(self.stored) if found is not None else None
        if found is None or parameters is None:
            return PLAIN
        scale, zero = parameters
        fits = scale.size == zero.size == 1 and (not found.zero or zero.dtype == dtype)
        return Code(float(scale.reshape(())), float(zero.reshape(()))) if fits else PLAIN

    def step(self, name: str, like: Array) -> Array | None:
        """What two neighbouring codes are apart in a tensor of real numbers that a DequantizeLinear made, as it broadcasts
        with `like`; through nodes that move elements if there is one scale. None if no such node made it.
        """
        whole = True
        while (node := self.model.producers.get(name)) is not None and node.inputs:
            if is_dequantize(node):
                scale = self.stored.get(node.inputs[1])
                if scale is None or not (whole or scale.size == 1):
                    return None
                return spread(scale, like, node.attributes.get("axis", 1))
            if not moves(node):
                return None
            name, whole = node.inputs[0], False
        return None

    @property
    def stored(self) -> Values:
        return ChainMap(self.model.constants, self.feeds)  # type: ignore[arg-type]
