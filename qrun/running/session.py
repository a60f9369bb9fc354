"""A model ready to run: backend, plans and programs, made once and kept."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar, get_args

from qrun.declare.frozen import frozen, replace
from qrun.errors import CallError, TimeLimitError, UnsupportedError, choose
from qrun.io.feeds import check_feeds
from qrun.ir import Array, Model, TensorType
from qrun.ir.compound import unwrapped
from qrun.memory import Budget, Deadline, default_limit
from qrun.ops import Arith
from qrun.passes import has_tables, makes_tables, optimize
from qrun.running.bodies import BodyPrograms
from qrun.running.compiled import Compiled
from qrun.running.cpus import usable_cpus
from qrun.running.dispatch import NativeKernels, begin, cache_refused, make_engine, undecided
from qrun.running.dryrun import program_ahead
from qrun.running.execution import Repeatable, RunResult, execute, expected_failure, run_program
from qrun.running.images import Images, KeptPrograms
from qrun.running.keptmodels import load_kept
from qrun.running.observer import run_observed
from qrun.running.plan import BACKENDS, Plan, plan
from qrun.running.programs import Programs
from qrun.running.steps import NodeEvent, TensorInfo
from qrun.running.times import InsideEvent

if TYPE_CHECKING:
    import onnx

    from qrun.native.machine.engine import Engine
    from qrun.running.profiling import Profile, Progress, TimedRunner

__all__ = ["InsideEvent", "NodeEvent", "RunResult", "Session", "TensorInfo"]

PATIENCE_NS = 2 * 10**9
"""The longest first run that `measured` repeats."""
PATIENCE_STEPS = 20_000
"""The most steps that it makes a program of, which takes a tenth of a millisecond for each."""
LATER_NS, LATER_RUNS = 6 * 10**6, 20
"""It runs no more when later runs have taken so long, or are so many."""
AHEAD_STEPS = 2000
"""The most steps of which a program is made before they run for the first time, with the further shapes of a session."""
PLANS = 8
"""Plans kept per session, for different outputs, and sessions for different defaults replaced; the oldest goes."""
T = TypeVar("T")
ARITHMETICS: tuple[Arith, ...] = get_args(Arith)


class Session:
    """A model ready to run.

    model:      a path, the bytes of a file, an onnx.ModelProto, or a loaded Model.
    backend:    ``reference``: exact numpy kernels; ``native``: kernels compiled for this CPU, with the same results, for
                the nodes that have one (the others run on the reference kernels; the events tell). None: native
                where it can run, else reference; then `fallback` says why.
    arith:      ``exact`` (the correctly rounded real value), ``ort`` or ``onnx-ref`` (those runtimes' float arithmetic).
    fuse:       run the graph with integer operators in place of DequantizeLinear-operator-QuantizeLinear groups, and
                tables in place of chains of pointwise nodes (qrun.passes tells what stays equal); None: unless the
                reference backend is asked for.
    threads:    of the native kernels; None: as many as the CPUs that this process may use.
    max_memory: bytes a run may hold at once: its inputs while it needs them, every tensor that it makes, and its results;
                not the weights, which the model holds. None: 80 % of what is free. A run that would need more is
                refused with MemoryLimitError, before it takes much if shapes tell.
    max_time:   seconds that a run may take, kernels that it has to have compiled among them; None: any time. One that takes
                longer ends with TimeLimitError, after the node or the turn of a loop that it is at.
    cache:      where compiled native kernels are kept: True for the folder in the environment variable
                QRUN_CACHE_DIR, or the user's private cache folder, False for nowhere, or a directory. It must be this
                user's alone.
    isa:        a native instruction set; "" for the one in QRUN_ISA, or the best of this CPU.

    Raises QrunError: CallError, ModelError or UnsupportedError here, RunError in `run`.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto | Model,
        *,
        backend: str | None = None,
        arith: Arith = "exact",
        fuse: bool | None = None,
        threads: int | None = None,
        max_memory: int | None = None,
        max_time: float | None = None,
        cache: str | os.PathLike[str] | bool = True,
        isa: str = "",
    ) -> None:
        choose("backend", backend or BACKENDS[0], BACKENDS)
        choose("arith", arith, ARITHMETICS)
        if max_memory is not None and (not isinstance(max_memory, int) or max_memory < 0):
            raise _bad_argument("max_memory", "a number of bytes, or None", max_memory)
        if max_time is not None and (not isinstance(max_time, (int, float)) or not max_time >= 0):
            raise _bad_argument("max_time", "a number of seconds, or None", max_time)
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise _bad_argument("threads", "at least 1, or None", threads)
        if not isinstance(model, (str, Path, bytes, Model)) and not hasattr(model, "graph"):
            raise _bad_argument("model", "a path, bytes, an onnx.ModelProto or a qrun.Model", model)
        start = perf_counter_ns()
        self.model = model if isinstance(model, Model) else load_kept(model, backend != "reference" and cache)
        self._settled = self.model.settled()
        self._like = partial(Session, backend=backend, arith=arith, fuse=fuse, threads=threads, max_memory=max_memory,
                             max_time=max_time, cache=cache, isa=isa)  # fmt: skip
        self._defaults = frozenset(value.name for value in self.model.defaults)
        self._replacing: dict[frozenset[str], Session] = {}
        self.arith: Arith = arith
        self.threads = threads or usable_cpus()
        self.max_memory = max_memory
        self.max_time = None if max_time == math.inf else max_time
        self._engine, self.fallback = _engine(backend, isa, cache, self.threads)
        self.backend = "native" if self._engine else "reference"
        self.fuse = backend != "reference" if fuse is None else fuse
        self._lock = threading.Lock()
        self._again: Repeatable | None = None
        self._watched: tuple[Prepared, Plan] | None = None
        self._images = Images.of(self._engine, self._settled, arith, self.fuse)
        self._kept = KeptPrograms(self._images) if self._images and max_memory is None else None
        self._plans: dict[tuple[tuple[str, ...], bool], Prepared] = {}
        self._first_plan: Plan | None = None
        if not (self._images and self._images.planned):
            if self._engine and self._images:
                begin(self._engine)
            self._first_plan = plan(self._settled)
        self.load_ns = perf_counter_ns() - start

    def __repr__(self) -> str:
        return f"<qrun.Session {self.model.label}: {len(self.model.nodes)} nodes, {self.backend}, {self.arith}>"

    @property
    def cache_refused(self) -> str:
        """Why compiled native kernels are not kept though they should be; "" if they are, or need not be."""
        return cache_refused(self._engine) if self._engine else ""

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The inputs that must be fed."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The outputs of the graph."""
        return self.model.outputs

    def get_inputs(self) -> list[TensorType]:
        """`inputs`, under onnxruntime's name."""
        return list(self.inputs)

    def get_outputs(self) -> list[TensorType]:
        """`outputs`, under onnxruntime's name."""
        return list(self.outputs)

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run once and return arrays by name.

        feeds:   an array of the exact type and shape for each input; a list of arrays for a sequence, None for an optional
                 value that is none, a dict for a map, here and in what is returned.
        outputs: names (or the name) of any tensors of the graph; None: the graph's outputs.
        """
        made = self._execute(feeds, outputs, False, False).outputs
        return {name: unwrapped(value) for name, value in made.items()}

    def values(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """As `run`, with sequences, maps and optional values as ir/compound.py has them."""
        return dict(self._execute(feeds, outputs, False, False).outputs)

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once and return outputs with an event per node.

        observe: let kernels look for saturation, NaN and wrap-around, which costs time.
        """
        return self._execute(feeds, outputs, observe, True)

    def measured(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> RunResult:
        """Run as `execute` does, then as a native program a few times, of which the fastest gives the result its times.

        There is no program without native kernels, none of more than 20,000 steps, and after a first run of more than two
        seconds it is only made to be kept for later processes.
        """
        if (other := self._of(feeds, outputs)) is not self:
            return other.measured(feeds, outputs)
        first = self.execute(feeds, outputs)
        slow = first.duration_ns > PATIENCE_NS
        if (slow and self._kept is None) or len(first.events) > PATIENCE_STEPS:
            return first
        values = check_feeds(self.model, feeds)
        keep = self._names(outputs)
        least = (
            1 if self._kept and self._kept.find(keep, True, values) else 2
        )  # the first of a program takes its memory
        compiled = self._compiled(keep, values, first)
        if compiled is None or slow:
            return first
        try:
            later = [run_program(compiled, values, self._budget(), True) for _ in range(least)]
            while len(later) < LATER_RUNS and sum(run.duration_ns for run in later) < LATER_NS:
                later.append(run_program(compiled, values, self._budget(), True))
        except Exception as error:
            if not expected_failure(error):
                raise
            return first
        return first.timed_as(later)

    def _compiled(self, keep: tuple[str, ...], values: Mapping[str, Array], first: RunResult) -> Compiled | None:
        """The program for what an observing run was asked for and given."""
        kept = self._kept.find(keep, True, values) if self._kept else None
        if kept is not None:
            return kept.compiled
        chosen = self._prepared(keep, True)
        if chosen.programs is None:
            return None
        found = chosen.programs.ready(chosen.plan, values)
        if found is None:
            chosen.programs.learn(chosen.plan, values, tuple(first.events))
            found = chosen.programs.ready(chosen.plan, values)
        if self._kept is not None:
            self._kept.add(found, self._serves(keep, True), values, first)
        return found

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """The plain values that `make` makes of the model, or made of it in an earlier process; name: of what they are."""
        return self._images.values(name, make) if self._images else make()

    def watch(
        self, feeds: Mapping[str, Array], see: Callable[[str, Array], None], tensors: Sequence[str] = ()
    ) -> RunResult:
        """Run once as `execute` does, and show every tensor to `see` while it is there: its name and its value.

        A value is freed after its last use, so that no more memory is needed than for a run.
        tensors: names that are made for certain; a fused graph may otherwise do without some.
        """
        if (other := self._of(feeds)) is not self:
            return other.watch(feeds, see, tensors)
        chosen = self._prepared(tuple(dict.fromkeys([*(v.name for v in self.model.outputs), *tensors])), True)
        if self._watched is None or self._watched[0] is not chosen:
            self._watched = chosen, plan(chosen.plan.model)
        return execute(self._watched[1], check_feeds(self.model, feeds), arith=self.arith,
                       budget=self._budget(), natives=chosen.natives, groups=chosen.groups, see=see)  # fmt: skip

    def _execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None, observe: bool, timed: bool
    ) -> RunResult:
        last = self._again
        if last is not None and outputs is None and not observe and last.takes(feeds):
            try:
                return run_program(last.compiled, feeds, self._budget(), timed)
            except TimeLimitError:
                raise
            except Exception:  # as if it were the first time
                self._again = None
        if (other := self._of(feeds, outputs)) is not self:
            return other._execute(feeds, outputs, observe, timed)
        values, budget = check_feeds(self.model, feeds), self._budget()
        keep = self._names(outputs)
        kept = self._kept.find(keep, observe, values) if self._kept else None
        if kept is not None and self._kept is not None:
            try:
                if observe:
                    return run_observed(kept, values, budget)
                result = run_program(kept.compiled, values, budget, timed)
                self._remember(kept.compiled, values, outputs)
                return result
            except TimeLimitError:
                raise
            except Exception:  # step by step it either succeeds, or fails with the words of the reference
                self._kept.drop(keep, observe, values)
                budget = budget.anew()
        chosen = self._prepared(keep, observe)
        opening = self._kept is not None and self._kept.opens(keep, values)
        begun = self._begun(chosen, keep, values, observe) if opening else None
        if begun is not None:
            return begun
        if chosen.programs is None or observe:
            return self._step_by_step(chosen, values, budget, observe)
        compiled, again = chosen.programs.ready(chosen.plan, values), True
        further = chosen.programs.returning and self.max_memory is None
        if compiled is None and further and len(chosen.plan.steps) <= AHEAD_STEPS:
            program_ahead(chosen.programs, chosen.plan, chosen.groups, values, False, self._budget())
            compiled, again = chosen.programs.made_ahead(chosen.plan, values), False
        failed: Exception | None = None
        if compiled is not None:
            try:
                result = run_program(compiled, values, budget, timed)
                if again:
                    self._keep_program(compiled, keep, values, result)
                    self._remember(compiled, values, outputs)
                return result
            except TimeLimitError:
                raise
            except Exception as error:
                failed, budget = error, budget.anew()
        result = self._step_by_step(chosen, values, budget, observe)
        if failed is not None and not expected_failure(failed):
            raise failed
        if failed is None or not undecided(failed):
            chosen.programs.learn(chosen.plan, values, tuple(result.events))
            if failed is None and self._kept is not None and opening:
                made = chosen.programs.ready(chosen.plan, values)
                self._keep_program(made, keep, values, result)
        return result

    def _of(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> Session:
        """The session that these feeds run in: another where they replace defaults, which are constants here.

        Raises CallError where they are no feeds."""
        if not isinstance(feeds, Mapping):
            raise _no_feeds(self.model, feeds, outputs)
        replaced = self._defaults.intersection(feeds)
        if not replaced:
            return self
        with self._lock:
            if replaced not in self._replacing:
                while len(self._replacing) >= PLANS:
                    del self._replacing[next(iter(self._replacing))]
                self._replacing[replaced] = self._like(self.model.settled(replaced))
            return self._replacing[replaced]

    def _remember(self, compiled: Compiled, values: Mapping[str, Array], outputs: Sequence[str] | None) -> None:
        """What the next run may repeat, if it asks for the graph's outputs too."""
        if outputs is None:
            self._again = Repeatable.of(compiled, values)

    def _begun(
        self, chosen: Prepared, keep: tuple[str, ...], values: Mapping[str, Array], observe: bool
    ) -> RunResult | None:
        """Make the program for these inputs before any run, if shapes tell all that it takes; and run it, if it is to observe,
        and can."""
        made = program_ahead(chosen.programs, chosen.plan, chosen.groups, values, observe, self._budget())
        if made is None or self._kept is None:
            return None
        try:
            result = run_observed(made, values, self._budget())
        except TimeLimitError:
            raise
        except Exception:  # a run step by step either succeeds, or fails with the words of the reference
            return None
        self._kept.put(keep, True, values, made)
        first = replace(result, peak_bytes=made.peak)
        self._kept.add(made.compiled, self._serves(keep, True), values, first, made.held)
        return result

    def _keep_program(
        self, made: Compiled | None, keep: tuple[str, ...], values: Mapping[str, Array], first: RunResult
    ) -> None:
        """Keep a program that runs which do not observe made, where one is wanted."""
        if self._kept is not None and self._kept.wants(keep, values):
            self._kept.add(made, self._serves(keep, False), values, first)

    def _serves(self, keep: tuple[str, ...], observe: bool) -> tuple[bool, ...]:
        """Whether runs that observe, or do not, or both, run a program that was made for these outputs by such a run."""
        plain = self._plans.get((keep, False))
        shared = keep == self._names(None) and plain is not None and not has_tables(plain.plan.model)
        return (observe, not observe) if shared else (observe,)

    def _step_by_step(self, chosen: Prepared, values: Mapping[str, Array], budget: Budget, observe: bool) -> RunResult:
        return execute(chosen.plan, values, arith=self.arith, budget=budget, observe=observe, natives=chosen.natives,
                       groups=chosen.groups, ahead=self.max_memory is None)  # fmt: skip

    def _names(self, outputs: Sequence[str] | None) -> tuple[str, ...]:
        """The tensors that are asked for, each once; the graph's outputs where none are."""
        given = (outputs,) if isinstance(outputs, str) else tuple(outputs or ())
        return tuple(dict.fromkeys(given)) or tuple(v.name for v in self.model.outputs)

    def _budget(self) -> Budget:
        deadline = None if self.max_time is None else Deadline(self.max_time)
        return Budget(default_limit if self.max_memory is None else self.max_memory, deadline)

    def as_written(self, outputs: Sequence[str] | None = None) -> dict[int, str]:
        """The nodes, by index, that a run for these outputs does not fuse or tabulate with others, and why."""
        return dict(self._prepared(self._names(outputs), True).reasons)

    def profile(
        self,
        feeds: Mapping[str, Array],
        *,
        runs: int | None = None,
        warmup: int = 1,
        seconds: float = 3.0,
        progress: Progress | None = None,
    ) -> Profile:
        """Run repeatedly and return all timings. runs: None for as many as fit in `seconds`, 5 to 1000.

        The native backend makes its kernels in the first run and its program in the second: these are not timed, and not
        counted as warm-up.
        """
        from qrun.running.profiling import measure

        if runs is not None and runs < 1:
            raise _bad_argument("runs", "at least 1, or None", runs)
        runner = self.runner(feeds)
        return measure(runner.run, self.model, runs, warmup, seconds, progress, runner.prepare)

    def runner(self, feeds: Mapping[str, Array]) -> TimedRunner:
        """A runner with these inputs, to be measured in turn with others."""
        from qrun.running.profiling import TimedRunner

        prepare = 2 if self._engine is not None and self.model.nodes else 0
        settle = 0.002 if self.threads > 1 else 0.0
        return TimedRunner(lambda: self.execute(feeds, observe=False), self.model, prepare, settle=settle)

    def _prepared(self, keep: tuple[str, ...], observe: bool) -> Prepared:
        """The plan for these outputs, or the graph's, and what runs it; plans of one model share their native kernels."""
        keep = keep or self._names(None)
        with self._lock:
            key = (keep, observe and self.fuse)
            found = self._plans.get(key)
            if found is None:
                while len(self._plans) >= PLANS:
                    del self._plans[next(iter(self._plans))]
                found = self._plans[key] = self._prepare(*key)
            return found

    def _prepare(self, keep: tuple[str, ...], observe: bool) -> Prepared:
        usual = keep == self._names(None)
        if observe and usual and (keep, False) not in self._plans and not makes_tables(self._settled, self.arith):
            self._plans[keep, False] = self._prepare(keep, False)
        other = self._plans.get((keep, not observe))
        if other is not None and not has_tables(other.plan.model) and (observe or not usual):
            return other
        first = self._first_plan if usual and self._first_plan else plan(self._settled, keep)
        if not self.fuse:
            return self._with_kernels(first, {}, {})
        kept = self._images.optimized if self._images else None
        done = optimize(self._settled, frozenset(first.keep), self.arith, "literal" if observe else "tables", kept)
        reasons = {refusal.index: refusal.reason for refusal in done.refused}
        best = first if done.model is self._settled else plan(done.model, keep)
        return self._with_kernels(best, done.groups, reasons)

    def _with_kernels(self, plan: Plan, groups: Mapping[int, tuple[int, ...]], reasons: Mapping[int, str]) -> Prepared:
        if self._engine is None:
            return Prepared(plan, groups, reasons)
        shared = next((p.natives for p in self._plans.values() if p.plan.model is plan.model), None)
        natives = shared or NativeKernels(plan.model, self._engine, self.arith, reasons)
        natives.of_bodies = BodyPrograms
        return Prepared(plan, groups, reasons, natives, Programs(natives, self.arith))


@frozen
class Prepared:
    """A plan and what runs it.

    groups:  for each of its nodes, by index, the model's nodes that it stands for.
    reasons: why nodes stand for themselves, by index.
    """

    plan: Plan
    groups: Mapping[int, tuple[int, ...]]
    reasons: Mapping[int, str]
    natives: NativeKernels | None = None
    programs: Programs | None = None


def _engine(
    backend: str | None, isa: str, cache: str | os.PathLike[str] | bool, threads: int
) -> tuple[Engine | None, str]:
    """The native engine, or None; and why there is none although the reference backend was not asked for."""
    if backend == "reference":
        return None, ""
    try:
        return make_engine(isa, cache, threads), ""
    except UnsupportedError as error:
        if backend is not None:
            raise
        return None, dict(error.facts).get("got", str(error))


def _bad_argument(name: str, expected: str, got: object) -> CallError:
    shown = repr(got) if isinstance(got, (int, float, str)) else type(got).__name__
    return CallError("QR005", f"{name} is not usable", facts=[("expected", expected), ("got", shown[:80])])


def _no_feeds(model: Model, feeds: object, outputs: object) -> CallError:
    """Of a call without inputs in the first place; onnxruntime has them in the second."""
    wanted = "" if feeds is None else f", {feeds!r}" if isinstance(feeds, (str, list, tuple)) else ""
    turned = isinstance(outputs, Mapping)
    name = model.outputs[0].name if model.outputs else "y"
    given = "{" + ", ".join(f"{v.name!r}: array" for v in model.inputs[:3]) + "}"
    return CallError("QR005", "run takes the inputs first, then the names of outputs" if turned else "feeds is not usable",
                     facts=[("expected", "a dict of arrays by input name"), ("got", repr(feeds)[:80] if turned else type(feeds).__name__)],
                     fixes=[f"session.run({given}{wanted[:80]}) returns a dict: result[{name!r}]"])  # fmt: skip
