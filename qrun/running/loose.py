"""Tensors whose shapes change from run to run, and one program for runs that differ only in these shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.running.compiled import Compiled
from qrun.running.events import NodeEvent
from qrun.running.plan import Plan

Shape = tuple[int, ...]


@frozen
class Loose:
    """The part of a plan that a program does not bind to shapes.

    tensors: may have any shape, or, where their values follow from shapes, any values; only loose steps read them.
    steps: numbers of the loose steps, which read or make such tensors. Their other outputs must have the planned
    shapes, which each run checks.
    """

    tensors: frozenset[str]
    steps: frozenset[int]

    @classmethod
    def of(
        cls,
        plan: Plan,
        unsteady: frozenset[str] = frozenset(),
        sized: frozenset[str] = frozenset(),
        derived: frozenset[str] = frozenset(),
    ) -> Loose:
        """unsteady: tensors whose shapes follow from values; all that is computed from them may have any shape too.

        sized: inputs whose shapes change, and tensors whose shapes follow from these. derived: see `derived_tensors`.
        """
        free, tensors, steps = set[str](), set(sized), set[int]()
        for number, step in enumerate(plan.steps) if unsteady or sized else ():
            outputs = [name for name in step.node.outputs if name]
            if not (unsteady.isdisjoint(outputs) and free.isdisjoint(step.reads)):
                free.update(outputs)
                tensors.update(outputs)
            elif tensors.isdisjoint(step.reads) and sized.isdisjoint(outputs):
                continue
            tensors.update(derived.intersection(outputs))
            steps.add(number)
        return cls(frozenset(tensors), frozenset(steps))


@frozen
class AnyShapes:
    """A program for runs in which some inputs may have any shape.

    shapes: by input name, shape (None: any) and type. compiled: None where too many steps depend on these inputs.
    """

    shapes: Mapping[str, tuple[Shape | None, np.dtype[Any]]]
    compiled: Compiled | None

    def takes(self, feeds: Mapping[str, Array]) -> bool:
        """Whether these inputs fit `shapes`, for which the program was made."""
        if len(feeds) != len(self.shapes):
            return False
        for name, array in feeds.items():
            shape, dtype = self.shapes.get(name, ((), None))
            if array.dtype != dtype or (shape is not None and array.shape != shape):
                return False
        return True


def varying(before: Sequence[NodeEvent], after: Iterable[NodeEvent]) -> frozenset[str]:
    """The tensors whose type or shape differed between two runs of the same nodes."""
    infos = {info.name: info for event in before for info in event.outputs}
    made = (info for event in after for info in event.outputs)
    return frozenset(info.name for info in made if infos.get(info.name, info) != info)
