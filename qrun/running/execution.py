"""Runs a plan: feeds in, outputs and one event per node out, step by step or as a native program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare import stored
from qrun.declare.frozen import changeable, frozen
from qrun.declare.stored import Part, borrow
from qrun.errors import MemoryLimitError, RunError
from qrun.ir import Array, Model
from qrun.ir.compound import Compound, of_type, parts, tensors, to_runtime
from qrun.ir.types import describe, type_name
from qrun.memory import SMALL, Budget, Deadline, default_limit
from qrun.native.errors import Undecided, Unplanned
from qrun.ops import Arith
from qrun.running.compiled import Compiled
from qrun.running.dispatch import NativeKernels
from qrun.running.events import UNTIMED, Clock, Inside, InsideEvent, NodeEvent
from qrun.running.plan import Plan
from qrun.running.pythonsteps import Observing
from qrun.running.steps import Run, run_step

if TYPE_CHECKING:
    from qrun.native.plan.program import Direct


@frozen
class RunResult:
    """Outputs by name, in the order requested; one event per node; ns of the whole run; peak bytes of live tensors and
    claimed scratch.

    start_ns: on the clock of the events' start_ns, which stands still while native kernels are made, and while the
              reference kernels observe what native ones cannot; aside_ns: how long the clock stood still.
    inside:   one event per node that ran in a graph inside a node, ordered by the node's first run.
    """

    outputs: Mapping[str, Array]
    events: Sequence[NodeEvent]
    duration_ns: int
    peak_bytes: int
    start_ns: int = 0
    aside_ns: int = 0
    inside: Sequence[InsideEvent] = ()


@changeable
class RunLimits:
    """Limits of a run, from the next run on: max_memory in bytes, max_time in seconds; None as in `Session`."""

    max_memory: int | None
    max_time: float | None

    def allow(self, nbytes: int) -> bool:
        """Whether a run that never holds more than `nbytes` needs no account of memory and time."""
        return self.max_time is None and nbytes <= (SMALL if self.max_memory is None else min(self.max_memory, SMALL))

    def budget(self) -> Budget:
        """The account of a run that begins now."""
        deadline = None if self.max_time is None else Deadline(self.max_time)
        return Budget(default_limit if self.max_memory is None else self.max_memory, deadline)


@frozen
class RunRequest:
    """A requested run. values: checked feeds. keep: names of outputs. observe, timed: whether it observes, and whether
    it returns events. budget: counts its memory and time."""

    values: Mapping[str, Array]
    keep: tuple[str, ...]
    observe: bool
    timed: bool
    budget: Budget


@changeable
class RunsLeft:
    """Counts down the runs after which a program is kept for later processes. left: how many remain."""

    left: int


@frozen
class Repeatable:
    """A program that has run, ready to run again on feeds of the same forms, which need no further check. forms: name,
    shape and type of each input. awaited: counts the runs until the program is kept, None if nothing counts. direct:
    runs the program with little Python, None if that is impossible; nbytes: the most bytes that such a run holds,
    without the arrays of steps that run outside the program."""

    compiled: Compiled
    forms: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
    awaited: RunsLeft | None
    direct: Direct | None
    nbytes: int

    @classmethod
    def of(cls, compiled: Compiled, feeds: Mapping[str, Array], awaited: RunsLeft | None = None) -> Repeatable:
        """A program with the names, shapes and types of the feeds that it takes."""
        forms = tuple([(name, array.shape, array.dtype) for name, array in feeds.items()])
        direct = compiled.direct
        nbytes = sum(array.nbytes for array in feeds.values()) + (direct.nbytes if direct else 0)
        return cls(compiled, forms, awaited, direct, nbytes)

    def compute_outputs(self, feeds: Mapping[str, Array], limits: RunLimits) -> dict[str, Array] | None:
        """The outputs as a caller gets them; None where the feeds have other forms, or where the slower way
        (`run_program`, then step by step) must be taken."""
        if self.direct is None or self.awaited is not None or not limits.allow(self.nbytes):
            return None
        values = self.take_feeds(feeds)
        if values is None or self.direct.alone:
            return None if values is None else self.direct.run(values)
        budget, model = limits.budget(), self.compiled.plan.model
        try:
            budget.reserve(self.nbytes, "native program")
            made = self.compiled.run_directly(values, budget)
            outputs = own_outputs(made, values, model, budget) if made else {}
            _check_outputs(model, outputs)
        except Exception:  # the longer way reports it
            return None
        return {name: to_runtime(value) for name, value in outputs.items()} if made else None

    def count_run(self) -> bool:
        """Count another run; False for the run after which the program must be kept: `Runs.run` does that."""
        if self.awaited is None:
            return True
        if self.awaited.left <= 1:
            return False
        self.awaited.left -= 1
        return True

    def take_feeds(self, feeds: object) -> dict[str, Array] | None:
        """A new dict of the feeds, if they are plain arrays of the same names, shapes and types; else None. None also
        for arrays of objects, which may hold anything. The dict is new because another thread may change the caller's
        dict, and kernels must read the arrays that were checked here."""
        if type(feeds) is not dict or len(feeds) != len(self.forms):
            return None
        taken: dict[str, Array] = {}
        for name, shape, dtype in self.forms:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype or dtype.hasobject:
                return None
            taken[name] = array
        return taken


def execute(
    plan: Plan,
    feeds: Mapping[str, Array],
    *,
    arith: Arith = "exact",
    budget: Budget,
    observe: bool = True,
    natives: NativeKernels | None = None,
    groups: Mapping[int, tuple[int, ...]] | None = None,
    see: Callable[[str, Array], None] | None = None,
    ahead: bool = False,
) -> RunResult:
    """Run every step of a plan on checked feeds, freeing values after their last use.

    ahead: make the native kernels of all steps first.
    see: called with name and value of each tensor made, tensors in sequences included; the clock stands still then.
    """
    model = plan.model
    values: dict[str, Part] = {**stored.parts(model.constants), **feeds}
    hold_feeds(model, feeds, budget)
    events: list[NodeEvent] = []
    clock = Clock()

    def look(allowed: int) -> None:
        from qrun.running.foresight import foresee

        with clock.aside:
            foresee(plan.model, plan.steps[len(events) :], values, budget.live, allowed)

    budget.look_ahead(look)
    run = Run(arith, budget, observe, natives, clock, groups or {})
    if ahead and natives is not None:
        from qrun.running.drysteps import bind_ahead

        with clock.aside:
            bind_ahead(plan, values, natives, budget)
    begin = clock.now()
    for step in plan.steps:
        events.append(run_step(step, model, values, run))
        if see is not None:
            with clock.aside:
                for name, array in tensors({n: borrow(values[n]) for n in step.node.outputs if n}).items():
                    see(name, array)
        for name in step.frees:
            if (freed := values.pop(name, None)) is not None:
                budget.release(freed)
    outputs = own_outputs({name: borrow(values[name]) for name in plan.keep}, feeds, model, budget)
    _check_outputs(model, outputs)
    inside = run.inside.events
    return RunResult(outputs, tuple(events), clock.now() - begin, budget.peak, begin, clock.aside_ns, inside=inside)


def run_program(
    compiled: Compiled, feeds: Mapping[str, Array], budget: Budget, timed: bool, observer: Observing | None = None
) -> RunResult:
    """Run a plan's native program on checked feeds; with events if `timed`."""
    now = observer.now if observer else perf_counter_ns
    begin = now()
    plan = compiled.plan
    hold_feeds(plan.model, feeds, budget)
    inside = Inside() if timed else UNTIMED
    ran = compiled.run(feeds, budget, inside, observer, timed)
    made = {n: ran.values[n] if n in ran.values else plan.model.constants[n] for n in plan.keep}
    kept = ran.lent or not made.keys() <= ran.values.keys()
    outputs = own_outputs(made, feeds, plan.model, budget) if kept else made
    _check_outputs(plan.model, outputs)
    duration = now() - begin
    events = compiled.events_of(ran) if timed else ()
    return RunResult(outputs, events, duration, budget.peak, begin, inside=inside.events)


def is_expected_failure(error: Exception) -> bool:
    """Whether running step by step may succeed where the program failed with this error."""
    return isinstance(error, (Unplanned, Undecided, MemoryLimitError))


def hold_feeds(model: Model, feeds: Mapping[str, Array], budget: Budget) -> None:
    """Count the memory of a run's feeds. Raises MemoryLimitError with the input's name."""
    for name, array in feeds.items():
        try:
            budget.hold_fed(array, name)
        except MemoryLimitError as error:
            error.where = (model.label, f"input {name}")
            raise


def own_outputs(
    outputs: Mapping[str, Array], feeds: Mapping[str, Array], model: Model, budget: Budget
) -> dict[str, Array]:
    """The outputs as arrays that the caller owns and may write to; in C order, where there is memory for that."""
    seen = {_root(part) for array in feeds.values() for part in parts(array)}

    def own(name: str, array: Array) -> Array:
        if isinstance(array, Compound):
            return array.with_elements(own(name, element) for element in array.elements)
        root = _root(array)
        if root in seen or not array.flags.writeable:
            array = _copy_output(name, array, model, budget)
            root = id(array)
        elif not array.flags.c_contiguous:
            with suppress(MemoryLimitError):
                array = _copy_output(name, array, model, budget)
                root = id(array)
        seen.add(root)
        return array

    return {name: own(name, array) for name, array in outputs.items()}


def _copy_output(name: str, array: Array, model: Model, budget: Budget) -> Array:
    """Copy an output within the budget. Raises MemoryLimitError with the output's name."""
    try:
        budget.reserve(array.nbytes, name)
    except MemoryLimitError as error:
        error.where = (model.label, f"output {name}")
        raise
    return array.copy()


def _root(array: Array) -> int:
    """The id of the array that owns the memory of `array`."""
    while (base := array.base) is not None and isinstance(base, np.ndarray):
        array = base
    return id(array)


def _check_outputs(model: Model, outputs: Mapping[str, Array]) -> None:
    """A graph output must have the type that the graph declares for it."""
    for value in model.outputs:
        made = outputs.get(value.name)
        if made is not None and not of_type(made, value):
            declared = type_name(value.dtype) if value.kind == "tensor" else str(value)
            makers = [f"node {n.index} {n.label} ({n.op}-{n.version})" for n in model.nodes if value.name in n.outputs]
            raise RunError(
                "QR203",
                f"output {value.name!r} is {type_name(made.dtype)}, but the graph declares {declared}",
                where=[model.label, *makers, f"output {value.name}"],
                facts=[("expected", str(value)), ("got", describe(made))],
                fixes=["declare the output with the type that its node makes, or add a Cast"],
            )
