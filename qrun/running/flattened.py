"""Plans in which the nodes of graphs stand in place of the nodes that run these, for inputs of known shapes.

Of an If: where a condition follows from shapes, as exporters write them where a rank or a size decides what is to be done, the nodes
are those of the branch that it takes. Else they are those of both branches, each guarded by a bool: the condition, or what
is true where that is not; and each result of the If is chosen between what the branches make. Of a Loop or Scan of few turns,
whose number follows from shapes: those of all turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir import Array, Model
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.flat import CERTAIN, Flat, GoneNode, Origin
from qrun.running.flatsteps import FlatLevel, FlatSteps, RefusedStep, Unforetold
from qrun.running.plan import Plan, Step

UNROLLED = 128
"""The most steps of all turns of a loop that stand in its place: each is planned, and joined to its neighbours where it can be."""


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
    """The plan with graphs in place of nodes that run them; None where none can be.

    events, bounds: of its steps. infos: of all tensors, shapes: values that follow from shapes, for inputs of these shapes.
    """
    if not any(step.bodies for step in plan.steps):
        return None
    return _Flattening(plan, natives, infos, shapes).of(events, bounds)


class _Flattening(FlatSteps):
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
        model = replace(self.model, nodes=tuple([step.node for step in self.steps]), constants=self.constants)
        self.natives.model = model
        infos = {**self.infos, **self.dry.infos}
        shapes = {name: self.values.held[name] for name in self.values.known if name not in self.constants}
        flat = Flat(self.events, self.sources, self.guards, self.inner, whole, self.needed)
        return Flattened(Plan(model, tuple(self.steps), self.plan.keep), self.natives, self.bounds, infos, shapes, flat)

    def _as_it_is(self, step: Step, number: int, event: NodeEvent, bound: KernelBinding | None) -> NodeEvent:
        """Add a step of the plan; what it reads may follow from shapes now, so that it is bound again. The event of the step."""
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
        """Add what a step with graphs does; at: where it is. Why it is no choice in a run, if it is none."""
        op = step.node.op_type if step.bodies and not step.node.domain else ""
        if op == "If":
            return self._choice(step, level, at)
        if op == "Loop":
            self._loop(step, level, at)
        elif op == "Scan" and step.node.version >= 9:
            self._scan(step, level, at)
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
            branch = "then_branch" if condition.reshape(()) else "else_branch"
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

    def _loop(self, step: Step, level: FlatLevel, at: Origin) -> None:
        """Add all turns of a Loop."""
        node, body = step.node, step.bodies["body"].model
        names = [level.of(name) for name in node.inputs]
        most, carried = int(self._one(names[0], np.int64)), names[2:]
        going = len(names) < 2 or not names[1] or bool(self._one(names[1], np.bool_))
        stacks: list[list[str]] = [[] for _ in body.outputs[1 + len(carried) :]]
        turn, begin = 0, len(self.steps)
        if _hands_on(body) and most * len(body.nodes) > UNROLLED:
            raise Unforetold
        while going and turn < most:
            start = f"{level.start}{node.index}/{turn}"
            number = self._constant(f"{start}/number", _as(body, 0, np.array(turn)))
            condition = self._constant(f"{start}/condition", _as(body, 1, np.array(True)))
            made = self._turn(step, level, at, (turn, begin), (number, condition, *carried))
            going, carried, turn = bool(self._one(made[0], np.bool_)), made[1 : 1 + len(carried)], turn + 1
            for stack, name in zip(stacks, made[1 + len(carried) :], strict=True):
                stack.append(name)
        self._results(step, level, at, carried, stacks, [0] * len(stacks))

    def _scan(self, step: Step, level: FlatLevel, at: Origin) -> None:
        """Add all turns of a Scan."""
        node, kwargs, body = step.node, step.kwargs, step.bodies["body"].model
        names = [level.of(name) for name in node.inputs]
        scanned = names[len(names) - kwargs["num_scan_inputs"] :]
        states, shapes = names[: len(names) - len(scanned)], [self._shape(name) for name in scanned]
        axes = kwargs.get("scan_input_axes") or (0,) * len(scanned)
        backward = kwargs.get("scan_input_directions") or (0,) * len(scanned)
        lengths = {shape[axis] for shape, axis in zip(shapes, axes, strict=True)}
        length, begin = lengths.pop(), len(self.steps)
        if length * len(body.nodes) > UNROLLED:
            raise Unforetold
        stacks: list[list[str]] = [[] for _ in body.outputs[len(states) :]]
        for turn in range(length):
            start, elements = f"{level.start}{node.index}/{turn}", list[str]()
            for name, axis, reverse in zip(scanned, axes, backward, strict=True):
                place = self._constant(f"{start}/{len(elements)}", np.array(length - 1 - turn if reverse else turn))
                elements.append(self._glue("Gather", (name, place), f"{place}/element", at, level.guard, axis=axis))
            made = self._turn(step, level, at, (turn, begin), (*states, *elements))
            states = made[: len(states)]
            for stack, name in zip(stacks, made[len(states) :], strict=True):
                stack.append(name)
        turned = kwargs.get("scan_output_directions") or (0,) * len(stacks)
        ordered = [stack[::-1] if turn else stack for stack, turn in zip(stacks, turned, strict=True)]
        self._results(step, level, at, states, ordered, kwargs.get("scan_output_axes") or [0] * len(stacks))

    def _turn(self, step: Step, level: FlatLevel, at: Origin, turn: tuple[int, int], given: Sequence[str]) -> list[str]:
        """Add a turn of a body, unless all of them are too many steps. turn: its number, and how many steps there were before
        the first one. given: what it is fed with."""
        body = step.bodies["body"]
        if len(self.steps) - turn[1] + len(body.steps) > UNROLLED or len(body.model.inputs) != len(given):
            raise Unforetold
        fed = {value.name: name for value, name in zip(body.model.inputs, given, strict=True)}
        return self._graph(step, "body", level, at, level.guard, fed, part=f"{turn[0]}/")

    def _results(
        self,
        step: Step,
        level: FlatLevel,
        at: Origin,
        carried: Sequence[str],
        stacks: Sequence[Sequence[str]],
        axes: Sequence[int],
    ) -> None:
        """Add what makes the outputs of a loop: of what goes around at the end, and of elements, to be joined along axes."""
        node = step.node
        for output, name in zip(node.outputs, carried, strict=False):
            if output:
                self._glue("Identity", (name,), level.of(output), at, level.guard)
        for output, names, axis in zip(node.outputs[len(carried) :], stacks, axes, strict=False):
            if not output:
                continue
            if len({(self._shape(name), self.values.held[name].dtype) for name in names}) != 1:
                raise Unforetold
            made, along = level.of(output), self._constant(f"{level.of(output)}{self.start}axis", np.array([axis]))
            rows = [
                self._glue("Unsqueeze", (name, along), f"{along}/{n}", at, level.guard) for n, name in enumerate(names)
            ]
            self._glue("Concat", rows, made, at, level.guard, axis=axis)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values.held[name].shape)

    def _graph(
        self,
        step: Step,
        name: str,
        level: FlatLevel,
        at: Origin,
        guard: str,
        fed: Mapping[str, str],
        called: Mapping[str, str] | None = None,
        part: str = "",
    ) -> list[str]:
        """Add the steps of a graph. What makes its outputs. fed: what makes its inputs; called: what the flat plan is to call what
        its nodes make, where not by new names; part: of these, where the graph is added several times."""
        body, node = step.bodies[name], step.node
        graph = body.model
        if len(graph.inputs) != len(fed) or len(graph.outputs) < len(node.outputs):
            raise Unforetold
        start = f"{level.start}{node.index}/{name}/{part}"
        produced = dict.fromkeys(made for inner in graph.nodes for made in inner.outputs if made)
        own = {inner: f"{start}{inner}" for inner in (*graph.constants, *produced)}
        own.update((inner, name) for inner, name in (called or {}).items() if inner in produced)
        for inner, array in graph.constants.items():
            self._constant(own[inner], array)
        path = f"{at.path}/{name}/" if at.path else f"{name}/"
        names, natives = {**level.names, **own, **fed}, level.natives.inside(step, name)
        inside = FlatLevel(natives, names, replace(at, path=path), guard, start)
        for one in body.steps:
            self._inner(one, inside)
        return [inside.of(value.name) for value in graph.outputs]

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


def _hands_on(body: Model) -> bool:
    """Whether what a Loop's body makes of its condition is that condition, so that only their number ends the turns."""
    made, given = body.outputs[0].name, body.inputs[1].name if len(body.inputs) > 1 else ""
    maker = body.producers.get(made)
    return made == given or (maker is not None and maker.op == "Identity" and maker.inputs[0] == given)


def _as(body: Model, place: int, value: Array) -> Array:
    """A number as a body's input of this place has it: of shape [1] where that is stated."""
    stated = body.inputs[place].shape if place < len(body.inputs) else None
    return value.reshape(1) if stated is not None and len(stated) == 1 else value
