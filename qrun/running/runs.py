"""The runs of one model: makes its plans and programs once, and chooses the fastest way for each run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from qrun.declare.frozen import frozen, replace
from qrun.errors import CallError, TimeLimitError
from qrun.io.feeds import check_feeds
from qrun.ir import Array, Model
from qrun.memory import Budget
from qrun.ops import Arith
from qrun.passes import has_tables, makes_tables, optimize
from qrun.running.bodies import BodyPrograms
from qrun.running.compiled import Compiled
from qrun.running.dispatch import NativeKernels, is_undecided
from qrun.running.dryrun import program_ahead
from qrun.running.engine import begin
from qrun.running.execution import (
    Repeatable,
    RunLimits,
    RunRequest,
    RunResult,
    execute,
    is_expected_failure,
    run_program,
)
from qrun.running.kept.images import Images, KeptPrograms
from qrun.running.kept.programs import observing_program
from qrun.running.observer import run_observed
from qrun.running.plan import Plan, plan
from qrun.running.programs import Programs

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine

KEPT_STEPS = 20_000
"""The most steps for which `run_observed` makes a program: this takes a tenth of a millisecond for each."""
AHEAD_STEPS = 2000
"""The most steps for which a program is made before the first run with further shapes of a session."""
PLANS = 8
"""Plans kept, for different outputs; the oldest is dropped."""


class Runs:
    """All runs of a model with the same constants. Safe to use from several threads.

    model: all of its inputs are fed. engine: None on the reference backend.
    plans: by the names of the outputs, and by whether runs of a fused graph observe.
    """

    def __init__(self, model: Model, engine: Engine | None, arith: Arith, fuse: bool, limits: RunLimits) -> None:
        self.model, self.arith, self.fuse, self.limits = model, arith, fuse, limits
        self._settled, self._engine = model.with_fed_defaults(), engine
        self._lock = threading.Lock()
        self.again: Repeatable | None = None
        self._watched: tuple[Prepared, Plan] | None = None
        self.images = Images.of(engine, self._settled, arith, fuse)
        self.kept = KeptPrograms(self.images) if self.images and limits.max_memory is None else None
        self.plans: dict[tuple[tuple[str, ...], bool], Prepared] = {}
        self._first_plan: Plan | None = None
        if not (self.images and self.images.planned):
            if engine and self.images:
                begin(engine)
            self._first_plan = plan(self._settled)

    def repeat(self, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """The graph's outputs, if the last run's program computes them in one call; None where `run` must be called."""
        last = self.again
        return None if last is None else last.compute_outputs(feeds, self.limits)

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None, observe: bool, timed: bool) -> RunResult:
        """Run once, as `Session.execute`. timed: with events; runs that observe always have them."""
        last = self.again
        taken = None if last is None or outputs is not None or observe else last.take_feeds(feeds)
        if last is not None and taken is not None and last.count_run():
            result = _try_program(lambda: run_program(last.compiled, taken, self.limits.budget(), timed))
            if result is not None:
                return result
            self.again = None
        asked = RunRequest(check_feeds(self.model, feeds), self.names(outputs), observe, timed, self.limits.budget())
        return self._run_kept(asked) or self._run_own(asked)

    def _run_kept(self, asked: RunRequest) -> RunResult | None:
        """Run a program that an earlier process made, or one made ahead for observing; None where there is none."""
        keep, observe, values = asked.keep, asked.observe, asked.values
        own = None if observe else self.plans.get((keep, False))
        known = bool(own and own.programs and own.programs.runs_any(own.plan, values))
        kept = self.kept.find(keep, observe, values, known) if self.kept else None
        if kept is None or self.kept is None:
            return None
        if observe:
            result = _try_program(lambda: run_observed(kept, values, asked.budget))
        else:
            result = _try_program(lambda: run_program(kept.compiled, values, asked.budget, asked.timed))
        if result is None:
            self.kept.drop(keep, observe, values)
        elif not observe:
            self._remember(kept.compiled, asked)
        return result

    def _run_own(self, asked: RunRequest) -> RunResult:
        """Run this process's program if there is one, else step by step, and record what making a program needs."""
        keep, values, budget = asked.keep, asked.values, asked.budget.anew()
        chosen = self.prepare(keep, asked.observe)
        opening = self.kept is not None and self.kept.opens(keep, asked.observe, values)
        first = self._run_ahead(chosen, asked) if opening else None
        if first is not None:
            return first
        if chosen.programs is None or asked.observe:
            return self._step_by_step(chosen, values, budget, asked.observe)
        ahead = self.limits.max_memory is None and len(chosen.plan.steps) <= AHEAD_STEPS
        given = chosen.programs, chosen.plan, chosen.groups, values, False
        make = (lambda: program_ahead(*given, self.limits.budget())) if ahead else None
        compiled, again = chosen.programs.find(chosen.plan, values, make)
        failed: Exception | None = None
        if compiled is not None:
            try:
                result = run_program(compiled, values, budget, asked.timed)
                if again:
                    self._keep_program(compiled, keep, values, result)
                    self._remember(compiled, asked)
                return result
            except TimeLimitError:
                raise
            except Exception as error:
                failed, budget = error, budget.anew()
        result = self._step_by_step(chosen, values, budget, False)
        if failed is not None and not is_expected_failure(failed):
            raise failed
        if failed is None or not is_undecided(failed):
            chosen.programs.learn(chosen.plan, values, tuple(result.events))
            if failed is None and opening:
                self._keep_program(chosen.programs.ready(chosen.plan, values), keep, values, result)
        return result

    def run_observed(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> RunResult:
        """See `Session.run_observed`."""
        first = self.run(feeds, outputs, True, True)
        if self.kept is not None and len(first.events) <= KEPT_STEPS:
            self._keep_observed(self.names(outputs), check_feeds(self.model, feeds), first)
        return first

    def watch(
        self, feeds: Mapping[str, Array], see: Callable[[str, Array], None], tensors: Sequence[str] = ()
    ) -> RunResult:
        """See `Session.watch`."""
        chosen = self.prepare(tuple(dict.fromkeys([*(v.name for v in self.model.outputs), *tensors])), True)
        if self._watched is None or self._watched[0] is not chosen:
            self._watched = chosen, plan(chosen.plan.model)
        return execute(self._watched[1], check_feeds(self.model, feeds), arith=self.arith,
                       budget=self.limits.budget(), natives=chosen.natives, groups=chosen.groups, see=see)  # fmt: skip

    def names(self, outputs: Sequence[str] | None) -> tuple[str, ...]:
        """The names of the requested tensors, each once; the graph's outputs if none are requested.

        Raises CallError for anything but names."""
        given = (outputs,) if isinstance(outputs, str) else outputs or ()
        if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
            facts = [("expected", "names of tensors, or None for the graph's outputs"), ("got", repr(outputs)[:80])]
            raise CallError("QR005", "outputs is not valid", facts=facts)
        return tuple(dict.fromkeys(given)) or tuple(v.name for v in self.model.outputs)

    def prepare(self, keep: tuple[str, ...], observe: bool) -> Prepared:
        """The plan for these outputs, or the graph's, and what runs it. Plans of one model share native kernels."""
        keep = keep or self.names(None)
        with self._lock:
            key = (keep, observe and self.fuse)
            found = self.plans.get(key)
            if found is None:
                while len(self.plans) >= PLANS:
                    del self.plans[next(iter(self.plans))]
                found = self.plans[key] = self._prepare(*key)
            return found

    def _keep_observed(self, keep: tuple[str, ...], values: Mapping[str, Array], first: RunResult) -> None:
        """Make the program for the outputs and inputs of `first`, an observing run, and keep it, if none is kept."""
        if self.kept is None or self.kept.find(keep, True, values) is not None:
            return
        chosen = self.prepare(keep, True)
        if chosen.programs is None:
            return
        found = chosen.programs.ready(chosen.plan, values)
        if found is None:
            chosen.programs.learn(chosen.plan, values, tuple(first.events))
            found = chosen.programs.ready(chosen.plan, values)
        self.kept.add(found, self._serves(keep, True), values, first)

    def _remember(self, compiled: Compiled, asked: RunRequest) -> None:
        """Let the next run repeat this program, if this run returned the graph's outputs."""
        if asked.keep == self.names(None):
            awaited = self.kept.runs_left(asked.keep, asked.values) if self.kept else None
            self.again = Repeatable.of(compiled, asked.values, awaited)

    def _run_ahead(self, chosen: Prepared, asked: RunRequest) -> RunResult | None:
        """Make the program for these inputs before any run, if shapes suffice; run it if this run observes."""
        keep, values = asked.keep, asked.values
        ahead = program_ahead(chosen.programs, chosen.plan, chosen.groups, values, asked.observe, self.limits.budget())
        made = observing_program(*ahead) if ahead and asked.observe else None
        if made is None or self.kept is None:
            return None
        result = _try_program(lambda: run_observed(made, values, self.limits.budget()))
        if result is None:
            return None
        self.kept.put(keep, True, values, made)
        first = replace(result, peak_bytes=made.peak)
        self.kept.add(made.compiled, self._serves(keep, True), values, first, made.held)
        return result

    def _keep_program(
        self, made: Compiled | None, keep: tuple[str, ...], values: Mapping[str, Array], first: RunResult
    ) -> None:
        """Keep a program of runs that do not observe, if `KeptPrograms.wants` says so."""
        if self.kept is not None and self.kept.wants(keep, values):
            self.kept.add(made, self._serves(keep, False), values, first)

    def _serves(self, keep: tuple[str, ...], observe: bool) -> tuple[bool, ...]:
        """Which runs the program of a run serves: those that observe (True), those that do not (False), or both."""
        plain = self.plans.get((keep, False))
        shared = keep == self.names(None) and plain is not None and not has_tables(plain.plan.model)
        return (observe, not observe) if shared else (observe,)

    def _step_by_step(self, chosen: Prepared, values: Mapping[str, Array], budget: Budget, observe: bool) -> RunResult:
        """Run node after node, without a program."""
        return execute(chosen.plan, values, arith=self.arith, budget=budget, observe=observe, natives=chosen.natives,
                       groups=chosen.groups, ahead=self.limits.max_memory is None)  # fmt: skip

    def _prepare(self, keep: tuple[str, ...], observe: bool) -> Prepared:
        """Optimize and plan the model for these outputs; kept for later runs."""
        usual = keep == self.names(None)
        if observe and usual and (keep, False) not in self.plans and not makes_tables(self._settled, self.arith):
            self.plans[keep, False] = self._prepare(keep, False)
        other = self.plans.get((keep, not observe))
        if other is not None and not has_tables(other.plan.model) and (observe or not usual):
            return other
        first = self._first_plan if usual and self._first_plan else plan(self._settled, keep)
        if not self.fuse:
            return self._with_kernels(first, {}, {})
        kept = self.images.load_or_optimize if self.images else None
        done = optimize(self._settled, frozenset(first.keep), self.arith, "literal" if observe else "tables", kept)
        reasons = {refusal.index: refusal.reason for refusal in done.refused}
        best = first if done.model is self._settled else plan(done.model, keep)
        return self._with_kernels(best, done.groups, reasons)

    def _with_kernels(self, plan: Plan, groups: Mapping[int, tuple[int, ...]], reasons: Mapping[int, str]) -> Prepared:
        """Add the native kernels to a plan, shared with other plans of the same model."""
        if self._engine is None:
            return Prepared(plan, groups, reasons)
        shared = next((p.natives for p in self.plans.values() if p.plan.model is plan.model), None)
        natives = shared or NativeKernels(plan.model, self._engine, self.arith, reasons)
        natives.of_bodies = BodyPrograms
        return Prepared(plan, groups, reasons, natives, Programs(natives, self.arith))


@frozen
class Prepared:
    """A plan, its kernels and its programs.

    groups: by index of a planned node, the model's nodes that it replaces; reasons: by index, why one is not fused.
    """

    plan: Plan
    groups: Mapping[int, tuple[int, ...]]
    reasons: Mapping[int, str]
    natives: NativeKernels | None = None
    programs: Programs | None = None


def _try_program(run: Callable[[], RunResult]) -> RunResult | None:
    """The result of a program; None where it failed for any reason but time. A run step by step then either succeeds,
    if the program lacked memory, met other shapes or could not decide a result, or it fails with the words of the
    reference."""
    try:
        return run()
    except TimeLimitError:
        raise
    except Exception:
        return None
