"""Runs one step of a plan: checks its inputs' types, calls and times its kernel, and returns its event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, StoredConstants, borrow, hold, parts
from qrun.errors import LimitError, MemoryLimitError, OperatorError, QrunError, RunError, out_of_memory_error
from qrun.ir import Array, Model, Node
from qrun.ir.schema import OWN
from qrun.ir.types import describe
from qrun.memory import Budget
from qrun.ops import Arith, Body, Context, Observation, quantizers
from qrun.ops._complete import few_codes
from qrun.ops._context import Repeated
from qrun.running.dispatch import KernelBinding, NativeKernels, is_undecided
from qrun.running.events import Clock, Inside, NodeEvent, TensorInfo
from qrun.running.plan import Plan, Step, locate, step_of
from qrun.running.typecheck import check_stated, check_types

REFUSALS = (ValueError, IndexError, OverflowError, ZeroDivisionError, MemoryError)
"""Exceptions by which kernels refuse their inputs; any other is a defect of the kernel."""


@frozen
class Run:
    """State shared by the steps of one run.

    infos:  types and shapes of the tensors that were read or made so far.
    inside: events in graphs inside nodes. path: of the graph that the steps belong to, "" for the main graph.
    """

    arith: Arith
    budget: Budget
    observe: bool
    natives: NativeKernels | None
    clock: Clock
    groups: Mapping[int, tuple[int, ...]]
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    inside: Inside = field(default_factory=Inside)
    path: str = ""

    def bodies(self, step: Step, values: Mapping[str, Array]) -> dict[str, Body]:
        """The graphs inside a step, by attribute, ready to run. values: those that they may read from around them."""
        return {name: _body(step, name, values, self) for name in step.bodies}

    def inform(self, node: Node, args: Sequence[Part | None], made: Sequence[Array]) -> None:
        """Note types and shapes of a node's inputs and outputs."""
        infos = self.infos
        for names, arrays in ((node.inputs, args), (node.outputs, made)):
            for name, array in zip(names, arrays, strict=False):
                if name not in infos and array is not None and name:
                    infos[name] = TensorInfo(name, array.dtype, array.shape)


def run_step(step: Step, model: Model, values: dict[str, Part], run: Run) -> NodeEvent:
    """Run a step on `values` and add its outputs there. Raises RunError with the node's place in the model."""
    made, told = compute_step(step, model, values, run)
    for name, array in zip(step.node.outputs, made, strict=False):
        if name:
            values[name] = array
            try:
                run.budget.hold_made(array, name)
            except MemoryLimitError as error:
                raise locate_limit(error, model, step.node) from None
    return told


def compute_step(step: Step, model: Model, values: Mapping[str, Part], run: Run) -> tuple[Sequence[Array], NodeEvent]:
    """The outputs of a step for these `values`, and its event. Raises RunError with the node's place in the model."""
    node = step.node
    args = [values[name] if name else None for name in node.inputs]
    wanted = tuple(map(bool, node.outputs))
    ctx = Context(
        run.arith, node.version, len(wanted), wanted, run.observe, run.budget, memo=step.memo, fixed=step.fixed
    )
    if step.bodies:
        ctx.bodies = run.bodies(step, StoredConstants(values))
    try:
        run.budget.in_time()
        check_types(step, args)
        bound = bind(step, args, run)
        start = run.clock.now()
        result, native = compute(step, args, bound, ctx)
        duration = run.clock.now() - start
        if native and bound is not None and run.observe:
            with run.clock.aside:
                observe(step, args, bound, result, ctx)
    except OperatorError as error:
        raise error if error.where else locate(error, model, node, step.definition) from None
    except LimitError as error:
        raise locate_limit(error, model, node) from None
    except MemoryError as error:
        raise locate_limit(out_of_memory_error(error), model, node) from None
    except REFUSALS as error:
        raise _run_error(error, model, step, args) from error
    except Exception as error:
        error.add_note(f"on node {node.index} {node.label} ({node.op}-{node.version})")
        raise
    made = result if isinstance(result, tuple) else (result,)
    if len(made) < sum(wanted):
        raise _run_error(ValueError(f"{len(node.outputs)} outputs asked for, {len(made)} made"), model, step, args)
    return made, event(step, args, made, bound, ctx, run, start, duration)


def event(
    step: Step,
    args: Sequence[Part | None],
    made: Sequence[Array],
    bound: KernelBinding | None,
    ctx: Context,
    run: Run,
    start_ns: int = 0,
    duration_ns: int = 0,
) -> NodeEvent:
    """The event of a step with these inputs and outputs."""
    run.inform(step.node, args, made)
    shapes = [array.shape for array in made]
    return event_of(step, run.infos, shapes, bound, tuple(ctx.observations), run.groups, start_ns, duration_ns)


def event_of(
    step: Step,
    infos: Mapping[str, TensorInfo],
    made: Sequence[tuple[int, ...]],
    bound: KernelBinding | None,
    observations: tuple[Observation, ...],
    groups: Mapping[int, tuple[int, ...]],
    start_ns: int = 0,
    duration_ns: int = 0,
) -> NodeEvent:
    """The event of a step. infos: of its inputs and outputs, by name; made: the shapes of all its outputs."""
    node, kernel = step.node, bound.kernel if bound else None
    inputs = [infos[name] if name else None for name in node.inputs]
    outputs = tuple([infos[name] for name in node.outputs if name])
    shapes = [info.shape if info else () for info in inputs]
    return NodeEvent(
        node.index,
        start_ns,
        duration_ns,
        tuple([info for info in inputs if info is not None]),
        outputs,
        step.definition.cost(shapes, made, step.kwargs),
        "native" if kernel else step.definition.runner,
        observations,
        bound.why if bound else "",
        kernel.sections if kernel else (),
        groups.get(node.index, (node.index,)),
        node,
    )


def bodies_of(model: Model, node: Node, around: Mapping[str, Array], budget: Budget) -> dict[str, Body]:
    """The graphs inside a node, for the reference kernels. around: the values that they may capture, along with the
    model's constants."""
    step = step_of(model, node)
    run = Run("exact", budget, False, None, Clock(), {})
    return run.bodies(step, {**model.constants, **around})


def _body(step: Step, attribute: str, around: Mapping[str, Array], run: Run) -> Body:
    """The body of a node as a function, with the outer tensors that it reads."""
    plan = step.bodies[attribute]
    inputs = plan.model.inputs
    outside = {name: around[name] for name in plan.model.captured if name in around}

    made: Run | None = None

    def own() -> Run:
        nonlocal made
        if made is None:
            natives = run.natives.inside(step, attribute) if run.natives else None
            path = f"{run.path}{step.node.label}/{attribute}/"
            made = Run(run.arith, run.budget, False, natives, run.clock, {}, inside=run.inside, path=path)
        return made

    def start(args: Sequence[Array]) -> Sequence[Array]:
        return run_body(plan, outside, {v.name: array for v, array in zip(inputs, args, strict=True)}, own())

    def repeat(args: Sequence[Array], *how: Any) -> Repeated | None:
        inner = own()
        bodies = inner.natives.bodies if inner.natives else None
        return bodies.repeat(plan, outside, inner, args, *how) if bodies else None

    return Body(inputs, plan.model.outputs, start, repeat)


def run_body(plan: Plan, outside: Mapping[str, Array], fed: Mapping[str, Array], run: Run) -> Sequence[Array]:
    """The outputs of a body. fed: its inputs, by name; outside: the values that it captures."""
    model, budget, given = plan.model, run.budget, {**outside, **fed}
    programs = run.natives.bodies if run.natives else None
    done = programs.run(plan, given, run) if programs else None
    if done is not None:
        return done
    run.infos.clear()
    values, events = dict[str, Part]({**parts(model.constants), **given}), []
    for name, array in fed.items():
        budget.hold_made(array, name)
    for step in plan.steps:
        events.append(run_step(step, model, values, run))
        run.inside.add(events[-1], run.path)
        for name in step.frees:
            freed = values.pop(name, None)
            if freed is not None:
                budget.release(freed)
    made = [borrow(values[value.name]) for value in model.outputs]
    for name, part in values.items():
        if name not in outside and name not in model.constants:
            budget.release(part)
    if programs:
        programs.ran(plan, given, events)
    return made


def locate_limit(error: LimitError, model: Model, node: Node) -> LimitError:
    """The error with file and node added, unless it names them: a foreseen error is a later node's, or one inside."""
    if not error.where or not error.where[0].startswith(model.label):
        error.where = (model.label, f"node {node.index} {node.label} ({node.op}-{node.version})")
    return error


def bind(step: Step, args: Sequence[Part | None], run: Run, wait: bool = True) -> KernelBinding | None:
    """The step's binding in a native session, made now if these shapes are new; None on the reference backend.

    wait: until its kernels are compiled.
    """
    if run.natives is None:
        return None
    bound = run.natives.find(step, args)
    if bound is None:
        with run.clock.aside:
            bound = run.natives.bind(step, args, run.budget)
    if wait:
        with run.clock.aside:
            bound.wait()
    return bound


def compute(step: Step, args: Sequence[Part | None], bound: KernelBinding | None, ctx: Context) -> tuple[Any, bool]:
    """The step's outputs, and whether the native kernel made them. The reference kernel observes while it computes."""
    if bound is None or bound.kernel is None:
        return reference(step, [hold(part) for part in args], ctx), False
    for shape, itemsize, what in bound.claims:
        ctx.claim(shape, itemsize, what)
    try:
        return bound.kernel.run(bound.kernel.read(args)), True
    except Exception as error:
        if not is_undecided(error):
            raise
        return reference(step, args, ctx), False


def reference(step: Step, args: Sequence[Part | None], ctx: Context) -> Any:
    """The outputs of the reference kernel for these inputs."""
    made = step.definition.compute([borrow(part) for part in args], step.kwargs, ctx)
    if step.stated:
        check_stated(step, made)
    observe_codes(step.node, made, ctx)
    return made


def observe(step: Step, args: Sequence[Part | None], bound: KernelBinding, result: Any, ctx: Context) -> None:
    """Add the observations of the reference kernel: known from the parameters, or found by running it as well."""
    kernel = bound.kernel
    if (
        kernel is not None
        and kernel.complete(result)
        and (kernel.plain is None or kernel.plain([borrow(part) for part in args]))
    ):
        ctx.observations.extend(bound.observations)
        observe_codes(step.node, result, ctx)
    else:
        reference(step, args, ctx)


def quantizes(node: Node) -> bool:
    """Whether the node's first output has a scale, or holds the values of a table of codes."""
    return node.domain == OWN or any(q.is_output for q in quantizers(node))


def observe_codes(node: Node, result: Any, ctx: Context) -> None:
    """Observe if the result that a node quantizes takes few values: the least and the greatest."""
    found = few_codes(result) if ctx.observing and quantizes(node) else None
    if found:
        size = (result[0] if isinstance(result, tuple) else result).size
        ctx.observe("few-codes", "", size, size, (), f"{found[0]} {found[1]}")


def _run_error(error: Exception, model: Model, step: Step, args: Sequence[Part | None]) -> QrunError:
    """The QR210 error of an exception in a kernel."""
    node = step.node
    shown = ", ".join(f"{step.definition.param(i)} {describe(a)}" for i, a in enumerate(args) if a is not None)
    return RunError(
        "QR210",
        f"{node.op_type} cannot compute this node",
        where=[model.label, f"node {node.index} {node.label} ({node.op}-{node.version})"],
        facts=[("inputs", shown or "none"), ("got", f"{type(error).__name__}: {error}"[:300])],
        fixes=[model.fill_in("qrun inspect MODEL --nodes shows the types and shapes around it")],
    )
