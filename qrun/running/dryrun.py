"""A run that computes nothing: what a run step by step would tell, as far as shapes tell it.

Where they tell all of it, the native program is made before anything runs, and is the first to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from qrun.declare.collector import uncollected
from qrun.declare.frozen import frozen
from qrun.errors import QrunError
from qrun.ir import Array
from qrun.memory import Budget
from qrun.ops import Context, Observation
from qrun.running.derived import SMALL, blank
from qrun.running.dispatch import KernelBinding
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.execution import hold_feeds, own_outputs
from qrun.running.keptprograms import KeptProgram, observing_program
from qrun.running.plan import Plan, Step
from qrun.running.programs import Programs
from qrun.running.steps import REFUSALS, Run, event_of, observe, reference
from qrun.running.times import Clock
from qrun.running.typecheck import check_types

LARGEST = 1 << 26
"""Bytes of a value that is made without being computed; what binding its readers takes grows with it."""


@frozen
class DryStep:
    """A step, bound to what it would read. made: shapes of what it would make."""

    step: Step
    bound: KernelBinding
    made: tuple[tuple[int, ...], ...]
    observations: tuple[Observation, ...]


class DryEvents(Sequence[NodeEvent]):
    """What would happen at each step, without times, and without what is observed in results of native kernels; made when
    somebody looks at it."""

    def __init__(self, steps: Sequence[DryStep], run: Run) -> None:
        self._steps, self._infos, self._groups = steps, run.infos, run.groups

    @cached_property
    def _events(self) -> tuple[NodeEvent, ...]:
        return tuple(event_of(s.step, self._infos, s.made, s.bound, s.observations, self._groups) for s in self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, at: int) -> NodeEvent: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[NodeEvent, ...]: ...

    def __getitem__(self, at: int | slice) -> NodeEvent | tuple[NodeEvent, ...]:
        return self._events[at]


@frozen
class DryRun:
    """What a run would tell.

    bounds: what runs each step. infos: of all tensors, by name.
    peak_bytes: held at most, but for what looking at results takes; held_bytes: while each step runs. Of a run that does not
                observe nothing is counted: all values are those of its program.
    """

    events: Sequence[NodeEvent]
    bounds: tuple[KernelBinding, ...]
    infos: Mapping[str, TensorInfo]
    peak_bytes: int
    held_bytes: tuple[int, ...]


def dry_run(plan: Plan, feeds: Mapping[str, Array], run: Run) -> DryRun | None:
    """What `execute` would tell of these checked feeds, with all native kernels made; None where only computing tells.

    Raises what that raises.
    """
    values = _Values({**plan.model.constants, **feeds})
    hold_feeds(plan.model, feeds, run.budget)
    steps, held = [], []
    for step in plan.steps:
        held.append(run.budget.live)
        told = _step(step, values, run)
        if told is None:
            return None
        steps.append(told)
        for name in step.frees if run.observe else ():
            freed = values.held.pop(name, None)
            if freed is not None:
                run.budget.release(freed)
    if run.observe:
        own_outputs({name: values.held[name] for name in plan.keep}, feeds, plan.model, run.budget)
    bounds = tuple([step.bound for step in steps])
    return DryRun(DryEvents(steps, run), bounds, run.infos, run.budget.peak, tuple(held))


def program_ahead(
    programs: Programs | None,
    plan: Plan,
    groups: Mapping[int, tuple[int, ...]],
    feeds: Mapping[str, Array],
    observe: bool,
    budget: Budget,
) -> KeptProgram | None:
    """Make the native program for these checked feeds before any run, if shapes tell all that it takes, and compile its
    kernels. Returns it if it is to observe, and can; `programs` has it in any case. budget: of what is never held.

    What a run step by step refuses is left to that, which tells it in the words of the reference.
    """
    if programs is None or not programs.foretold:
        return None
    engine, run = programs.natives.engine, Run(programs.arith, budget, observe, programs.natives, Clock(), groups)
    with engine.kernels.foreseeing(), uncollected():
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
    return observing_program(compiled, dry.events, dry.peak_bytes, dry.held_bytes) if observe else None


class _Values:
    """held: arrays that take the memory that values take, or none where that is not counted, by name; known: those that have
    their elements too."""

    def __init__(self, known: dict[str, Array]) -> None:
        self.held, self.known = known, set(known)

    def shown(self, name: str) -> Array | None:
        """The value as kernels are bound to it: zeros in place of elements that are not known."""
        if not name:
            return None
        array = self.held[name]
        return array if name in self.known else blank(array.shape, array.dtype)


def _step(step: Step, values: _Values, run: Run) -> DryStep | None:
    node, natives = step.node, run.natives
    assert natives is not None
    guessed = [name for name in node.inputs if name and name not in values.known]
    if step.bodies or any(name in natives.derived and values.held[name].size <= SMALL for name in guessed):
        return None
    args = [values.held[name] if name in values.known else values.shown(name) for name in node.inputs]
    check_types(step, args)
    bound = natives.bind(step, args, run.budget)
    follows = natives.derived.issuperset(filter(None, node.outputs)) and (
        step.definition.form == "shape" or (not guessed and all(a is None or a.size <= SMALL for a in args))
    )
    if not (follows or bound.kernel is not None):
        return None
    made, observations = _made(step, values, args, bound, run, follows)
    for name, array in zip(node.outputs, made, strict=False):
        if name:
            if array.nbytes > LARGEST:
                return None
            values.held[name] = array
            if run.observe:
                run.budget.hold_made(array, name)
            if follows:
                values.known.add(name)
    run.inform(node, args, made)
    return DryStep(step, bound, tuple([array.shape for array in made]), observations)


def _made(
    step: Step, values: _Values, args: list[Array | None], bound: KernelBinding, run: Run, follows: bool
) -> tuple[Sequence[Array], tuple[Observation, ...]]:
    """What a step makes, with its elements where it `follows` from shapes, and what is observed."""
    node, kernel = step.node, bound.kernel
    if not (follows or run.observe or kernel is None):
        shaped = bound.shaped
        if shaped:
            return shaped, ()
    ctx = Context(run.arith, node.version, len(node.outputs), tuple(map(bool, node.outputs)), run.observe, run.budget)
    held = [values.held[name] if name else None for name in node.inputs]
    made = _told(step, bound, args, ctx) if follows else _room(bound, held, ctx)
    return made if isinstance(made, tuple) else (made,), tuple(ctx.observations)


def _room(bound: KernelBinding, args: list[Array | None], ctx: Context) -> Any:
    """The memory that a native kernel's results take."""
    kernel = bound.kernel
    assert kernel is not None
    for shape, itemsize, what in bound.claims:
        ctx.claim(shape, itemsize, what)
    return (kernel.room or kernel.run)(args)


def _told(step: Step, bound: KernelBinding, args: list[Array | None], ctx: Context) -> Any:
    """The results of a step that sees shapes and small values only, in the memory that they take."""
    if bound.kernel is None:
        return reference(step, args, ctx)
    made = _room(bound, args, ctx)
    quiet = Context(ctx.arith, ctx.version, ctx.outputs, ctx.wanted, False)
    found = reference(step, args, quiet)
    pairs = zip(*(a if isinstance(a, tuple) else (a,) for a in (made, found)), strict=False)
    for room, values in pairs:
        if room.flags.writeable:
            room[...] = values
    observe(step, args, bound, made, ctx)
    return made
