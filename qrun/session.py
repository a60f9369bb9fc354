"""Running a plan: feeds in, outputs and one event per node out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.errors import CallError, MemoryLimitError, OperatorError, QrunError, RunError
from qrun.feeds import check_feeds
from qrun.ir import Array, Model, TensorType, load
from qrun.ir.types import describe, type_name
from qrun.memory import Budget, default_limit
from qrun.ops import Arith, Context, Observation
from qrun.plan import Plan, Step, located, plan
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
    """What happened at one node: when it started and how long it took (ns), what it read and wrote, its multiply-adds."""

    index: int
    start_ns: int
    duration_ns: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    macs: int
    backend: str
    observations: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs by name, in the order asked for; one event per node; ns of the whole run; peak bytes of live tensors.

    start_ns: on the clock of the events' start_ns.
    """

    outputs: Mapping[str, Array]
    events: tuple[NodeEvent, ...]
    duration_ns: int
    peak_bytes: int
    start_ns: int = 0


class Session:
    """A model ready to run.

    model:      a path, the bytes of a file, an onnx.ModelProto, or a loaded Model.
    backend:    ``reference``: exact numpy kernels.
    arith:      ``exact`` (the correctly rounded real value), ``ort`` or ``onnx-ref`` (those runtimes' float arithmetic).
    max_memory: bytes a run may hold at once; None: 80 % of what is free.

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
    ) -> None:
        _choose("backend", backend, ("reference",))
        _choose("arith", arith, ARITHMETICS)
        if max_memory is not None and (not isinstance(max_memory, int) or max_memory < 0):
            raise _bad_argument("max_memory", "a number of bytes, or None", max_memory)
        if not isinstance(model, (str, Path, bytes, Model)) and not hasattr(model, "graph"):
            raise _bad_argument("model", "a path, bytes, an onnx.ModelProto or a qrun.Model", model)
        start = perf_counter_ns()
        self.model = model if isinstance(model, Model) else load(model)
        self.backend = backend
        self.arith: Arith = arith
        self.threads = threads
        self.max_memory = max_memory
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._plan(())
        self.load_ns = perf_counter_ns() - start

    def __repr__(self) -> str:
        return f"<qrun.Session {self.model.label}: {len(self.model.nodes)} nodes, {self.backend}, {self.arith}>"

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
        outputs: names (or the name) of any tensors of the graph; None: the graph's outputs.
        """
        return dict(self.execute(feeds, outputs, observe=False).outputs)

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once and return outputs with an event per node.

        observe: let kernels look for saturation, NaN and wrap-around, which costs time.
        """
        if not isinstance(feeds, Mapping):
            raise _bad_argument("feeds", "a dict of arrays by input name", feeds)
        chosen = self._plan((outputs,) if isinstance(outputs, str) else tuple(outputs or ()))
        values = check_feeds(self.model, feeds)
        budget = Budget(default_limit() if self.max_memory is None else self.max_memory)
        return execute(chosen, values, arith=self.arith, budget=budget, observe=observe)

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
        if runs is not None and runs < 1:
            raise _bad_argument("runs", "at least 1, or None", runs)
        return measure(lambda: self.execute(feeds, observe=False), self.model, runs, warmup, seconds, progress)

    def _plan(self, keep: tuple[str, ...]) -> Plan:
        if keep not in self._plans:
            self._plans[keep] = plan(self.model, keep)
        return self._plans[keep]


def _bad_argument(name: str, expected: str, got: object) -> CallError:
    shown = repr(got) if isinstance(got, (int, float, str)) else type(got).__name__
    return CallError(
        "QR005", "bad-option", f"{name} is not usable", facts=[("expected", expected), ("got", shown[:80])]
    )


def _choose(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise CallError(
            "QR005", "bad-option", f"{what} {value!r} does not exist", facts=[("expected", ", ".join(allowed))]
        )


def execute(
    plan: Plan, feeds: Mapping[str, Array], *, arith: Arith = "exact", budget: Budget, observe: bool = True
) -> RunResult:
    """Run every step of a plan on checked feeds, freeing values after their last use."""
    model = plan.model
    values: dict[str, Array] = {**model.constants, **feeds}
    for array in feeds.values():
        budget.hold(array)
    events = []
    begin = perf_counter_ns()
    for step in plan.steps:
        events.append(_run_step(step, model, values, arith, budget, observe))
        for name in step.frees:
            freed = values.pop(name, None)
            if freed is not None:
                budget.release(freed)
    outputs = {name: values[name] for name in plan.keep}
    return RunResult(outputs, tuple(events), perf_counter_ns() - begin, budget.peak, begin)


def _run_step(
    step: Step, model: Model, values: dict[str, Array], arith: Arith, budget: Budget, observe: bool
) -> NodeEvent:
    node = step.node
    args = [values[name] if name else None for name in node.inputs]
    ctx = Context(arith, node.version, len(node.outputs), tuple(bool(name) for name in node.outputs), observe, budget)
    kwargs = {**step.kwargs, "ctx": ctx} if step.definition.takes_context else step.kwargs
    start = perf_counter_ns()
    try:
        _check_types(step, args)
        result = step.definition.reference(*args, **kwargs)
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
    duration = perf_counter_ns() - start
    made = result if isinstance(result, tuple) else (result,)
    if len(made) < sum(1 for name in node.outputs if name):
        raise _failed(ValueError(f"{len(node.outputs)} outputs asked for, {len(made)} made"), model, step, args)
    for name, array in zip(node.outputs, made, strict=False):
        if name:
            values[name] = array
            budget.hold(array)
    inputs = tuple(
        TensorInfo(name, a.dtype, a.shape) for name, a in zip(node.inputs, args, strict=True) if a is not None
    )
    outputs = tuple(TensorInfo(name, a.dtype, a.shape) for name, a in zip(node.outputs, made, strict=False) if name)
    return NodeEvent(
        node.index, start, duration, inputs, outputs, _macs(step, args, made), step.backend, tuple(ctx.observations)
    )


def _macs(step: Step, args: Sequence[Array | None], made: Sequence[Array]) -> int:
    shapes = [() if a is None else a.shape for a in args]
    return step.definition.cost(shapes, [a.shape for a in made], step.kwargs)


def _type_code(param: str) -> dict[str, str]:
    """The rule a wrong element type breaks."""
    if "zero_point" in param.lower():
        return {"code": "QR303", "name": "zero-point-type"}
    return {"code": "QR203", "name": "type-not-allowed"}


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
                **_type_code(name),
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
