"""Native programs of graphs inside nodes: made once a graph has run a few times with the same shapes, used from then
on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from qrun.errors import MemoryLimitError, TimeLimitError
from qrun.ir import Array
from qrun.memory import Budget
from qrun.native.errors import Declined
from qrun.ops._context import Repeated
from qrun.running.compiled import Compiled
from qrun.running.derived import blank
from qrun.running.dispatch import NativeKernels, is_undecided
from qrun.running.dryrun import program_ahead
from qrun.running.events import Happening, Inside, NodeEvent
from qrun.running.execution import Repeatable
from qrun.running.plan import Plan
from qrun.running.programs import KEPT, Forms, Programs, forms
from qrun.running.steps import Run
from qrun.running.turns import call_of, happenings, turns_of

if TYPE_CHECKING:
    from qrun.native.plan.turns import LoopBody

OFTEN, AGAIN = 3, 64
"""Runs with the same shapes after which a program is made (which takes as long as some runs step by step); and how many
runs later it is made again, if it was dropped or could not be made."""
_NEVER = -(1 << 40)
PATIENT = 8
"""Failed tries after which turns no longer run in one call."""
ROOM = 1 << 20
"""Bytes that one call reserves for stacked results if it may end early; more if earlier calls kept more."""


class BodyPrograms:
    """The programs of one graph inside a node. Safe to use from several threads."""

    def __init__(self, natives: NativeKernels) -> None:
        self._programs = Programs(natives, natives.arith)
        self._runs: dict[Forms, int] = {}
        self._last: Repeatable | None = None
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, plan: Plan, given: Mapping[str, Array], run: Run) -> Sequence[Array] | None:
        """The graph's outputs from its native program; None where the graph must run step by step. given: the graph's
        inputs, and the values that it reads from around it, by name."""
        again = self._program_for(plan, given)
        if again is None:
            return None
        try:
            directly = None if run.inside.timed else _run_directly(again, given, run.budget)
            made = _with_account(again.compiled, given, run) if directly is None else directly
        except TimeLimitError:
            raise
        except Exception as error:  # step by step it either succeeds, or fails with the words of the reference
            if not is_undecided(error):
                self._last = None
                self._programs.drop(plan, given)
                with self._lock:
                    self._runs[forms(given)] = _NEVER
            return None
        self._last = again
        constants = plan.model.constants
        return [made[v.name] if v.name in made else constants[v.name] for v in plan.model.outputs]

    def repeat(
        self,
        plan: Plan,
        outside: Mapping[str, Array],
        run: Run,
        args: Sequence[Array],
        number: int,
        scanned: Sequence[Array],
        left: int,
        kept: int,
    ) -> Repeated | None:
        """Run turns in one call, as `Body.repeat`. outside: the values that the graph reads from around it."""
        last = self._last
        found = self._loop_program(last, plan, len(scanned)) if last and self._idle < PATIENT else None
        if last is None or found is None:
            return None
        names = [value.name for value in plan.model.inputs]
        values = {**outside, **dict(zip(names, args, strict=True))}
        like = next(iter(last.compiled.program.free.copy()), None)
        if like is None or like.measuring or last.take_feeds(values) is None:
            return None
        values |= dict(zip(names[len(names) - len(scanned) :], scanned, strict=True))
        compiled, turns = found
        most = left if scanned else min(left, max(max(kept, ROOM) // max(turns.element, 1), 1))
        happened, budget = list[Happening](), run.budget.aside()
        watch = (
            (lambda held, tick: happened.extend(happenings(compiled, held, tick, run.path)))
            if run.inside.timed
            else None
        )
        try:
            count, goes, made = turns.run(values, number, most, budget, like, watch)
        except MemoryLimitError:  # one by one they may have room
            return None
        self._idle = 0 if count else self._idle + 1
        run.budget.peak = max(run.budget.peak, budget.peak)
        run.inside.add_told(happened)
        states = [*([] if scanned else [np.array(goes)]), *made[: len(turns.carried)]]
        return (count, states, made[len(turns.carried) :]) if count else None

    def _loop_program(self, last: Repeatable, plan: Plan, scanned: int) -> tuple[Compiled, LoopBody] | None:
        """The program without steps in Python, and its turns; None if there is none. Several calls look for it, as
        programs of graphs inside may be made later."""
        found: tuple[Compiled, LoopBody] | None
        tries, found = last.compiled.turns.get(scanned, (0, None))
        if found is None and tries < PATIENT:
            given = {name: blank(shape, dtype) for name, shape, dtype in last.forms}
            native = self._with_calls(plan, given, last.compiled)
            with suppress(Declined):
                found = (native, turns_of(plan, native, "Scan" if scanned else "Loop", scanned)) if native else None
            last.compiled.turns[scanned] = tries + 1, found
        return found

    def native(self, plan: Plan, given: Mapping[str, Array]) -> Compiled | None:
        """The program for values of these shapes, without Python steps, made now if shapes suffice; None if there is
        none."""
        compiled = self._programs.ready(plan, given)
        if compiled is None:
            program_ahead(self._programs, plan, {}, given, False, Budget())
            compiled = self._programs.ready(plan, given)
        return compiled and self._with_calls(plan, given, compiled)

    def _with_calls(self, plan: Plan, given: Mapping[str, Array], compiled: Compiled) -> Compiled | None:
        """Replace a body's Python steps by native calls of the loops inside; None if a step is none of these."""
        steps, programs = compiled.program.listing.steps, self._programs
        if not (steps and all(plan.steps[number].bodies for number in steps)):
            return None if steps else compiled
        return programs.with_calls(plan, given, compiled, lambda step, infos: call_of(step, programs.natives, infos))

    def _program_for(self, plan: Plan, given: Mapping[str, Array]) -> Repeatable | None:
        """The program for values of these shapes: the one used last, one made before, or one made now; else None."""
        last = self._last
        if last is not None and last.take_feeds(given) is not None:
            return last
        compiled = self._programs.ready(plan, given)
        return None if compiled is None else Repeatable.of(compiled, given)

    def ran(self, plan: Plan, given: Mapping[str, Array], events: Sequence[NodeEvent]) -> None:
        """Note that the graph ran step by step, with these events; after OFTEN such runs a program can be made."""
        key = forms(given)
        with self._lock:
            while key not in self._runs and len(self._runs) >= KEPT:
                del self._runs[next(iter(self._runs))]
            count = self._runs[key] = self._runs.get(key, 0) + 1
        if count > 0 and count % AGAIN == OFTEN:
            self._programs.learn(plan, given, tuple(events))


def _run_directly(again: Repeatable, given: Mapping[str, Array], budget: Budget) -> dict[str, Array] | None:
    """The graph's outputs, computed without counting the memory of each array; None where a limit of time or memory, or
    the program itself, does not allow that."""
    direct = again.direct
    if direct is None or budget.deadline is not None:
        return None
    try:
        budget.claim((again.nbytes,), 1, "native program")
    except MemoryLimitError:
        return None
    return direct.run(given) if direct.alone else again.compiled.run_directly(given, budget.aside())


def _with_account(compiled: Compiled, given: Mapping[str, Array], run: Run) -> Mapping[str, Array]:
    """The graph's outputs except constant ones, with memory counted and, in a timed run, events noted."""
    budget, inside = run.budget.aside(), Inside(run.inside.timed)
    ran = compiled.run(given, budget, inside, None, inside.timed, run.path)
    run.budget.peak = max(run.budget.peak, budget.peak)
    if inside.timed:
        run.inside.add_later(lambda: compiled.events_of(ran), run.path)
        run.inside.add_all(inside)
    return ran.values
