"""Native programs of a graph inside a node: made when it has run a few times with the same shapes,
used from then on."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from qrun.errors import MemoryLimitError, TimeLimitError
from qrun.ir import Array
from qrun.memory import Budget
from qrun.ops._context import Round, Turns
from qrun.running.compiled import Compiled
from qrun.running.dispatch import NativeKernels, undecided
from qrun.running.events import NodeEvent
from qrun.running.execution import Repeatable
from qrun.running.plan import Plan
from qrun.running.programs import KEPT, Forms, Programs, forms
from qrun.running.steps import Run
from qrun.running.times import Happening, Inside

if TYPE_CHECKING:
    from qrun.native.plan.turns import Turning

OFTEN, AGAIN = 3, 64
"""Runs with the same shapes after which a program is made, which takes as long as some runs step by step; and how many
later it is made again, if it was dropped or could not be made."""
_NEVER = -(1 << 40)
PATIENT = 8
"""How many calls that run many turns may take too long; a busy machine can make one of them slow by chance."""


class BodyPrograms:
    """The programs of one graph inside a node. Safe to use from several threads."""

    def __init__(self, natives: NativeKernels) -> None:
        self._programs = Programs(natives, natives.arith, calls=True)
        self._runs: dict[Forms, int] = {}
        self._last: Repeatable | None = None
        self._late = 0
        self._turning: tuple[Compiled, object, Turning | None] | None = None
        self._lock = threading.Lock()

    def run(self, plan: Plan, given: Mapping[str, Array], run: Run) -> Sequence[Array] | None:
        """The graph's outputs from its native program; None where the graph must run step by step.
        given: the graph's inputs, and the values that it reads from around it, by name."""
        again = self._known(plan, given)
        if again is None:
            return None
        compiled, budget, inside = again.compiled, run.budget.aside(), Inside(run.inside.timed)
        try:
            made = None if inside.timed else _directly(again, given, run.budget)
            if made is not None:
                self._last = again
                return [made[v.name] for v in plan.model.outputs]
            ran = compiled.run(given, budget, inside, None, inside.timed, run.path)
        except TimeLimitError:
            raise
        except Exception as error:  # step by step it either succeeds, or fails with the words of the reference
            if _too_long(error):
                self._one_by_one(plan, given)
            elif not undecided(error):
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

    def repeat(
        self, plan: Plan, outside: Mapping[str, Array], args: Sequence[Array], how: Round, run: Run
    ) -> Turns | None:
        """Run the graph for many turns in one call, as `Body.repeat`. outside: values that it reads from around it."""
        names = [value.name for value in plan.model.inputs]
        first = [a[:1].reshape(a.shape[1:]) if place in how.scanned else a for place, a in enumerate(args)]
        again = self._known(plan, {**outside, **dict(zip(names, first, strict=True))})
        turning = None if again is None else self._turning_of(again.compiled, plan, how)
        if again is None or turning is None:
            return None
        budget, values = run.budget.aside(), {**outside, **dict(zip(names, args, strict=True))}
        try:
            made = turning.run(values, how.most, how.room, budget, run.inside.timed)
        except MemoryLimitError:  # one after the other they may have room
            return None
        self._last = again
        if made.late:
            self._one_by_one(plan, {**outside, **dict(zip(names, first, strict=True))})
        run.budget.peak = max(run.budget.peak, budget.peak)
        if made.count and run.inside.timed:
            run.inside.add_later(lambda: again.compiled.turned(made, run.path))
        return Turns(made.count, made.carried, made.stacked)

    def _one_by_one(self, plan: Plan, given: Mapping[str, Array]) -> None:
        """Count a call that took too long. After PATIENT of them, make a new program, without one-call inner loops."""
        self._late += 1
        if self._late < PATIENT:
            return
        self._programs.repeats, self._last = False, None
        self._programs.drop(plan, given)
        with self._lock:
            self._runs[forms(given)] = 0

    def _known(self, plan: Plan, given: Mapping[str, Array]) -> Repeatable | None:
        """The program for values of these shapes: the one used last, one made before, or one made now; else None."""
        last = self._last
        if last is not None and last.taken(given) is not None:
            return last
        compiled = self._programs.ready(plan, given)
        return None if compiled is None else Repeatable.of(compiled, given)

    def _turning_of(self, compiled: Compiled, plan: Plan, how: Round) -> Turning | None:
        """What runs the program for many turns in one call; None where Python must do something between two turns."""
        last, key = self._turning, (how.scanned, how.until)
        if last is None or last[0] is not compiled or last[1] != key:
            last = self._turning = compiled, key, _turning(compiled, plan, how)
        return last[2]

    def ran(self, plan: Plan, given: Mapping[str, Array], events: Sequence[NodeEvent]) -> None:
        """Note that the graph ran step by step, with these events; after OFTEN such runs a program can be made."""
        key = forms(given)
        with self._lock:
            while key not in self._runs and len(self._runs) >= KEPT:
                del self._runs[next(iter(self._runs))]
            count = self._runs[key] = self._runs.get(key, 0) + 1
        if count > 0 and count % AGAIN == OFTEN:
            self._programs.learn(plan, given, tuple(events))


def _directly(again: Repeatable, given: Mapping[str, Array], budget: Budget) -> dict[str, Array] | None:
    """The graph's outputs, without counting the memory of each array;
    None where a limit of time or memory, or the program itself, does not allow that."""
    if again.compiled.direct is None or budget.deadline is not None:
        return None
    try:
        budget.claim((again.nbytes,), 1, "native program")
    except MemoryLimitError:
        return None
    return again.compiled.run_directly(given, budget.aside())


def _too_long(error: Exception) -> bool:
    from qrun.native.errors import TooLong

    return isinstance(error, TooLong)


def _told(events: Iterable[NodeEvent], path: str) -> Iterator[Happening]:
    for event in events:
        assert event.node is not None
        yield f"{path}{event.node.label}", event.node.op, event.duration_ns, event.backend, event.why, 1


def _turning(compiled: Compiled, plan: Plan, how: Round) -> Turning | None:
    from qrun.native.errors import Declined
    from qrun.native.plan.turns import Turning

    if compiled.flat is not None and compiled.flat.needed:
        return None
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
