"""Steps of all turns of a Loop or Scan in a flat plan (running/flat/flattened.py),
where these are few and shapes tell how many."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from qrun.declare.frozen import replace
from qrun.ir import Array, Model
from qrun.running.flat.origins import Origin
from qrun.running.flat.steps import FlatLevel, FlatSteps, Unforetold
from qrun.running.plan import Step

UNROLLED = 128
"""The most steps of all turns of a loop that stand in its place:
each is planned, and joined to its neighbours where it can be."""


class UnrolledSteps(FlatSteps):
    """Steps of a flat plan, and those of loops in all their turns."""

    def _unrolled_loop(self, step: Step, level: FlatLevel, at: Origin) -> None:
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
            number = self._constant(f"{start}/number", as_fed(body, 0, np.array(turn)))
            condition = self._constant(f"{start}/condition", as_fed(body, 1, np.array(True)))
            made = self._turn(step, level, at, (turn, begin), (number, condition, *carried))
            going, carried, turn = bool(self._one(made[0], np.bool_)), made[1 : 1 + len(carried)], turn + 1
            for stack, name in zip(stacks, made[1 + len(carried) :], strict=True):
                stack.append(name)
        self._results(step, level, at, carried, stacks, [0] * len(stacks))

    def _unrolled_scan(self, step: Step, level: FlatLevel, at: Origin) -> None:
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
        """Add a turn of a body; Unforetold if the turns up to it have more than UNROLLED steps. turn: its number, and
        how many steps the plan had before the first turn. given: names of the body's inputs in the flat plan."""
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
        """Add the steps that make the loop's outputs: the last loop-carried values, and the scan outputs,
        whose elements (`stacks`) are joined along `axes`."""
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
        """Add the steps of a graph. Returns its outputs' names in the flat plan. fed: its inputs' names there; called:
        names there for tensors that get no new name; part: a part of the new names, for a graph added several times."""
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

    @abstractmethod
    def _inner(self, step: Step, level: FlatLevel) -> None:
        """Add a step of a graph."""


def _hands_on(body: Model) -> bool:
    """Whether a Loop's body returns its condition unchanged, so that only the trip count ends a loop that has begun."""
    made, given = body.outputs[0].name, body.inputs[1].name if len(body.inputs) > 1 else ""
    maker = body.producers.get(made)
    return made == given or (maker is not None and maker.op == "Identity" and maker.inputs[0] == given)


def as_fed(body: Model, place: int, value: Array) -> Array:
    """A scalar in the shape that the body's input at this place declares: [1] if that is declared, else []."""
    stated = body.inputs[place].shape if place < len(body.inputs) else None
    return value.reshape(1) if stated is not None and len(stated) == 1 else value
