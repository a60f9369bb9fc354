"""Tensors whose shapes differ from run to run, and one program for runs that differ in these only."""

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
    """What of a plan is not bound to shapes.

    tensors: may have any shape, or other values where values follow from shapes; only loose steps read them. steps:
    numbers of those that read or make such tensors. All else that they make has the shapes that were planned,
    which each run checks.
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
        """unsteady: tensors whose shapes follow from values: what is made of them may have any shape too.

        sized: those whose shapes follow from those of inputs, and such inputs. derived: those that follow from shapes.
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
    """A program for runs with inputs of which some may have any shape.

    shapes: of the others, None of these, and types; by name. compiled: None where too few steps read nothing of them.
    """

    shapes: Mapping[str, tuple[Shape | None, np.dtype[Any]]]
    compiled: Compiled | None

    def takes(self, feeds: Mapping[str, Array]) -> bool:
        """Whether inputs are those that the program was made for."""
        if len(feeds) != len(self.shapes):
            return False
        for name, array in feeds.items():
            shape, dtype = self.shapes.get(name, ((), None))
            if array.dtype != dtype or (shape is not None and array.shape != shape):
                return False
        return True


def varying(before: Sequence[NodeEvent], after: Iterable[NodeEvent]) -> frozenset[str]:
    """The tensors that had another type or shape in one of two runs of the same nodes."""
    infos = {info.name: info for event in before for info in event.outputs}
    made = (info for event in after for info in event.outputs)
    return frozenset(info.name for info in made if infos.get(info.name, info) != info)
