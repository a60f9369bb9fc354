"""The steps of a flat plan (running/flat/flattened.py) while it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.declare.stored import Part, StoredConstants, constants_of, lent, parts
from qrun.errors import QrunError
from qrun.ir import Array, Node
from qrun.ir.schema import OPSETS, version
from qrun.memory import Budget
from qrun.running.derived import blank
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.drysteps import DryValues, dry_step
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.flat.origins import Flat, GoneNode, Origin
from qrun.running.plan import Plan, Step, step_of
from qrun.running.steps import REFUSALS, Run, event_of
from qrun.running.times import Clock


class Unforetold(Exception):
    """Only a run tells what a step makes, or it has no native kernel."""


class RefusedStep(Unforetold):
    """A step refuses what it would read."""


@frozen
class FlatLevel:
    """The graph whose steps are being added. natives: its kernels; names: for its tensors with another name in the flat
    plan, that name.

    source: the Origin of its nodes, without their labels. guard: that of its steps. start: the prefix of new names.
    """

    natives: NativeKernels
    names: Mapping[str, str]
    source: Origin
    guard: str
    start: str

    def of(self, name: str) -> str:
        return self.names.get(name, name)


@frozen
class Flattened:
    """A flat plan, ready to become a program. bounds: of its steps. infos: of all tensors; shapes: values that follow
    from shapes."""

    plan: Plan
    natives: NativeKernels
    bounds: Sequence[KernelBinding | None]
    infos: Mapping[str, TensorInfo]
    shapes: Mapping[str, Array]
    flat: Flat


class FlatSteps:
    """A flat plan in the making: steps are added one after the other, with what shapes tell of their results.

    plan: the original plan; around: its native kernels; whole: the events of its steps.
    natives: the native kernels of the flat plan.
    """

    def __init__(
        self,
        plan: Plan,
        natives: NativeKernels,
        infos: Mapping[str, TensorInfo],
        shapes: Mapping[str, Array],
        whole: Sequence[NodeEvent],
    ) -> None:
        self.plan, self.around, self.infos, self.whole = plan, natives, infos, whole
        self.constants: dict[str, Part] = dict(parts(plan.model.constants))
        self.model = replace(plan.model, constants=StoredConstants(self.constants))
        self.natives = NativeKernels(self.model, natives.engine, natives.arith, derived=natives.derived)
        self.dry = Run(natives.arith, Budget(), False, self.natives, Clock(), {})
        self.values = DryValues({**self.constants, **shapes})
        for name, info in infos.items():
            self.values.held.setdefault(name, blank(info.shape, info.dtype))
        self.steps, self.bounds, self.events = list[Step](), list[KernelBinding | None](), list[NodeEvent]()
        self.sources, self.inner, self.guards = list[Origin](), list[GoneNode](), dict[int, str]()
        self.needed, self.repeated = list[str](), dict[int, Flat]()
        self.numbers = count()
        self.start = ":"
        while any(name.startswith(self.start) for name in (*infos, *self.constants)):
            self.start += ":"

    @contextmanager
    def _or_not_at_all(self) -> Iterator[None]:
        """What is added in the block is taken back if it fails."""
        length, derived, inner = len(self.steps), self.natives.derived, len(self.inner)
        known, needed = set(self.values.known), len(self.needed)
        try:
            yield
        except Unforetold:
            for made in (self.steps, self.bounds, self.events, self.sources):
                del made[length:]
            del self.inner[inner:]
            del self.needed[needed:]
            for found in (self.guards, self.repeated):
                for number in [n for n in found if n >= length]:
                    del found[number]
            self.natives.derived = derived
            self.values.known.intersection_update(known)
            for name, info in self.infos.items():
                if name not in known:
                    self.values.held[name] = blank(info.shape, info.dtype)
            raise

    def _glue(self, op: str, read: Sequence[str], made: str, at: Origin, guard: str = "", **attributes: Any) -> str:
        """Add an operator of ai.onnx for a step with graphs; returns its output's name. Guards are made in each run."""
        index = next(self.numbers)
        latest = version("", op, OPSETS[-1])
        node = Node(index, f"{op}_{index}", "", op, latest, tuple(read), (made,), attributes)
        self._forced(step_of(self.model, node), at, guard)
        return made

    def _constant(self, name: str, array: Array) -> str:
        """Add a constant and return its name."""
        self.constants[name] = self.values.held[name] = array
        self.values.known.add(name)
        return name

    def _one(self, name: str, dtype: type[np.generic]) -> Array:
        """The only element of a value of this type that follows from shapes."""
        value = self.values.held.get(name)
        if value is None or name not in self.values.known or value.size != 1 or value.dtype != dtype:
            raise Unforetold
        return lent(value).reshape(())

    def _forced(self, step: Step, source: Origin, guard: str) -> None:
        """Add a step. Raises Unforetold where only a run tells what the step makes."""
        self._follow(step)
        told = self._told(step)
        if told is None:
            raise Unforetold
        self._add(step, *told, source, guard)

    def _follow(self, step: Step) -> None:
        """Add this step's outputs to the derived tensors if they follow from shapes (running/derived.py)."""
        definition, node, derived = step.definition, step.node, self.natives.derived
        if definition.graphs or definition.compounds == "makes":
            return
        if definition.form == "shape" or all(
            not name or name in derived or name in self.constants for name in node.inputs
        ):
            self.natives.derived = derived.union(filter(None, node.outputs))

    def _told(self, step: Step) -> tuple[KernelBinding, NodeEvent] | None:
        """The kernel of a step, and its event; None if only a run tells what it makes. Raises RefusedStep."""
        try:
            told = dry_step(step, self.values, self.dry)
        except (QrunError, *REFUSALS):
            raise RefusedStep from None
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

    def flat(self, keep: Sequence[str], whole: Sequence[NodeEvent]) -> Flattened:
        """The finished flat plan. keep: names of the values to keep. whole: the events of the original plan's steps."""
        model = replace(
            self.model, nodes=tuple([step.node for step in self.steps]), constants=constants_of(self.constants)
        )
        self.natives.model = model
        infos, held = {**self.infos, **self.dry.infos}, self.values.held
        shapes = {name: lent(held[name]) for name in self.values.known if name not in self.constants}
        flat = Flat(self.events, self.sources, self.guards, self.inner, whole, self.needed, self.repeated)
        made = Plan(model, tuple(self.steps), tuple(keep))
        return Flattened(made, self.natives, self.bounds, infos, shapes, flat)
