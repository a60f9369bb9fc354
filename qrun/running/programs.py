"""The native programs of a session: made before or after a plan's first run with inputs of some shapes, then reused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qrun.declare.collector import without_collector
from qrun.declare.frozen import frozen, replace
from qrun.ir import Array
from qrun.ops import Arith
from qrun.running.compiled import Compiled, Compiler, Loose
from qrun.running.derived import derived_values
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.plan import Plan, Step

if TYPE_CHECKING:
    from qrun.native.plan.items import Item

KEPT, KEPT_BYTES = 32, 256 << 20
"""The most programs kept per session, for different outputs and shapes, and the most memory that one run of each takes
in total; the programs used last stay."""

KEPT_AHEAD = 4
"""The most programs made ahead that wait for their inputs to come again. Once this many wait, as in a decoder whose
cache grows, no more are made ahead: that would take longer than running step by step."""

K = TypeVar("K")
Forms = tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
Key = tuple[tuple[str, ...], Forms]
MakesCall = Callable[[Step, Mapping[str, TensorInfo]], "tuple[Item, Mapping[str, Compiled]] | None"]
"""Takes a step, and types and shapes of tensors; returns the step's calls and the programs of its graphs."""


@frozen
class AnyShapes:
    """A program for runs in which some inputs may have any shape.

    shapes: by input name, shape (None: any) and type. compiled: None where too many steps depend on these inputs.
    """

    shapes: Mapping[str, tuple[tuple[int, ...] | None, np.dtype[Any]]]
    compiled: Compiled | None

    def takes(self, feeds: Mapping[str, Array]) -> bool:
        """Whether these inputs fit `shapes`, for which the program was made."""
        if len(feeds) != len(self.shapes):
            return False
        for name, array in feeds.items():
            shape, dtype = self.shapes.get(name, ((), None))
            if array.dtype != dtype or (shape is not None and array.shape != shape):
                return False
        return True


class Programs:
    """The programs of one model. Safe to use from several threads.

    Some tensors differ in shape between runs with inputs of the same shapes, such as results of NonZero. From then on
    new programs accept any shape for them and for what is computed from them: these steps run in Python.

    foretold: False once a dry run found that shapes do not tell all that a program needs.
    """

    def __init__(self, natives: NativeKernels, arith: Arith) -> None:
        self.natives, self.arith, self.foretold = natives, arith, True
        self._compiler = Compiler(natives, arith)
        self._seen: dict[Key, tuple[NodeEvent, ...]] = {}
        self._made: dict[Key, Compiled | None] = {}
        self._ahead: dict[Key, Compiled] = {}
        self._any: dict[tuple[str, ...], AnyShapes] = {}
        self._sized: dict[tuple[str, ...], frozenset[str]] = {}
        self._met: dict[Key, None] = {}
        self._varying = frozenset[str]()
        self._lock = threading.Lock()

    def learn(self, plan: Plan, feeds: Mapping[str, Array], events: tuple[NodeEvent, ...]) -> None:
        """Remember the events of a run with inputs of these shapes, and drop an earlier program for such inputs."""
        with self._lock:
            key = _key(plan, feeds)
            self._seen.pop(key, None)
            ahead = self._ahead.pop(key, None)
            before = self._made.pop(key, None) or ahead
            self._varying |= varying_tensors(before.events, events) if before else frozenset()
            served = self._any.get(plan.keep)
            if served is not None and served.compiled is not None and served.takes(feeds):
                more = varying_tensors(served.compiled.events, events)
                if not more <= self._sized[plan.keep]:
                    self._sized[plan.keep] |= more
                    del self._any[plan.keep]
            while len(self._seen) >= KEPT:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = events

    def ready(self, plan: Plan, feeds: Mapping[str, Array]) -> Compiled | None:
        """The program for these inputs, made now if a run with such inputs was seen; None if there is none."""
        key = _key(plan, feeds)
        with self._lock:
            if key in self._seen:
                self._made[key] = self._compile(plan, feeds, self._seen.pop(key))
                self._forget()
            elif key in self._ahead:
                self._made[key] = self._ahead.pop(key)
                self._forget()
            elif key in self._made:
                self._made[key] = self._made.pop(key)
            return self._made.get(key)

    def find(
        self, plan: Plan, feeds: Mapping[str, Array], make: Callable[[], object] | None
    ) -> tuple[Compiled | None, bool]:
        """The program for these inputs, if one exists or shapes suffice for one, and whether such inputs came before.

        make: calls `make_ahead`, None where that is not allowed. It is called if such inputs are expected again: they
        ran lately with the program for any shapes, or inputs of other shapes came again and fewer than KEPT_AHEAD
        programs made ahead wait."""
        compiled = self.ready(plan, feeds)
        if compiled is not None:
            return compiled, True
        compiled, key = self.of_any_shapes(plan, feeds), _key(plan, feeds)
        again = key in self._met
        if compiled is not None or make is None or not (again or (self._made and len(self._ahead) < KEPT_AHEAD)):
            return compiled, False
        make()
        with self._lock:
            ahead = self._ahead.get(key)
        return (self.ready(plan, feeds) if again else ahead), again

    def make_ahead(
        self,
        plan: Plan,
        feeds: Mapping[str, Array],
        events: Sequence[NodeEvent],
        infos: Mapping[str, TensorInfo],
        bounds: Sequence[KernelBinding | None],
    ) -> Compiled | None:
        """The program for such inputs, made before they run. Until they come again it displaces only others made ahead.

        infos: of all tensors; bounds: the kernel of each step.
        """
        infos = {**infos, **_infos({name: array for name, array in feeds.items() if name not in infos})}
        shapes = derived_values(plan.model, plan.steps, self.natives.derived, infos, self.arith)
        key, loose = _key(plan, feeds), Loose.of(plan, self._varying)
        made = self._compiler.program(plan, events, infos, feeds, shapes, bounds, loose)
        with self._lock:
            self._ahead.pop(key, None)
            if made is not None:
                self._ahead[key] = made
            for old in surplus({key: made.program.nbytes for key, made in self._ahead.items()}, KEPT_AHEAD):
                del self._ahead[old]
        return made

    def with_calls(self, plan: Plan, feeds: Mapping[str, Array], before: Compiled, call: MakesCall) -> Compiled | None:
        """The program `before` with calls in place of its Python steps; None if one of these cannot be a call."""
        with without_collector():
            fed = _infos(feeds)
            infos, shapes, bounds = self._learn_facts(plan, fed, before.events)
            known = {**self.natives.constants, **infos}
            calls = {number: call(plan.steps[number], known) for number in before.program.listing.steps}
            made = {number: found[0] for number, found in calls.items() if found is not None}
            if len(made) < len(calls) or before.program.listing.loose:
                return None
            found = self._compiler.program(plan, before.events, infos, fed, shapes, bounds, Loose.of(plan), made)
            return found and replace(found, calls={number: found[1] for number, found in calls.items() if found})

    def of_any_shapes(self, plan: Plan, feeds: Mapping[str, Array]) -> Compiled | None:
        """The program that accepts any shape for the inputs whose shapes changed in the last runs, if most steps do not
        depend on them; made now if two such runs were seen. None for shapes that it served lately: shapes that come
        again get a program of their own."""
        key = _key(plan, feeds)
        with self._lock:
            if key in self._met:
                return None
            found = self._any.get(plan.keep)
            if found is None or not found.takes(feeds):
                found = self._of_any_shapes(plan, key)
                if found is None:
                    return None
                self._any[plan.keep] = found
            if found.compiled is not None:
                self._met[key] = None
                if len(self._met) > KEPT:
                    del self._met[next(iter(self._met))]
            return found.compiled

    def _of_any_shapes(self, plan: Plan, key: Key) -> AnyShapes | None:
        """Made from the last two runs with inputs of these types and different shapes; None if there were no two."""
        made = [(k, m.events) for kept in (self._made, self._ahead) for k, m in kept.items() if m]
        alike = {k: events for k, events in (*made, *self._seen.items()) if (k[0], _types(k)) == (key[0], _types(key))}
        if len(alike) < 2 or any(step.bodies for step in plan.steps):
            return None
        (before, earlier), (last, events) = list(alike.items())[-2:]
        shapes = [{name: shape for name, shape, _ in k[1]} for k in (before, last, key)]
        fed = [name for name in shapes[0] if not shapes[0][name] == shapes[1][name] == shapes[2][name]]
        sized = self._sized[plan.keep] = varying_tensors(earlier, events).union(fed, self._sized.get(plan.keep, ()))
        loose, compiled = Loose.of(plan, self._varying, sized, self.natives.derived), None
        if 2 * len(loose.steps) <= len(plan.steps):
            with without_collector():
                inputs = {name: TensorInfo(name, kind, shape) for name, shape, kind in last[1]}
                infos, values, bounds = self._learn_facts(plan, inputs, events)
                compiled = self._compiler.program(plan, events, infos, inputs, values, bounds, loose)
        forms = {name: (None if name in fed else shape, kind) for name, shape, kind in key[1]}
        return AnyShapes(forms, compiled)

    def runs_any(self, plan: Plan, feeds: Mapping[str, Array]) -> bool:
        """Whether `of_any_shapes` has a program for these inputs already."""
        with self._lock:
            found = self._any.get(plan.keep)
            return bool(found and found.compiled and found.takes(feeds) and _key(plan, feeds) not in self._met)

    def drop(self, plan: Plan, feeds: Mapping[str, Array]) -> None:
        """Forget the program for these inputs."""
        with self._lock:
            self._made.pop(_key(plan, feeds), None)

    def _forget(self) -> None:
        """Drop the programs used longest ago, until the limits KEPT and KEPT_BYTES hold; the newest one stays."""
        for key in surplus({key: made.program.nbytes if made else 0 for key, made in self._made.items()}):
            del self._made[key]

    def _compile(self, plan: Plan, feeds: Mapping[str, Array], events: Sequence[NodeEvent]) -> Compiled | None:
        """The program of a plan that has run, with these events."""
        with without_collector():
            fed = _infos(feeds)
            infos, shapes, bounds = self._learn_facts(plan, fed, events)
            return self._compiler.program(plan, events, infos, fed, shapes, bounds, Loose.of(plan, self._varying))

    def _learn_facts(
        self, plan: Plan, fed: dict[str, TensorInfo], events: Sequence[NodeEvent]
    ) -> tuple[dict[str, TensorInfo], dict[str, Array], list[KernelBinding | None]]:
        """Facts from a run's events: all tensors by name, the values that follow from shapes, each step's binding."""
        infos = {info.name: info for event in events for info in (*event.inputs, *event.outputs)} | fed
        shapes = derived_values(plan.model, plan.steps, self.natives.derived, infos, self.arith)
        return infos, shapes, [self.natives.find_by_shapes(step, infos, shapes) for step in plan.steps]


def _infos(arrays: Mapping[str, Array]) -> dict[str, TensorInfo]:
    """The names, types and shapes of arrays."""
    return {name: TensorInfo(name, a.dtype, a.shape) for name, a in arrays.items()}


def surplus(sizes: Mapping[K, int], most: int = 0) -> list[K]:
    """The first programs, to be dropped until at most `most` programs and KEPT_BYTES are left; never the last one.
    sizes: bytes of each program, in order. most: 0 means KEPT."""
    keys, left, room = list(sizes), len(sizes), sum(sizes.values())
    while left > 1 and (left > (most or KEPT) or room > KEPT_BYTES):
        room -= sizes[keys[-left]]
        left -= 1
    return keys[: len(keys) - left]


def _types(key: Key) -> list[tuple[str, np.dtype[Any]]]:
    """The names and types of a program's inputs."""
    return [(name, kind) for name, _, kind in key[1]]


def _key(plan: Plan, feeds: Mapping[str, Array]) -> Key:
    """The key of a program: its outputs, and its inputs' names, shapes and types."""
    return plan.keep, forms(feeds)


def forms(feeds: Mapping[str, Array]) -> Forms:
    """Name, shape and type of each input: one program serves all feeds that agree in these."""
    return tuple([(name, array.shape, array.dtype) for name, array in sorted(feeds.items())])


def varying_tensors(before: Sequence[NodeEvent], after: Iterable[NodeEvent]) -> frozenset[str]:
    """The tensors whose type or shape differed between two runs of the same nodes."""
    infos = {info.name: info for event in before for info in event.outputs}
    made = (info for event in after for info in event.outputs)
    return frozenset(info.name for info in made if infos.get(info.name, info) != info)
