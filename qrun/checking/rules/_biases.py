"""Stored int32 biases, in integer operators and behind DequantizeLinear, and the scale that each node gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.checking.rules._parameters import TABLE, bias, quantizers
from qrun.checking.rules._scope import Scope, nodes
from qrun.checking.rules._weights import dequantized
from qrun.ir import Array, Model, Node


@dataclass(frozen=True, slots=True, eq=False)
class StoredBias:
    """A stored bias. scale: its real unit, in float64, flat; None if that is not stored. node: that which adds it."""

    scope: Scope
    node: Node
    place: int
    param: str
    tensor: str
    value: Array
    scale: Array | None

    @property
    def where(self) -> dict[str, Any]:
        """The Finding fields that say where."""
        return {**self.scope.at(self.node), "tensor": f"{self.tensor} (input {self.place}, {self.param})"}


def biases(model: Model) -> Iterator[StoredBias]:
    """Every stored int32 bias, with the node that adds it."""
    for scope, node in nodes(model, (*TABLE, ("", "Conv"), ("", "Gemm"))):
        found = _of_float(scope, node) if node.op_type in ("Conv", "Gemm") and not node.domain else None
        found = found or _of_integer(scope, node)
        if found is not None:
            yield found


def _of_integer(scope: Scope, node: Node) -> StoredBias | None:
    b = bias(node)
    value = scope.value(b.bias.tensor) if b and b.integer else None
    if b is None or value is None or value.dtype != np.int32:
        return None
    scales = [q.scale and scope.value(q.scale.tensor) for q in quantizers(node) if not q.is_output]
    stored = [s for s in scales if isinstance(s, np.ndarray) and s.size and s.ndim < 2 and s.dtype.kind not in "Oc"]
    unit = None
    if len(scales) == 2 and len(stored) == 2 and 1 in (stored[0].size, stored[1].size):
        with np.errstate(all="ignore"):
            unit = (stored[0].astype(np.float64).reshape(-1) * stored[1].astype(np.float64).reshape(-1)).reshape(-1)
    return StoredBias(scope, node, b.bias.place, b.bias.name, b.bias.tensor, value, unit)


def _of_float(scope: Scope, node: Node) -> StoredBias | None:
    behind = dequantized(scope, node.inputs[2]) if len(node.inputs) > 2 else None
    value = behind.scope.value(behind.tensor) if behind else None
    if behind is None or value is None or value.dtype != np.int32:
        return None
    scale = behind.scale
    unit = scale.astype(np.float64).reshape(-1) if scale is not None and scale.dtype.kind not in "Oc" else None
    return StoredBias(scope, node, 2, "B" if node.op_type == "Conv" else "C", behind.tensor, value, unit)
