"""Native programs of a graph inside a node: made when it has run a few times with the same shapes, used from then on."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import replace
from qrun.errors import MemoryLimitError, TimeLimitError
from qrun.ir import Array
from qrun.ops._context import Round, Turns
from qrun.running.compiled import Compiled
from qrun.running.dispatch import NativeKernels, undecided
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.execution import Repeatable
from qrun.running.flattened import Choices, Flat, choices, flattened
from qrun.running.plan import Plan
from qrun.running.programs import KEPT, Forms, Programs, forms
from qrun.running.steps import Run, run_body
from qrun.running.times import Happening, Inside

if TYPE_CHECKING:
    from qrun.native.plan.turns import Turning

OFTEN, AGAIN = 3, 64
"""Runs with the same shapes after which a program is made, which takes as long as some runs step by step; and how many later
it is made again, if it was dropped or could not be made."""
_NEVER = -(1 << 40)
Shapes = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


class BodyPrograms:
    """The programs of one graph inside a node. Safe to use from several threads."""

    def __init__(self, natives: NativeKernels) -> None:
        self._programs = Programs(natives, natives.arith)
        self._runs: dict[Forms, int] = {}
        self._last: Repeatable | None = None
        self._turning: tuple[Compiled, object, Turning | None] | None = None
        self._flats: dict[Shapes, Flat | None] = {}
        self._chosen: dict[Choices, Flat] = {}
        self._lock = threading.Lock()

    def run(self, plan: Plan, given: Mapping[str, Array], run: Run) -> Sequence[Array] | None:
        """What the graph makes; None where it is to run step by step. given: what it is fed with, and takes from around it."""
        again = self._known(plan, given)
        if again is None:
            return None
        compiled, budget, inside = again.compiled, run.budget.aside(), Inside(run.inside.timed)
        try:
            ran = compiled.run(given, budget, inside, None, inside.timed, run.path)
        except TimeLimitError:
            raise
        except Exception as error:  # step by step it either succeeds, or fails with the words of the reference
            if not undecided(error):
                self._last = None
                self._programs.drop(plan, given)
                with self._lock:
                    self._runs[forms(given)] = _NEVER
            return None
        self._last = again
        run.budget.peak = max(run.budget.peak, budget.peak)
        if inside.timed:
            run.inside.add_later(lambda: _told(compiled.timed(ran), run.path))
            run.inside.add_all(inside)
        constants = plan.model.constants
        return [ran.values[v.name] if v.name in ran.values else constants[v.name] for v in plan.model.outputs]

    def run_flat(self, outside: Mapping[str, Array], fed: Mapping[str, Array], run: Run) -> Sequence[Array] | None:
        """What the graph makes, run without the Ifs whose conditions follow from shapes; None where it has none, or is to run
        as it is."""
        flat = self._flat_of({**outside, **fed}) if self._flats else None
        if flat is None:
            return None
        own = replace(run, natives=flat.natives, infos={}, inside=Inside(run.inside.timed), budget=run.budget.aside())
        try:
            made = run_body(flat.plan, outside, fed, own)
        except TimeLimitError:
            raise
        except Exception:  # as it is it either succeeds, or fails with the words of its own nodes
            self._flats[_shapes({**outside, **fed})] = None
            return None
        _tell(flat, own, run, 1)
        return made

    def _flat_of(self, given: Mapping[str, Array]) -> Flat | None:
        return self._flats.get(_shapes(given))

    def repeat(
        self, plan: Plan, outside: Mapping[str, Array], args: Sequence[Array], how: Round, run: Run
    ) -> Turns | None:
        """Many runs in a row, as a Body's `repeat`; outside: what the graph takes from around it."""
        names = [value.name for value in plan.model.inputs]
        first = [a[:1].reshape(a.shape[1:]) if place in how.scanned else a for place, a in enumerate(args)]
        flat = self._flat_of({**outside, **dict(zip(names, first, strict=True))}) if self._flats else None
        if flat is not None and flat.natives.bodies is not None:
            own = replace(run, natives=flat.natives, infos={}, inside=Inside(run.inside.timed))
            turns = flat.natives.bodies.repeat(flat.plan, outside, args, how, own)
            if turns is not None and turns.count:
                _tell(flat, own, run, turns.count)
            return turns
        again = self._known(plan, {**outside, **dict(zip(names, first, strict=True))})
        turning = None if again is None else self._turning_of(again.compiled, plan, how)
        if again is None or turning is None:
            return None
        budget, values = run.budget.aside(), {**outside, **dict(zip(names, args, strict=True))}
        try:
            made = turning.run(values, how.most, how.room, budget)
        except MemoryLimitError:  # one after the other they may have room
            return None
        self._last = again
        run.budget.peak = max(run.budget.peak, budget.peak)
        for event, span in (
            zip(again.compiled.events, made.spans, strict=True) if made.count and run.inside.timed else ()
        ):
            run.tell(event, span, made.count)
        return Turns(made.count, made.carried, made.stacked)

    def _known(self, plan: Plan, given: Mapping[str, Array]) -> Repeatable | None:
        """The program for such values: the last one, or one that is found, or made now."""
        last = self._last
        if last is not None and last.takes(given):
            return last
        compiled = self._programs.ready(plan, given)
        return None if compiled is None else Repeatable.of(compiled, given)

    def _turning_of(self, compiled: Compiled, plan: Plan, how: Round) -> Turning | None:
        """The program, to run many times in a row; None where Python has to do something in between."""
        last, key = self._turning, (how.scanned, how.until)
        if last is None or last[0] is not compiled or last[1] != key:
            last = self._turning = compiled, key, _turning(compiled, plan, how)
        return last[2]

    def ran(self, plan: Plan, given: Mapping[str, Array], events: Sequence[NodeEvent]) -> None:
        """It ran step by step, with these events."""
        key = forms(given)
        with self._lock:
            while key not in self._runs and len(self._runs) >= KEPT:
                del self._runs[next(iter(self._runs))]
            count = self._runs[key] = self._runs.get(key, 0) + 1
        shapes = _shapes(given)
        if count == 1 and shapes not in self._flats and any(step.bodies for step in plan.steps):
            infos = {info.name: info for event in events for info in (*event.inputs, *event.outputs)}
            infos |= {name: TensorInfo(name, array.dtype, array.shape) for name, array in given.items()}
            chosen = choices(plan, self._programs.natives, infos, tuple(given))
            if chosen:
                flat = self._chosen.get(chosen)
                if flat is None:
                    flat = self._chosen[chosen] = flattened(plan, self._programs.natives, chosen)
                    flat.natives.of_bodies, flat.natives.bodies = BodyPrograms, BodyPrograms(flat.natives)
                with self._lock:
                    while len(self._flats) >= KEPT:
                        del self._flats[next(iter(self._flats))]
                    while len(self._chosen) > KEPT:
                        del self._chosen[next(iter(self._chosen))]
                    self._flats[shapes] = flat
                return
        if count > 0 and count % AGAIN == OFTEN:
            self._programs.learn(plan, given, tuple(events))


def _shapes(given: Mapping[str, Array]) -> Shapes:
    """Of one graph these are always given in the same order."""
    return tuple([(array.shape, array.dtype) for array in given.values()])


def _told(events: Iterable[NodeEvent], path: str) -> Iterator[Happening]:
    for event in events:
        assert event.node is not None
        yield f"{path}{event.node.label}", event.node.op, event.duration_ns, event.backend, event.why, 1


def _tell(flat: Flat, ran: Run, run: Run, count: int) -> None:
    """What happened at the nodes of so many runs, and at the Ifs that they stand for."""
    run.budget.peak = max(run.budget.peak, ran.budget.peak)
    run.inside.add_later(lambda: _flat_told(flat, ran.inside, run.path, count))


def _flat_told(flat: Flat, inside: Inside, path: str, count: int) -> Iterator[Happening]:
    yield from inside.happenings()
    spans = {event.path: event.duration_ns for event in inside.events}
    for label, nodes in flat.labels.items():
        spent = sum(spans.get(f"{path}{node}", 0) for node in nodes)
        yield f"{path}{label}", "If", spent, "reference", "its condition follows from shapes", count


def _turning(compiled: Compiled, plan: Plan, how: Round) -> Turning | None:
    from qrun.native.errors import Declined
    from qrun.native.plan.turns import Turning

    model = plan.model
    read = [value.name for place, value in enumerate(model.inputs) if place not in how.scanned]
    made = [value.name for value in model.outputs]
    scanned = [model.inputs[place].name for place in how.scanned]
    known = {name: model.constants[name] for name in made if name in model.constants}
    carried = list(zip(made, read, strict=False))
    try:
        return Turning(compiled.program, carried, scanned, made[len(read) :], known, how.until)
    except Declined:
        return None
