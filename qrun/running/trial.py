"""Trial runs without computation: whether a model accepts inputs of these sizes."""

from __future__ import annotations

from collections.abc import Mapping

from qrun.declare.collector import without_collector
from qrun.declare.stored import borrow, parts
from qrun.errors import MemoryLimitError, QrunError, TimeLimitError
from qrun.ir import Array
from qrun.memory import Budget
from qrun.ops import Arith
from qrun.running.drysteps import DryValues, dry_step
from qrun.running.events import Clock
from qrun.running.plan import Step
from qrun.running.runs import Prepared
from qrun.running.steps import REFUSALS, Run, compute_step

_ELEMENTS = 1 << 20
"""The most input elements of a step that is computed because its result shapes depend on values, such as If or
NonMaxSuppression."""


def is_refused(chosen: Prepared, feeds: Mapping[str, Array], arith: Arith, budget: Budget) -> bool:
    """Whether a run with these checked feeds ends in an error, as far as shapes and small values show.

    Steps whose result shapes are known are not computed; others are, with zeros for unknown values. An error in a step
    that reads results of zeros does not count, and neither does one after the time of the budget.
    """
    assert chosen.natives is not None
    trial = _Trial(chosen, feeds, arith, budget)
    with chosen.natives.engine.kernels.speculate(), without_collector():
        return trial.has_refusal()


class _Trial:
    def __init__(self, chosen: Prepared, feeds: Mapping[str, Array], arith: Arith, budget: Budget) -> None:
        self._chosen = chosen
        self._values = DryValues({**parts(chosen.plan.model.constants), **feeds})
        self._guessed: set[str] = set()
        clock = Clock()
        self._dry = Run(arith, budget, False, chosen.natives, clock, {})
        self._dry.infos.update(chosen.natives.constants if chosen.natives else {})
        self._computing = Run(arith, budget, False, None, clock, {})

    def has_refusal(self) -> bool:
        """Whether a step refuses its inputs."""
        held = self._values.held
        for step in self._chosen.plan.steps:
            guesses = not self._guessed.isdisjoint(step.reads)
            try:
                self._dry.budget.in_time()
                if dry_step(step, self._values, self._dry) is None:
                    guesses |= not self._values.known.issuperset(filter(None, step.reads))
                    if not self._compute_small(step):
                        return False
            except TimeLimitError:
                return False
            except MemoryLimitError:
                return True
            except (QrunError, *REFUSALS):
                return self._guessed.isdisjoint(step.reads)
            if guesses:
                self._guessed.update(step.node.outputs)
            for name in step.frees:
                held.pop(name, None)
        return False

    def _compute_small(self, step: Step) -> bool:
        """Whether the step is small enough to be computed here; its outputs are then put into the values."""
        values = self._values
        read = {name: values.held[name] for name in step.reads if name}
        if sum(array.size for array in read.values()) > _ELEMENTS:
            return False
        blank = {name: array if array.dtype.names else values.part_of(name) for name, array in read.items()}
        around = {name: borrow(part) for name, part in blank.items() if part is not None}
        made, _ = compute_step(step, self._chosen.plan.model, around, self._computing)
        for name, array in zip(step.node.outputs, made, strict=False):
            if name:
                values.held[name] = array
                if values.known.issuperset(read):
                    values.known.add(name)
        return True
