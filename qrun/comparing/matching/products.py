"""Runs sums of products in native kernels, which give the same bits as the reference kernels, but much faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from qrun.declare.frozen import frozen
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node
from qrun.memory import Budget
from qrun.running.cpus import usable_cpus
from qrun.running.dispatch import NativeKernels
from qrun.running.engine import make_engine
from qrun.running.events import Clock
from qrun.running.plan import Step, step_of
from qrun.running.steps import Run, compute_step

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine

SUMS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul", "MatMulNBits", "LSTM", "GRU", "RNN"])
_KEPT = 2
"""The most sets of weights per node whose kernels are kept: the model's own, and one that is tried in their place."""


@frozen
class BoundNode:
    """A node with its kernels. model: an empty model with the constants that the node reads."""

    model: Model
    step: Step
    natives: NativeKernels | None


class NativeProducts:
    """Runs nodes of one model in native kernels, or in reference kernels without a native one or without an engine."""

    def __init__(self, model: Model) -> None:
        self._empty = replace(model, nodes=(), inputs=(), outputs=(), constants={}, types={}, defaults=())
        self._bound: dict[int, list[BoundNode]] = {}

    def run(
        self, index: int, node: Node, args: Sequence[Array | None], fixed: Sequence[bool], budget: Budget
    ) -> tuple[Array, ...]:
        """Run a node and return its outputs. fixed: for each input, is it a constant? Raises RunError."""
        names = tuple(["" if array is None else f"{at}" for at, array in enumerate(args)])
        constants = {name: array for name, array, f in zip(names, args, fixed, strict=False) if f and array is not None}
        bound = self._bind(index, node, names, constants)
        values = {name: array for name, array in zip(bound.step.node.inputs, args, strict=True) if array is not None}
        made, _ = compute_step(bound.step, bound.model, values, Run("exact", budget, False, bound.natives, Clock(), {}))
        return tuple(made)

    def _bind(self, index: int, node: Node, names: tuple[str, ...], constants: Mapping[str, Array]) -> BoundNode:
        """The node with its constants and native kernels; the last few are kept."""
        kept = self._bound.setdefault(index, [])
        for at, found in enumerate(kept):
            stored = found.model.constants
            alike = found.step.node.inputs == names and stored.keys() == constants.keys()
            if alike and all(stored[name] is array for name, array in constants.items()):
                kept.append(kept.pop(at))
                return found
        model = replace(self._empty, constants=constants)
        step = replace(step_of(model, node), node=replace(node, inputs=names))
        natives = None if self._engine is None else NativeKernels(model, self._engine, "exact")
        kept.append(BoundNode(model, step, natives))
        del kept[:-_KEPT]
        return kept[-1]

    @cached_property
    def _engine(self) -> Engine | None:
        """The native engine; None if it cannot be used."""
        try:
            return make_engine("", True, usable_cpus())
        except QrunError:
            return None
