"""Observes a native program while it runs: finds what the reference kernels would have observed, from its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qrun.declare.frozen import replace
from qrun.declare.stored import borrow, parts
from qrun.ir import Array
from qrun.memory import Budget
from qrun.ops import Context, Observation
from qrun.ops._complete import NEVER
from qrun.running.events import Clock
from qrun.running.execution import RunResult, run_program
from qrun.running.kept.programs import KeptProgram, look_key
from qrun.running.plan import varying_names
from qrun.running.steps import observe_codes, reference


def run_observed(kept: KeptProgram, feeds: Mapping[str, Array], budget: Budget) -> RunResult:
    """Run the program on checked feeds, with the observations that a run step by step would make. Raises what
    `run_program` raises."""
    observer = Observer(kept, budget)
    budget.claim((kept.peak,), 1, "run")
    ran = run_program(kept.compiled, feeds, budget, True, observer)
    events = tuple(
        replace(event, observations=observer.found.get(item, told))
        for item, (event, told) in enumerate(zip(ran.events, kept.told or (), strict=True))
    )
    return replace(ran, events=events, peak_bytes=observer.peak, aside_ns=observer.clock.aside_ns)


class Observer:
    """Observes one run. items: the steps that it looks at; found: its observations, by step; peak: the most bytes that
    a run step by step would have held."""

    def __init__(self, kept: KeptProgram, budget: Budget) -> None:
        self.items: Sequence[int] = sorted(kept.checks)
        self.found: dict[int, tuple[Observation, ...]] = {}
        self.clock, self.peak = Clock(), kept.peak
        self._kept, self._budget = kept, budget

    def now(self) -> int:
        """Nanoseconds now, without the time that was set aside."""
        return self.clock.now()

    def look(self, item: int, value: Callable[[Any], Array]) -> None:
        """Run the reference kernel on the step's inputs, unless its result shows that there is nothing to observe."""
        plan, listing = self._kept.compiled.plan, self._kept.compiled.program.listing

        def seen(name: str) -> Array:
            return value(name if name in listing.given else look_key(item, name))

        with self.clock.aside:
            node = plan.model.nodes[item]
            check, count = self._kept.checks[item], len(node.outputs)
            if check != NEVER:
                made = tuple(seen(name) for name in node.outputs)
                if check(made if count > 1 else made[0]):
                    few = Context()
                    observe_codes(node, made, few)
                    if few.observations:
                        self.found[item] = (*(self._kept.told or ())[item], *few.observations)
                    return
            step = plan.steps[item]
            moves, constants = varying_names(plan, step), parts(plan.model.constants)
            args = [
                (seen(name) if name in moves else borrow(constants[name])) if name else None for name in node.inputs
            ]
            wanted = tuple(map(bool, node.outputs))
            budget = self._budget.aside()
            budget.live = self._kept.held.get(item, 0)
            ctx = Context(self._kept.compiled.arith, node.version, count, wanted, True, budget)
            reference(step, args, ctx)
            self.peak = max(self.peak, budget.peak)
            self.found[item] = tuple(ctx.observations)
