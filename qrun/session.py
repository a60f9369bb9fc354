"""Running a plan: feeds in, outputs and one event per node out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.dispatch import Bound, NativeKernels, make_engine
from qrun.errors import CallError, MemoryLimitError, OperatorError, QrunError, RunError
from qrun.feeds import check_feeds
from qrun.ir import Array, Model, TensorType, load
from qrun.ir.types import describe, type_name
from qrun.memory import Budget, default_limit
from qrun.ops import Arith, Context, Observation
from qrun.ops._native import NativeSection
from qrun.plan import BACKENDS, Plan, Step, located, plan
from qrun.profiling import Profile, Progress, measure

if TYPE_CHECKING:
    import onnx

__all__ = ["NodeEvent", "Profile", "RunResult", "Session", "TensorInfo", "execute"]

ARITHMETICS = ("exact", "ort", "onnx-ref")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, element type and shape of a tensor that a node read or wrote."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """What happened at one node: when it started and how long it took (ns), what it read and wrote, its multiply-adds.

    backend:  ``reference`` or ``native``; why: the reason for ``reference`` in a session with another backend.
    sections: the parts of a native kernel.
    """

    index: int
    start_ns: int
    duration_ns: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    macs: int
    backend: str
    observations: tuple[Observation, ...] = ()
    why: str = ""
    sections: tuple[NativeSection, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs by name, in the order asked for; one event per node; ns of the whole run; peak bytes of live tensors.

    start_ns: on the clock of the events' start_ns, which stands still while native kernels are made, and while the
    reference kernels observe what native ones cannot; aside_ns: how long it did.
    """

    outputs: Mapping[str, Array]
    events: tuple[NodeEvent, ...]
    duration_ns: int
    peak_bytes: int
    start_ns: int = 0
    aside_ns: int = 0


class _Clock:
    """perf_counter_ns, less the time spent in `aside` blocks."""

    def __init__(self) -> None:
        self.aside_ns = 0

    def now(self) -> int:
        return perf_counter_ns() - self.aside_ns

    @contextmanager
    def aside(self) -> Iterator[None]:
        start = perf_counter_ns()
        try:
            yield
        finally:
            self.aside_ns += perf_counter_ns() - start


class Session:
    """A model ready to run.

    model:      a path, the bytes of a file, an onnx.ModelProto, or a loaded Model.
    backend:    ``reference``: exact numpy kernels; ``native``: kernels compiled for this CPU, with the same results, for
                the nodes that have one (the others run on the reference kernels; the events tell).
    arith:      ``exact`` (the correctly rounded real value), ``ort`` or ``onnx-ref`` (those runtimes' float arithmetic).
    threads:    of the native kernels, 1 unless given; the reference kernels run on one thread plus BLAS.
    max_memory: bytes a run may hold at once; None: 80 % of what is free.
    cache:      where compiled native kernels are kept: True for the user's private cache folder, False for nowhere, or
                a directory, which must be this user's alone.
    isa:        a native instruction set; "" for the best of this CPU.

    Raises QrunError: CallError, ModelError or UnsupportedError here, RunError in `run`.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto | Model,
        *,
        backend: str = "reference",
        arith: Arith = "exact",
        threads: int | None = None,
        max_memory: int | None = None,
        cache: str | os.PathLike[str] | bool = True,
        isa: str = "",
    ) -> None:
        _choose("backend", backend, BACKENDS)
        _choose("arith", arith, ARITHMETICS)
        start = perf_counter_ns()
        self.model = model if isinstance(model, Model) else load(model)
        self.backend = backend
        self.arith: Arith = arith
        self.threads = threads
        self.max_memory = max_memory
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._plan(())
        self._natives: NativeKernels | None = None
        if backend == "native":
            self._natives = NativeKernels(self.model, make_engine(isa, cache, threads), arith)
        self.load_ns = perf_counter_ns() - start

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The inputs that must be fed."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        return self.model.outputs

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run once and return arrays by name.

        feeds:   an array of the exact type and shape for each input.
        outputs: names of any tensors of the graph; None: the graph's outputs.
        """
        return dict(self.execute(feeds, outputs, observe=False).outputs)

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once and return outputs with an event per node.

        observe: let kernels look for saturation, NaN and wrap-around, which costs time.
        """
        chosen = self._plan(tuple(outputs or ()))
        values = check_feeds(self.model, feeds)
        budget = Budget(default_limit() if self.max_memory is None else self.max_memory)
        return execute(chosen, values, arith=self.arith, budget=budget, observe=observe, natives=self._natives)

    def profile(
        self,
        feeds: Mapping[str, Array],
        *,
        runs: int | None = None,
        warmup: int = 1,
        seconds: float = 3.0,
        progress: Progress | None = None,
    ) -> Profile:
        """Run repeatedly and return all timings. runs: None for as many as fit in `seconds`, 5 to 1000."""
        return measure(lambda: self.execute(feeds, observe=False), self.model, runs, warmup, seconds, progress)

    def _plan(self, keep: tuple[str, ...]) -> Plan:
        if keep not in self._plans:
            self._plans[keep] = plan(self.model, keep)
        return self._plans[keep]


def _choose(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise CallError(
            "QR005", "bad-option", f"{what} {value!r} does not exist", facts=[("expected", ", ".join(allowed))]
        )


def execute(
    plan: Plan,
    feeds: Mapping[str, Array],
    *,
    arith: Arith = "exact",
    budget: Budget,
    observe: bool = True,
    natives: NativeKernels | None = None,
) -> RunResult:
    """Run every step of a plan on checked feeds, freeing values after their last use."""
    model = plan.model
    values: dict[str, Array] = {**model.constants, **feeds}
    for array in feeds.values():
        budget.hold(array)
    events = []
    clock = _Clock()
    begin = clock.now()
    for step in plan.steps:
        events.append(_run_step(step, model, values, _Run(arith, budget, observe, natives, clock)))
        for name in step.frees:
            freed = values.pop(name, None)
            if freed is not None:
                budget.release(freed)
    outputs = {name: values[name] for name in plan.keep}
    return RunResult(outputs, tuple(events), clock.now() - begin, budget.peak, begin, clock.aside_ns)


@dataclass(frozen=True, slots=True)
class _Run:
    """What the steps of one run share."""

    arith: Arith
    budget: Budget
    observe: bool
    natives: NativeKernels | None
    clock: _Clock


def _run_step(step: Step, model: Model, values: dict[str, Array], run: _Run) -> NodeEvent:
    node = step.node
    args = [values[name] if name else None for name in node.inputs]
    wanted = tuple(bool(name) for name in node.outputs)
    ctx = Context(run.arith, node.version, len(node.outputs), wanted, run.observe, run.budget)
    try:
        _check_types(step, args)
        bound = _bind(step, args, run)
        start = run.clock.now()
        result = _compute(step, args, bound, ctx)
        duration = run.clock.now() - start
        if bound is not None and bound.kernel is not None and run.observe:
            with run.clock.aside():
                _observe(step, args, bound, result, ctx)
    except OperatorError as error:
        raise located(error, model, node, step.definition) from None
    except MemoryLimitError as error:
        error.where = (model.label, f"node {node.index} {node.label} ({node.op}-{node.version})")
        raise
    except (ValueError, IndexError, OverflowError, ZeroDivisionError, MemoryError) as error:
        raise _failed(error, model, step, args) from error
    except Exception as error:
        error.add_note(f"on node {node.index} {node.label} ({node.op}-{node.version})")
        raise
    made = result if isinstance(result, tuple) else (result,)
    if len(made) < sum(1 for name in node.outputs if name):
        raise _failed(ValueError(f"{len(node.outputs)} outputs asked for, {len(made)} made"), model, step, args)
    for name, array in zip(node.outputs, made, strict=False):
        if name:
            values[name] = array
            run.budget.hold(array)
    inputs = tuple(
        TensorInfo(name, a.dtype, a.shape) for name, a in zip(node.inputs, args, strict=True) if a is not None
    )
    outputs = tuple(TensorInfo(name, a.dtype, a.shape) for name, a in zip(node.outputs, made, strict=False) if name)
    kernel = bound.kernel if bound else None
    return NodeEvent(
        node.index,
        start,
        duration,
        inputs,
        outputs,
        _macs(step, args, made),
        "native" if kernel else "reference",
        tuple(ctx.observations),
        bound.why if bound else "",
        kernel.sections if kernel else (),
    )


def _bind(step: Step, args: Sequence[Array | None], run: _Run) -> Bound | None:
    """What runs the step in a native session, made now if these shapes are new; None in another session."""
    if run.natives is None:
        return None
    bound = run.natives.known(step, args)
    if bound is None:
        with run.clock.aside():
            bound = run.natives.bind(step, args, run.budget)
    return bound


def _compute(step: Step, args: Sequence[Array | None], bound: Bound | None, ctx: Context) -> Any:
    if bound is None or bound.kernel is None:
        return _reference(step, args, ctx)
    for shape, itemsize, what in bound.claims:
        ctx.claim(shape, itemsize, what)
    return bound.kernel.run(args)


def _reference(step: Step, args: Sequence[Array | None], ctx: Context) -> Any:
    kwargs = {**step.kwargs, "ctx": ctx} if step.definition.takes_context else step.kwargs
    return step.definition.reference(*args, **kwargs)


def _observe(step: Step, args: Sequence[Array | None], bound: Bound, result: Array, ctx: Context) -> None:
    """What the reference kernel would have observed: known from the parameters, or by running it as well."""
    if bound.kernel is not None and bound.kernel.complete(result):
        ctx.observations.extend(bound.observations)
    else:
        _reference(step, args, ctx)


def _macs(step: Step, args: Sequence[Array | None], made: Sequence[Array]) -> int:
    shapes = [() if a is None else a.shape for a in args]
    return step.definition.cost(shapes, [a.shape for a in made], step.kwargs)


def _check_types(step: Step, args: Sequence[Array | None]) -> None:
    """The inputs' element types against the operator's constraints; remembered for types seen before."""
    key = tuple(None if a is None else a.dtype for a in args)
    if key in step.accepted:
        return
    bound: dict[str, tuple[np.dtype[Any], str]] = {}
    formals = step.formals
    for place, dtype in enumerate(key):
        if dtype is None or not formals:
            continue
        formal = formals[min(place, len(formals) - 1)]
        name = step.definition.param(place)
        if formal.types is not None and dtype not in formal.types:
            raise OperatorError(
                f"{name} is {type_name(dtype)}, which {step.node.op}-{step.node.version} does not take",
                param=name,
                expected=", ".join(sorted(type_name(t) for t in formal.types)),
                got=type_name(dtype),
                code="QR203",
                name="type-not-allowed",
            )
        if formal.types is None or not formal.homogeneous:
            continue
        other, first = bound.setdefault(formal.variable, (dtype, name))
        if other != dtype:
            raise OperatorError(
                f"{name} is {type_name(dtype)}, but {first} is {type_name(other)}",
                param=name,
                expected=f"{type_name(other)}, as {first}",
                got=type_name(dtype),
                why=f"{step.node.op}-{step.node.version}: both have type {formal.variable}.",
                code="QR203",
                name="type-not-allowed",
            )
    step.accepted.add(key)


def _failed(error: Exception, model: Model, step: Step, args: Sequence[Array | None]) -> QrunError:
    node = step.node
    shown = ", ".join(f"{step.definition.param(i)} {describe(a)}" for i, a in enumerate(args) if a is not None)
    return RunError(
        "QR210",
        "node-failed",
        f"{node.op_type} cannot compute this node",
        where=[model.label, f"node {node.index} {node.label} ({node.op}-{node.version})"],
        facts=[("inputs", shown or "none"), ("got", f"{type(error).__name__}: {error}"[:300])],
        fixes=["qrun inspect MODEL --nodes shows the types and shapes around it"],
    )
