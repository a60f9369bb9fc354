"""Native programs of a session: made when a plan has run once with some shapes of inputs, used from then on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from qrun.declare.frozen import replace
from qrun.ir import Array
from qrun.ops import Arith
from qrun.running.compiled import Compiled
from qrun.running.derived import derived_values
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.flat import Flat
from qrun.running.flattened import flattened
from qrun.running.foreignsteps import foreign_item
from qrun.running.plan import Plan, Step, moving

if TYPE_CHECKING:
    from qrun.native.plan.items import Chain, Item
    from qrun.ops._native import NativeKernel

KEPT, KEPT_BYTES = 32, 256 << 20
"""Programs kept per session, for different outputs and shapes, and the memory of one run of each, in all; those that were
used last stay."""

KEPT_AHEAD = 4
"""The same of those whose inputs came once: where none of so many came again, as in a decoder whose cache grows, making
more ahead would take longer than running step by step."""

K = TypeVar("K")
Forms = tuple[tuple[str, tuple[int, ...], str], ...]
Key = tuple[tuple[str, ...], Forms]


class Programs:
    """The programs of one model. Safe to use from several threads.

    Tensors whose shapes differed between runs with inputs of the same shapes, as results of NonZero do, and what is made of
    them, may have any shape in programs that are made from then on: their steps run in Python.

    calls: whether programs call what has no native kernel themselves, rather than end there (running/foreignsteps.py).
    foretold: whether shapes tell all that a run takes, as far as that was tried.
    """

    def __init__(self, natives: NativeKernels, arith: Arith, calls: bool = False) -> None:
        self.natives, self.arith, self.calls, self.foretold = natives, arith, calls, True
        self._seen: dict[Key, tuple[NodeEvent, ...]] = {}
        self._made: dict[Key, Compiled | None] = {}
        self._ahead: dict[Key, Compiled] = {}
        self._varying = frozenset[str]()
        self._lock = threading.Lock()

    def learn(self, plan: Plan, feeds: Mapping[str, Array], events: tuple[NodeEvent, ...]) -> None:
        """Remember the events that inputs of these shapes lead to, and drop a program that was made for such inputs before."""
        with self._lock:
            key = _key(plan, feeds)
            self._seen.pop(key, None)
            ahead = self._ahead.pop(key, None)
            before = self._made.pop(key, None) or ahead
            self._varying |= varying(before.events, events) if before else frozenset()
            while len(self._seen) >= KEPT:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = events

    def ready(self, plan: Plan, feeds: Mapping[str, Array]) -> Compiled | None:
        """The program for these inputs, made now if a run with such inputs was seen; None if there is none."""
        key = _key(plan, feeds)
        with self._lock:
            if key in self._seen:
                self._made[key] = self._compiled(plan, feeds, self._seen.pop(key))
                self._forget()
            elif key in self._ahead:
                self._made[key] = self._ahead.pop(key)
                self._forget()
            elif key in self._made:
                self._made[key] = self._made.pop(key)
            return self._made.get(key)

    def make_ahead(
        self,
        plan: Plan,
        feeds: Mapping[str, Array],
        events: Sequence[NodeEvent],
        infos: Mapping[str, TensorInfo],
        bounds: Sequence[KernelBinding | None],
    ) -> Compiled | None:
        """The program for such inputs, made before they have run. Until they come again it displaces none that did.

        infos: of all tensors; bounds: what runs each step.
        """
        infos = {**infos, **_infos({name: array for name, array in feeds.items() if name not in infos})}
        shapes = derived_values(plan.model, plan.steps, self.natives.derived, infos, self.arith)
        key, made = _key(plan, feeds), self._compile(plan, events, infos, feeds, shapes, bounds)
        with self._lock:
            self._ahead.pop(key, None)
            if made is not None:
                self._ahead[key] = made
            for old in surplus({key: made.program.nbytes for key, made in self._ahead.items()}, KEPT_AHEAD):
                del self._ahead[old]
        return made

    @property
    def returning(self) -> bool:
        """Whether inputs mostly come again: some did, and few programs that were made ahead wait for it."""
        return bool(self._made) and len(self._ahead) < KEPT_AHEAD

    def made_ahead(self, plan: Plan, feeds: Mapping[str, Array]) -> Compiled | None:
        """What `make_ahead` made for these inputs."""
        with self._lock:
            return self._ahead.get(_key(plan, feeds))

    def drop(self, plan: Plan, feeds: Mapping[str, Array]) -> None:
        """Use the program for these inputs no more."""
        with self._lock:
            self._made.pop(_key(plan, feeds), None)

    def _forget(self) -> None:
        """Drop the programs that were used longest ago, until what is left is little; the newest one stays."""
        for key in surplus({key: made.program.nbytes if made else 0 for key, made in self._made.items()}):
            del self._made[key]

    def _compiled(self, plan: Plan, feeds: Mapping[str, Array], events: Sequence[NodeEvent]) -> Compiled | None:
        """The program of a plan that has run, with these events."""
        from qrun.declare.collector import uncollected

        with uncollected():
            infos = {info.name: info for event in events for info in (*event.inputs, *event.outputs)} | _infos(feeds)
            shapes = derived_values(plan.model, plan.steps, self.natives.derived, infos, self.arith)
            bounds = [self.natives.bound(step, infos, shapes) for step in plan.steps]
            other = None if self._varying else flattened(plan, self.natives, events, infos, shapes, bounds)
            made = None
            if other is not None:
                flat = other.flat
                made = self._compile(other.plan, flat.events, other.infos, feeds, other.shapes, other.bounds, flat)
                made = made and replace(made, natives=other.natives)
            return made or self._compile(plan, events, infos, feeds, shapes, bounds)

    def _compile(
        self,
        plan: Plan,
        events: Sequence[NodeEvent],
        infos: Mapping[str, TensorInfo],
        feeds: Mapping[str, Array],
        shapes: Mapping[str, Array],
        bounds: Sequence[KernelBinding | None],
        flat: Flat | None = None,
    ) -> Compiled | None:
        """shapes: values that follow from shapes. flat: what the plan is that of, if it is flat."""
        from qrun.native.errors import Declined
        from qrun.native.machine.operation import Operand
        from qrun.native.plan.items import PythonStep
        from qrun.native.plan.program import Program
        from qrun.native.plan.schedule import Schedule

        loose = self._loose(plan)
        shapes = {name: value for name, value in shapes.items() if name not in loose}
        bounds = [b if loose.isdisjoint(s.node.outputs) else None for s, b in zip(plan.steps, bounds, strict=True)]
        items: list[Item] = []
        outside = set(feeds)
        fixed = dict(shapes)
        for number, (step, bound) in enumerate(zip(plan.steps, bounds, strict=True)):
            kernel = bound.kernel if bound else None
            if not shapes.keys().isdisjoint(step.node.outputs):
                items.append(PythonStep((), ()))
                continue
            if kernel is None and self.calls and loose.isdisjoint(step.node.outputs):
                called = foreign_item(self.natives.engine, plan, number, infos, self.arith)
                if called is not None:
                    items.append(called)
                    continue
            if kernel is None or not kernel.stages:
                made = tuple(name for name in step.node.outputs if name)
                items.append(PythonStep(moving(plan, step), made, not loose.isdisjoint(made)))
                outside.update(made)
                continue
            chain = _chain(step, kernel)
            names = [name for name in chain.inputs if isinstance(name, str)]
            fixed |= {name: a for name in names if (a := plan.model.constant(name)) is not None}
            items.append(chain.tasks[0] if len(chain.tasks) == 1 else chain)
        constants = plan.model.constants
        needed = flat.needed if flat else ()
        wanted = [
            name
            for name in dict.fromkeys((*plan.keep, *needed))
            if name not in constants or plan.model.constant(name) is None
        ]
        given = {name: Operand(infos[name].shape, infos[name].dtype) for name in outside if name in infos}
        given |= {name: Operand(a.shape, a.dtype) for name, a in fixed.items()}
        try:
            guards = flat.guards if flat else {}
            program = Program.of(Schedule(self.natives.engine, items, given, fixed, wanted, guards))
        except Declined:
            return None
        return Compiled(plan, program, tuple(bounds), events, self.arith, self.natives, flat)

    def _loose(self, plan: Plan) -> frozenset[str]:
        """The tensors that may have any shape."""
        found: set[str] = set()
        for step in plan.steps if self._varying else ():
            if not (self._varying.isdisjoint(step.node.outputs) and found.isdisjoint(step.reads)):
                found.update(name for name in step.node.outputs if name)
        return frozenset(found)


def varying(before: Sequence[NodeEvent], after: Sequence[NodeEvent]) -> frozenset[str]:
    """The tensors that had another type or shape in one of two runs of the same nodes."""
    infos = {info.name: info for event in before for info in event.outputs}
    made = (info for event in after for info in event.outputs)
    return frozenset(info.name for info in made if infos.get(info.name, info) != info)


def _chain(step: Step, kernel: NativeKernel) -> Chain:
    """The kernel's stages on the node's values; those between them, and outputs without a name, have keys of their own."""
    from qrun.native.plan.items import Chain, Task

    node = step.node

    def key(value: int | str, names: Sequence[str]) -> str | tuple[int, int | str]:
        name = names[value] if isinstance(value, int) and value < len(names) else ""
        return name or (node.index, value)

    return Chain(
        tuple(
            Task(
                stage.operation,
                tuple(key(value, node.inputs) for value in stage.inputs),
                key(stage.output, node.outputs),
            )
            for stage in kernel.stages
        )
    )


def _infos(arrays: Mapping[str, Array]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(name, a.dtype, a.shape) for name, a in arrays.items()}


def surplus(sizes: Mapping[K, int], most: int = 0) -> list[K]:
    """Of programs that take so many bytes, those that go until what is left is little: the first ones, never the last. most:
    how many stay, KEPT for 0."""
    keys, left, room = list(sizes), len(sizes), sum(sizes.values())
    while left > 1 and (left > (most or KEPT) or room > KEPT_BYTES):
        room -= sizes[keys[-left]]
        left -= 1
    return keys[: len(keys) - left]


def _key(plan: Plan, feeds: Mapping[str, Array]) -> Key:
    return plan.keep, forms(feeds)


def forms(feeds: Mapping[str, Array]) -> Forms:
    """Name, shape and type of each input: one program serves all feeds that have these."""
    return tuple([(name, array.shape, array.dtype.str) for name, array in sorted(feeds.items())])
