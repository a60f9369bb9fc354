"""Native programs of a graph inside a node: made when it has run a few times with the same shapes, used from then on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from qrun.ir import Array
from qrun.running.dispatch import NativeKernels, undecided
from qrun.running.execution import Repeatable
from qrun.running.plan import Plan
from qrun.running.programs import KEPT, Forms, Programs, forms
from qrun.running.steps import NodeEvent, Run

OFTEN, AGAIN = 3, 64
"""Runs with the same shapes after which a program is made, which takes as long as some runs step by step; and how many later
it is made again, if it was dropped or could not be made."""
_NEVER = -(1 << 40)


class BodyPrograms:
    """The programs of one graph inside a node. Safe to use from several threads."""

    def __init__(self, natives: NativeKernels) -> None:
        self._programs = Programs(natives, natives.arith)
        self._runs: dict[Forms, int] = {}
        self._last: Repeatable | None = None
        self._lock = threading.Lock()

    def run(self, plan: Plan, given: Mapping[str, Array], run: Run) -> Sequence[Array] | None:
        """What the graph makes; None where it is to run step by step. given: what it is fed with, and takes from around it."""
        again = self._last
        if again is None or not again.takes(given):
            compiled = self._programs.ready(plan, given)
            if compiled is None:
                return None
            again = Repeatable.of(compiled, given)
        compiled, budget = again.compiled, run.budget.aside()
        try:
            ran = compiled.run(given, budget, run.inside, None, run.inside.timed)
        except Exception as error:  # step by step it either succeeds, or fails with the words of the reference
            if not undecided(error):
                self._last = None
                self._programs.drop(plan, given)
                with self._lock:
                    self._runs[forms(given)] = _NEVER
            return None
        self._last = again
        run.budget.peak = max(run.budget.peak, budget.peak)
        for event in compiled.timed(ran) if run.inside.timed else ():
            run.tell(event)
        constants = plan.model.constants
        return [ran.values[v.name] if v.name in ran.values else constants[v.name] for v in plan.model.outputs]

    def ran(self, plan: Plan, given: Mapping[str, Array], events: Sequence[NodeEvent]) -> None:
        """It ran step by step, with these events. Graphs with graphs inside are left to their steps."""
        if any(step.bodies for step in plan.steps):
            return
        key = forms(given)
        with self._lock:
            while key not in self._runs and len(self._runs) >= KEPT:
                del self._runs[next(iter(self._runs))]
            count = self._runs[key] = self._runs.get(key, 0) + 1
        if count > 0 and count % AGAIN == OFTEN:
            self._programs.learn(plan, given, tuple(events))
