"""Makes flat plans: the nodes of inner graphs stand in place of the If, Loop or Scan that runs them. Shapes are known.

If: where the condition follows from shapes (exporters write such an If where a rank or a size decides what is done),
the branch that is taken replaces the If. Else both branches do: the nodes of each are guarded by a bool, which is the
condition or its negation, and a Where chooses each result of the If from the results of the branches.
Loop and Scan: where the number of turns follows from shapes and is small, the nodes of all turns replace the loop;
else, in graphs that run many times, it is replaced by one step that makes all turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from qrun.declare.frozen import replace
from qrun.declare.stored import lent
from qrun.ir import Array
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.flat.origins import CERTAIN, GoneNode, Origin
from qrun.running.flat.repeats import MakesRepeated, RepeatedSteps
from qrun.running.flat.steps import FlatLevel, Flattened, RefusedStep, Unforetold
from qrun.running.plan import Plan, Step


def flattened(
    plan: Plan,
    natives: NativeKernels,
    events: Sequence[NodeEvent],
    infos: Mapping[str, TensorInfo],
    shapes: Mapping[str, Array],
    bounds: Sequence[KernelBinding | None],
    repeats: MakesRepeated | None = None,
) -> Flattened | None:
    """The flat form of a plan; None if no node with graphs can be replaced.

    events, bounds: of the plan's steps. infos: of all tensors; shapes: values that follow from shapes; both for the
    input shapes that the flat plan is for.
    repeats: makes the operation of a step that makes all turns of a loop; None if there are to be no such steps.
    """
    if not any(step.bodies for step in plan.steps):
        return None
    return _Flattening(plan, natives, infos, shapes, events, repeats).of(events, bounds)


class _Flattening(RepeatedSteps):
    """Makes a flat plan."""

    def of(self, events: Sequence[NodeEvent], bounds: Sequence[KernelBinding | None]) -> Flattened | None:
        """The flat plan. events, bounds: of the steps of the plan."""
        whole = list(events)
        for number, step in enumerate(self.plan.steps):
            at = Origin(number)
            try:
                with self._or_not_at_all():
                    why = self._without(step, FlatLevel(self.around, {}, at, "", self.start), at)
            except Unforetold:
                whole[number] = self._as_it_is(step, number, events[number], bounds[number])
            else:
                whole[number] = replace(events[number], backend="reference" if why else "native", why=why)
        if not any(event is not old for event, old in zip(whole, events, strict=True)):
            return None
        return self.flat(self.plan.keep, whole)

    def _as_it_is(self, step: Step, number: int, event: NodeEvent, bound: KernelBinding | None) -> NodeEvent:
        """Add a step of the plan unchanged. It is bound again if a value that it reads follows from shapes only now.
        Returns the step's event."""
        node = replace(step.node, index=next(self.numbers), name=step.node.label)
        own = replace(step, node=node)
        self.natives.lenders[node.index] = self.around, step
        made = None
        if not (self.natives.derived - self.around.derived).isdisjoint(node.inputs):
            self._follow(own)
            with suppress(RefusedStep):
                made = self._told(own)
        if made is not None and made[0].kernel is not None:
            bound = made[0]
            event = replace(event, backend="native", why="", sections=made[1].sections)
        self._add(own, bound, event, Origin(number), "")
        return event

    def _without(self, step: Step, level: FlatLevel, at: Origin) -> str:
        """Add the steps that replace a step with graphs. at: its origin. Returns CERTAIN for a known If, else ""."""
        op = step.node.op_type if step.bodies and not step.node.domain else ""
        if op == "If":
            return self._choice(step, level, at)
        if op == "Loop" or (op == "Scan" and step.node.version >= 9):
            try:
                with self._or_not_at_all():
                    (self._unrolled_loop if op == "Loop" else self._unrolled_scan)(step, level, at)
            except RefusedStep:
                raise
            except Unforetold:
                self._repeated(step, level, at)
        else:
            raise Unforetold
        return ""

    def _choice(self, step: Step, level: FlatLevel, at: Origin) -> str:
        node = step.node
        name, outputs = level.of(node.inputs[0]), [(n, output) for n, output in enumerate(node.outputs) if output]
        condition = self.values.held.get(name)
        if condition is None or condition.dtype != np.bool_ or condition.size != 1 or condition.ndim > 1:
            raise Unforetold
        start = f"{level.start}{node.index}"
        if name in self.values.known:
            branch = "then_branch" if lent(condition).reshape(()) else "else_branch"
            stated = zip(step.bodies[branch].model.outputs, node.outputs, strict=False)
            called = {value.name: level.of(output) for value, output in stated if output}
            made = self._graph(step, branch, level, at, level.guard, {}, called)
            for n, output in outputs:
                if made[n] != level.of(output):
                    self._glue("Identity", (made[n],), level.of(output), at, level.guard)
            return CERTAIN
        opposite = self._glue("Not", (name,), f"{start}/not", at)
        taken, possible = [], []
        for branch, guard in (("then_branch", name), ("else_branch", opposite)):
            if level.guard:
                guard = self._glue("And", (level.guard, guard), f"{start}/{branch}", at)
            try:
                with self._or_not_at_all():
                    taken.append(self._graph(step, branch, level, at, guard, {}))
                possible.append(guard)
            except RefusedStep:
                continue
        if len(taken) == 1 and not level.guard:
            self.needed += possible
        elif len(taken) < 2:
            raise RefusedStep
        for n, output in outputs:
            if len(taken) == 1:
                self._glue("Identity", (taken[0][n],), level.of(output), at)
                continue
            first, second = (self.values.held[made[n]] for made in taken)
            if (first.shape, first.dtype) != (second.shape, second.dtype) or first.ndim < condition.ndim:
                raise Unforetold
            self._glue("Where", (name, taken[0][n], taken[1][n]), level.of(output), at, level.guard)
        return ""

    def _inner(self, step: Step, level: FlatLevel) -> None:
        """Add a step of a graph."""
        path = f"{level.source.path}{step.node.label}"
        if step.bodies:
            at = replace(level.source, path=path, around=(*level.source.around, path))
            why = self._without(step, level, at)
            self.inner.append(GoneNode(at, level.guard, step.node.op_type, why))
            return
        names = tuple([tuple([level.of(name) for name in part]) for part in (step.node.inputs, step.node.outputs)])
        node = replace(step.node, index=next(self.numbers), name=path, inputs=names[0], outputs=names[1])
        value = level.natives.model.constant(step.node.outputs[0]) if not step.node.inputs else None
        if value is not None:
            self._constant(names[1][0], value)
        self.natives.lenders[node.index] = level.natives, step
        self._forced(replace(step, node=node), replace(level.source, path=path), level.guard)
