"""Plans in which the nodes of branches stand in place of the Ifs that run them, for inputs of known shapes.

Where a condition follows from shapes, as exporters write them where a rank or a size decides what is to be done, the nodes
are those of the branch that it takes. Else they are those of both branches, each guarded by a bool: the condition, or what
is true where that is not; and each result of the If is chosen between what the branches make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.errors import QrunError
from qrun.ir import Array, Node
from qrun.ir.schema import OPSETS, version
from qrun.memory import Budget
from qrun.running.derived import blank
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.drysteps import DryValues, dry_step
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.flat import CERTAIN, Flat, InnerIf, Origin
from qrun.running.plan import Plan, Step, step_of
from qrun.running.steps import REFUSALS, Run, event_of
from qrun.running.times import Clock


@frozen
class Flattened:
    """A flat plan, ready to become a program. bounds: of its steps. infos: of all tensors; shapes: values that follow from
    shapes."""

    plan: Plan
    natives: NativeKernels
    bounds: Sequence[KernelBinding | None]
    infos: Mapping[str, TensorInfo]
    shapes: Mapping[str, Array]
    flat: Flat


def flattened(
    plan: Plan,
    natives: NativeKernels,
    events: Sequence[NodeEvent],
    infos: Mapping[str, TensorInfo],
    shapes: Mapping[str, Array],
    bounds: Sequence[KernelBinding | None],
) -> Flattened | None:
    """The plan with branches in place of Ifs; None where none can be.

    events, bounds: of its steps. infos: of all tensors, shapes: values that follow from shapes, for inputs of these shapes.
    """
    if not any(map(_is_choice, plan.steps)):
        return None
    return _Flattening(plan, natives, infos, shapes).of(events, bounds)


class _Unforetold(Exception):
    """Only a run tells what a step makes, or it has no native kernel."""


@frozen
class _Level:
    """The graph whose steps are looked at. natives: its kernels; names: what the flat plan calls its tensors, where that differs.

    source: of its nodes but for their labels. guard: of its steps. start: of new names.
    """

    natives: NativeKernels
    names: Mapping[str, str]
    source: Origin
    guard: str
    start: str

    def of(self, name: str) -> str:
        return self.names.get(name, name)


class _Flattening:
    """Makes a flat plan, step by step."""

    def __init__(
        self, plan: Plan, natives: NativeKernels, infos: Mapping[str, TensorInfo], shapes: Mapping[str, Array]
    ) -> None:
        self.plan, self.around, self.infos = plan, natives, infos
        self.constants = dict(plan.model.constants)
        self.model = replace(plan.model, constants=self.constants)
        self.natives = NativeKernels(self.model, natives.engine, natives.arith, derived=natives.derived)
        self.dry = Run(natives.arith, Budget(), False, self.natives, Clock(), {})
        self.values = DryValues({**self.constants, **shapes})
        for name, info in infos.items():
            self.values.held.setdefault(name, blank(info.shape, info.dtype))
        self.steps, self.bounds, self.events = list[Step](), list[KernelBinding | None](), list[NodeEvent]()
        self.sources, self.inner, self.guards = list[Origin](), list[InnerIf](), dict[int, str]()
        self.numbers = count()
        self.start = ":"
        while any(name.startswith(self.start) for name in (*infos, *self.constants)):
            self.start += ":"

    def of(self, events: Sequence[NodeEvent], bounds: Sequence[KernelBinding | None]) -> Flattened | None:
        """The flat plan. events, bounds: of the steps of the plan."""
        whole = list(events)
        for number, step in enumerate(self.plan.steps):
            try:
                if not _is_choice(step):
                    raise _Unforetold
                with self._or_not_at_all():
                    certain = self._choice(
                        step, _Level(self.around, {}, Origin(number), "", self.start), Origin(number)
                    )
            except _Unforetold:
                whole[number] = self._as_it_is(step, number, events[number], bounds[number])
            else:
                backend, why = ("reference", CERTAIN) if certain else ("native", "")
                whole[number] = replace(events[number], backend=backend, why=why)
        if len(self.steps) == len(self.plan.steps) and not any(source.path for source in self.sources):
            return None
        model = replace(self.model, nodes=tuple([step.node for step in self.steps]), constants=self.constants)
        self.natives.model = model
        infos = {**self.infos, **self.dry.infos}
        shapes = {name: self.values.held[name] for name in self.values.known if name not in self.constants}
        flat = Flat(self.events, self.sources, self.guards, self.inner, whole)
        return Flattened(Plan(model, tuple(self.steps), self.plan.keep), self.natives, self.bounds, infos, shapes, flat)

    @contextmanager
    def _or_not_at_all(self) -> Iterator[None]:
        """What is added in the block is taken back if it fails."""
        length, derived, inner = len(self.steps), self.natives.derived, len(self.inner)
        known = set(self.values.known)
        try:
            yield
        except _Unforetold:
            for made in (self.steps, self.bounds, self.events, self.sources):
                del made[length:]
            del self.inner[inner:]
            for number in [n for n in self.guards if n >= length]:
                del self.guards[number]
            self.natives.derived = derived
            self.values.known.intersection_update(known)
            for name, info in self.infos.items():
                if name not in known:
                    self.values.held[name] = blank(info.shape, info.dtype)
            raise

    def _as_it_is(self, step: Step, number: int, event: NodeEvent, bound: KernelBinding | None) -> NodeEvent:
        """Add a step of the plan; what it reads may follow from shapes now, so that it is bound again. The event of the step."""
        node = replace(step.node, index=next(self.numbers), name=step.node.label)
        own = replace(step, node=node)
        self.natives.lenders[node.index] = self.around, step
        made = None
        if not (self.natives.derived - self.around.derived).isdisjoint(node.inputs):
            self._follow(own)
            made = self._told(own)
        if made is not None and made[0].kernel is not None:
            bound = made[0]
            event = replace(event, backend="native", why="", sections=made[1].sections)
        self._add(own, bound, event, Origin(number), "")
        return event

    def _choice(self, step: Step, level: _Level, at: Origin) -> bool:
        """Add what an If does; at: where it is. Whether its condition follows from shapes."""
        name, outputs = level.of(step.node.inputs[0]), list(filter(None, step.node.outputs))
        condition = self.values.held.get(name)
        if condition is None or condition.dtype != np.bool_ or condition.size != 1 or condition.ndim > 1:
            raise _Unforetold
        if name in self.values.known:
            branch = "then_branch" if condition.reshape(()) else "else_branch"
            made = self._branch(step, branch, level, at, level.guard, True)
            for output in outputs:
                if made[output] != level.of(output):
                    self._glue("Identity", (made[output],), level.of(output), at, level.guard)
            return True
        opposite = self._glue("Not", (name,), f"{level.start}{step.node.index}/not", at)
        taken = []
        for branch, guard in (("then_branch", name), ("else_branch", opposite)):
            if level.guard:
                guard = self._glue("And", (level.guard, guard), f"{level.start}{step.node.index}/{branch}", at)
            taken.append(self._branch(step, branch, level, at, guard, False))
        for output in outputs:
            pair = taken[0][output], taken[1][output]
            first, second = (self.values.held[one] for one in pair)
            if (first.shape, first.dtype) != (second.shape, second.dtype) or first.ndim < condition.ndim:
                raise _Unforetold
            self._glue("Where", (name, *pair), level.of(output), at, level.guard)
        return False

    def _branch(self, step: Step, name: str, level: _Level, at: Origin, guard: str, certain: bool) -> Mapping[str, str]:
        """Add the steps of a branch. By outputs of the If, what makes them. certain: whether that is what they are called, where
        it can be."""
        body, node = step.bodies[name], step.node
        graph = body.model
        if graph.inputs or len(graph.outputs) < len(node.outputs):
            raise _Unforetold
        start = f"{level.start}{node.index}/{name}/"
        produced = dict.fromkeys(made for inner in graph.nodes for made in inner.outputs if made)
        own = {inner: f"{start}{inner}" for inner in (*graph.constants, *produced)}
        stated = [(output, value.name) for output, value in zip(node.outputs, graph.outputs, strict=False) if output]
        for output, made in reversed(stated if certain else ()):
            if made in produced:
                own[made] = level.of(output)
        for inner, array in graph.constants.items():
            self._constant(own[inner], array)
        path = f"{at.path}/{name}/" if at.path else f"{name}/"
        inside = _Level(level.natives.inside(step, name), {**level.names, **own}, replace(at, path=path), guard, start)
        for one in body.steps:
            self._inner(one, inside)
        return {output: inside.of(made) for output, made in stated}

    def _inner(self, step: Step, level: _Level) -> None:
        """Add a step of a branch."""
        path = f"{level.source.path}{step.node.label}"
        if _is_choice(step):
            at = replace(level.source, path=path, around=(*level.source.around, path))
            certain = self._choice(step, level, at)
            self.inner.append(InnerIf(at, level.guard, CERTAIN if certain else ""))
            return
        if step.bodies:
            raise _Unforetold
        names = tuple([tuple([level.of(name) for name in part]) for part in (step.node.inputs, step.node.outputs)])
        node = replace(step.node, index=next(self.numbers), name=path, inputs=names[0], outputs=names[1])
        value = level.natives.model.constant(step.node.outputs[0]) if not step.node.inputs else None
        if value is not None:
            self._constant(names[1][0], value)
        self.natives.lenders[node.index] = level.natives, step
        self._forced(replace(step, node=node), replace(level.source, path=path), level.guard)

    def _glue(self, op: str, read: tuple[str, ...], made: str, at: Origin, guard: str = "") -> str:
        """Add an operator of ai.onnx that stands for an If; what it makes. Guards are made in each run."""
        index = next(self.numbers)
        node = Node(index, f"{op}_{index}", "", op, version("", op, OPSETS[-1]), read, (made,))
        self._forced(step_of(self.model, node), at, guard)
        return made

    def _constant(self, name: str, array: Array) -> None:
        self.constants[name] = self.values.held[name] = array
        self.values.known.add(name)

    def _forced(self, step: Step, source: Origin, guard: str) -> None:
        """Add a step, of which shapes must tell what it makes."""
        self._follow(step)
        told = self._told(step)
        if told is None:
            raise _Unforetold
        self._add(step, *told, source, guard)

    def _follow(self, step: Step) -> None:
        """What follows from shapes, with what this step makes (running/derived.py::derived_tensors)."""
        definition, node, derived = step.definition, step.node, self.natives.derived
        if definition.graphs or definition.compounds == "makes":
            return
        if definition.form == "shape" or all(
            not name or name in derived or name in self.constants for name in node.inputs
        ):
            self.natives.derived = derived.union(filter(None, node.outputs))

    def _told(self, step: Step) -> tuple[KernelBinding, NodeEvent] | None:
        """The kernel of a step, and its event; None if only a run tells what it makes."""
        try:
            told = dry_step(step, self.values, self.dry)
        except (QrunError, *REFUSALS):
            return None
        if told is None:
            return None
        return told.bound, event_of(step, self.dry.infos, told.made, told.bound, told.observations, {})

    def _add(self, step: Step, bound: KernelBinding | None, event: NodeEvent, source: Origin, guard: str) -> None:
        if guard:
            self.guards[len(self.steps)] = guard
        self.steps.append(step)
        self.bounds.append(bound)
        self.events.append(event)
        self.sources.append(source)


def _is_choice(step: Step) -> bool:
    return step.node.op_type == "If" and not step.node.domain
