"""Foresees a run's memory: the sizes of the tensors still to be computed, as far as shapes tell, against the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, borrow
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node, TensorType
from qrun.memory import Budget, over_limit
from qrun.ops import Context, expansion
from qrun.running.derived import SMALL, foretell
from qrun.running.plan import Step

BYTES = 1 << 16
"""Memory that computing a small value may take."""


def foresee(model: Model, steps: Sequence[Step], values: Mapping[str, Part], live: int, allowed: int) -> None:
    """Raise MemoryLimitError, with the node where memory will run out, if the steps left need more than `allowed`
    bytes.

    values: the values in memory, by name; computed and fed ones take `live` bytes.
    Never raises for a run that the limit allows: an unknown size counts nothing, and neither does a possible view.
    """
    worst, first = live, None
    for need in _needs(model, steps, values, live):
        worst = max(worst, need[0])
        if first is None and need[0] > allowed:
            first = need
    if first is not None:
        needed, node, name, shape, nbytes = first
        error = over_limit(name, shape, nbytes, needed, allowed, least=worst)
        error.where = (model.label, f"node {node.index} {node.label} ({node.op}-{node.version})")
        raise error


def _needs(
    model: Model, steps: Sequence[Step], values: Mapping[str, Part], live: int
) -> Iterator[tuple[int, Node, str, tuple[int, ...], int]]:
    """For each output of the steps: the bytes held once it is made, its node, name, shape and own bytes (0 if
    unknown)."""
    known_tensors = _KnownTensors(model, values)
    sizes = {name: array.nbytes for name, array in values.items() if name not in model.constants}
    for step in steps:
        known_tensors.learn(step)
        views = step.definition.form == "moves"
        for name in filter(None, step.node.outputs):
            known = _known_form(known_tensors.types.get(name))
            shape, nbytes = (known.shape, math.prod(known.shape) * known.dtype.itemsize) if known else ((), 0)
            if views and nbytes <= sizes.get(step.node.inputs[0], nbytes):
                nbytes = 0
            sizes[name] = nbytes
            live += nbytes
            yield live, step.node, name, shape, nbytes
        live = max(0, live - sum(sizes.pop(name, 0) for name in step.frees))


class _KnownTensors:
    """Types and shapes of tensors before they are computed, as far as they are known, and the values of small ones.

    Small values are computed by the kernels, not by ONNX, whose propagation of data knows no limit.
    """

    def __init__(self, model: Model, values: Mapping[str, Part]) -> None:
        self.opsets = model.opsets
        self.types: dict[str, TensorType] = {}
        self.values: dict[str, Array] = {}
        for name, part in values.items():
            self._see(name, part)

    def _see(self, name: str, part: Part) -> None:
        """Note a tensor's type and shape, and its value if it is small."""
        if part.dtype.names:
            return
        self.types[name] = TensorType(name, part.dtype, part.shape)
        if part.size <= SMALL:
            self.values[name] = borrow(part)

    def learn(self, step: Step) -> None:
        """Add what is known about the step's outputs."""
        from qrun.ir.infer import infer_node

        node = step.node
        ctx = Context("exact", node.version, len(node.outputs), tuple(map(bool, node.outputs)), False, Budget(BYTES))
        try:
            for name, array in foretell(step, self._info, self.values.get, ctx).items():
                self._see(name, array)
        except (QrunError, ValueError, IndexError, OverflowError, ZeroDivisionError, MemoryError):
            return  # the run itself says so, at this node
        names = [name for name in node.inputs if name]
        if any(name and name not in self.types for name in node.outputs) and all(name in self.types for name in names):
            known = {name: self.types[name] for name in names}
            values = {n: self.values[n] for n in names if n in self.values}
            self.types |= infer_node(node, self.opsets, known, values, expansion)

    def _info(self, name: str) -> _Known | None:
        """The known type and shape of a tensor; None if unknown."""
        return _known_form(self.types.get(name))


@frozen
class _Known:
    """The type and shape of a tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _known_form(value: TensorType | None) -> _Known | None:
    """None where an axis or the type is unknown."""
    if value is None or value.dtype is None or value.shape is None:
        return None
    shape = tuple(d for d in value.shape if isinstance(d, int))
    return _Known(value.dtype, shape) if len(shape) == len(value.shape) else None
