"""A dry run: computes nothing, and tells the shapes, kernels and memory of a run as far as input shapes determine them.

Where they determine all, the native program is made before anything runs, and is the first to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrun.declare.collector import without_collector
from qrun.declare.frozen import frozen
from qrun.declare.stored import StoredArray, borrow, parts
from qrun.errors import QrunError
from qrun.ir import Array
from qrun.memory import Budget
from qrun.running.compiled import Compiled
from qrun.running.dispatch import KernelBinding
from qrun.running.drysteps import DryStep, DryValues, dry_step
from qrun.running.events import Clock, LaterEvents, NodeEvent, TensorInfo
from qrun.running.execution import hold_feeds, own_outputs
from qrun.running.plan import Plan
from qrun.running.programs import Programs
from qrun.running.steps import REFUSALS, Run, event_of


class DryEvents(LaterEvents):
    """The events of a dry run, without times and without observations in results of native kernels; built on first
    access."""

    def __init__(self, steps: Sequence[DryStep], run: Run) -> None:
        self._steps, self._infos, self._groups = steps, run.infos, run.groups

    def build(self) -> tuple[NodeEvent, ...]:
        """The nodes' events, without times."""
        return tuple(event_of(s.step, self._infos, s.made, s.bound, s.observations, self._groups) for s in self._steps)

    def __len__(self) -> int:
        return len(self._steps)


@frozen
class DryRun:
    """The findings of a dry run.

    bounds: the kernel of each step. infos: of all tensors, by name.
    peak_bytes: the most bytes held, without what looking at results takes; held_bytes: while each step runs. A run that
    does not observe counts nothing: all its values belong to its program.
    """

    events: Sequence[NodeEvent]
    bounds: tuple[KernelBinding, ...]
    infos: Mapping[str, TensorInfo]
    peak_bytes: int
    held_bytes: tuple[int, ...]


def dry_run(plan: Plan, feeds: Mapping[str, Array], run: Run) -> DryRun | None:
    """The events, kernels and memory of `execute` for checked feeds; builds all kernels. None if only computing tells.

    Raises what `execute` raises.
    """
    values = DryValues({**parts(plan.model.constants), **feeds})
    hold_feeds(plan.model, feeds, run.budget)
    run.infos.update(run.natives.constants if run.natives else {})
    steps, held = [], []
    for step in plan.steps:
        held.append(run.budget.live)
        told = dry_step(step, values, run)
        if told is None:
            return None
        steps.append(told)
        for name in step.frees if run.observe else ():
            freed = values.held.pop(name, None)
            if freed is not None:
                assert not isinstance(freed, StoredArray)
                run.budget.release(freed)
    if run.observe:
        own_outputs({name: borrow(values.held[name]) for name in plan.keep}, feeds, plan.model, run.budget)
    bounds = tuple([step.bound for step in steps])
    return DryRun(DryEvents(steps, run), bounds, run.infos, run.budget.peak, tuple(held))


def program_ahead(
    programs: Programs | None,
    plan: Plan,
    groups: Mapping[int, tuple[int, ...]],
    feeds: Mapping[str, Array],
    observe: bool,
    budget: Budget,
) -> tuple[Compiled, DryRun] | None:
    """Make the native program for these checked feeds before any run, if shapes suffice, and compile its kernels;
    `programs` keeps it. Returned with the dry run, which observes or not. budget: of the dry run only.

    An error is left to the run step by step, which reports it in the words of the reference kernel.
    """
    if programs is None or not programs.foretold:
        return None
    engine, run = programs.natives.engine, Run(programs.arith, budget, observe, programs.natives, Clock(), groups)
    with engine.kernels.speculate(), without_collector():
        try:
            dry = dry_run(plan, feeds, run)
        except (QrunError, *REFUSALS):
            return None
        if dry is None:
            programs.foretold = False
            return None
        compiled = programs.make_ahead(plan, feeds, dry.events, dry.infos, dry.bounds)
    if compiled is None:
        return None
    engine.kernels.finish(compiled.program.listing.kernels, engine.isa)
    return compiled, dry
