"""Steps without computation: the shapes of a step's outputs and its observations, as far as input shapes tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from qrun.declare.collector import without_collector
from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, borrow
from qrun.ir import Array
from qrun.memory import Budget
from qrun.ops import Context, Observation
from qrun.running.derived import SMALL, blank
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import Clock
from qrun.running.plan import Plan, Step
from qrun.running.steps import Run, observe, reference
from qrun.running.typecheck import check_types

LARGEST = 1 << 26
"""The most bytes of a value in a dry run; the cost of binding its readers grows with it."""


@frozen
class DryStep:
    """A step and its kernel binding in a dry run. made: the shapes of its outputs."""

    step: Step
    bound: KernelBinding
    made: tuple[tuple[int, ...], ...]
    observations: tuple[Observation, ...]


class DryValues:
    """The values of a dry run. held: by name, an array as large as the value, or one without memory where memory is not
    counted; known: names of the values whose elements are known too."""

    def __init__(self, known: dict[str, Part]) -> None:
        self.held, self.known = known, set(known)

    def part_of(self, name: str) -> Part | None:
        """The value as kernels are bound to it: zeros in place of unknown elements."""
        if not name:
            return None
        array = self.held[name]
        return array if name in self.known else blank(array.shape, array.dtype)


def dry_step(step: Step, values: DryValues, run: Run, told: bool = False) -> DryStep | None:
    """Put a step's outputs into `values`; None where only computing tells them. Raises what the step raises. told:
    accept only shapes that the native kernel tells, and call no kernel for others."""
    node, natives = step.node, run.natives
    assert natives is not None
    derived, held, known = natives.derived, values.held, values.known
    # a small value that follows from shapes must have known elements
    if step.bodies or any(n in derived and n not in known and held[n].size <= SMALL for n in node.inputs):
        return None
    args = [held[name] if name in known else values.part_of(name) for name in node.inputs]
    check_types(step, args)
    bound = natives.bind(step, args, run.budget)
    follows = derived.issuperset(filter(None, node.outputs)) and (
        step.definition.form == "shape"
        or (known.issuperset(filter(None, node.inputs)) and all(a is None or a.size <= SMALL for a in args))
    )
    if not follows and (bound.kernel is None or (told and not bound.shaped)):
        return None
    made, observations = _outputs_of(step, values, args, bound, run, follows)
    for name, array in zip(node.outputs, made, strict=False):
        if name:
            if array.nbytes > LARGEST:
                return None
            held[name] = array
            if run.observe:
                run.budget.hold_made(array, name)
            if follows:
                known.add(name)
    run.inform(node, args, made)
    return DryStep(step, bound, tuple([array.shape for array in made]), observations)


def _outputs_of(
    step: Step, values: DryValues, args: list[Part | None], bound: KernelBinding, run: Run, follows: bool
) -> tuple[Sequence[Array], tuple[Observation, ...]]:
    """A step's outputs, with their elements where it `follows` from shapes, and its observations."""
    node, kernel = step.node, bound.kernel
    if not (follows or run.observe or kernel is None):
        shaped = bound.shaped
        if shaped:
            return shaped, ()
    ctx = Context(run.arith, node.version, len(node.outputs), tuple(map(bool, node.outputs)), run.observe, run.budget)
    held = [values.held[name] if name else None for name in node.inputs]
    made = _compute(step, bound, args, ctx) if follows else _room(bound, held, ctx)
    return made if isinstance(made, tuple) else (made,), tuple(ctx.observations)


def _room(bound: KernelBinding, args: Sequence[Part | None], ctx: Context) -> Any:
    """Arrays as large as a native kernel's results; the kernel's own claims of memory are checked first."""
    kernel = bound.kernel
    assert kernel is not None
    for shape, itemsize, what in bound.claims:
        ctx.claim(shape, itemsize, what)
    return kernel.room(args) if kernel.room else kernel.run([borrow(part) for part in args])


def _compute(step: Step, bound: KernelBinding, given: list[Part | None], ctx: Context) -> Any:
    """The results of a step that reads only shapes and small values, in arrays that take the memory of a real run."""
    args = [borrow(part) for part in given]
    if bound.kernel is None or not ctx.observing:
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


def bind_ahead(plan: Plan, values: Mapping[str, Part], natives: NativeKernels, budget: Budget) -> None:
    """Build the native kernels of a plan's steps before the first one runs, as far as shapes tell their inputs: a
    thread compiles them while the next ones are planned. values: constants and feeds.

    A step that cannot be bound fails when it runs, with its place in the model.
    """
    known, run = DryValues(dict(values)), Run(natives.arith, budget.aside(), False, natives, Clock(), {})
    with without_collector():
        for step in plan.steps:
            if known.held.keys() >= set(filter(None, step.node.inputs)):
                with suppress(Exception):
                    dry_step(step, known, run, told=True)
