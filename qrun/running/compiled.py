"""A plan as a native program: builds it from one operation or Python step per node, runs it, and tells its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qrun.declare.frozen import frozen, replace
from qrun.errors import TimeLimitError
from qrun.ir import Array
from qrun.memory import Budget, out_of_time
from qrun.native.errors import Declined, Late
from qrun.ops import Arith
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import UNTIMED, Inside, LaterEvents, NodeEvent, TensorInfo
from qrun.running.plan import Plan, Step, varying_names
from qrun.running.pythonsteps import BoundStep, LooseStep, Observing, ProgramRun
from qrun.running.steps import locate_limit

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operand
    from qrun.native.plan.items import Item, Key
    from qrun.native.plan.listing import Listing
    from qrun.native.plan.program import Direct, Program
    from qrun.native.plan.stamps import StampedResult
    from qrun.ops.lowering.kernel import NativeKernel


@frozen(slots=False)
class Compiled:
    """A plan as a native program, for inputs of certain shapes.

    events: the events of its steps, which are the same in each run, except for the times.
    natives: the native kernels; in a program that another process made, only those of graphs inside nodes, None if
    there are no such graphs.
    calls: the programs of graphs inside steps that are calls of the program, by number and attribute.
    turns: native loops over this program (running/bodies.py), by the number of scanned inputs.
    """

    plan: Plan
    program: Program
    bounds: tuple[KernelBinding | None, ...]
    events: Sequence[NodeEvent]
    arith: Arith
    natives: NativeKernels | None = None
    calls: Mapping[int, Mapping[str, Compiled]] = field(default_factory=dict)
    turns: dict[int, Any] = field(default_factory=dict)
    _elsewhere: dict[int, BoundStep | LooseStep] = field(default_factory=dict)

    @cached_property
    def direct(self) -> Direct | None:
        """Runs the program with little Python; None if that is impossible."""
        from qrun.native.plan.program import Direct

        return Direct.of(self.program, self.plan.keep)

    def run_directly(self, feeds: Mapping[str, Array], budget: Budget) -> dict[str, Array] | None:
        """The outputs that `direct` computes from checked feeds; None where only `run` can compute them. budget: counts
        the arrays that steps outside the program make, and the memory that they claim. Raises whatever the Python
        steps raise; then the steps must run one by one."""
        this_run = ProgramRun(budget, UNTIMED, None, "", {})

        def call_python(item: int, arrays: list[Array]) -> Sequence[Array]:
            made = (self._elsewhere.get(item) or self._bind_step(item)).run(arrays, this_run)
            for array in made:
                budget.hold_made(array, "output")
            return made

        return self.direct.run(feeds, call_python) if self.direct else None

    def run(
        self,
        feeds: Mapping[str, Array],
        budget: Budget,
        inside: Inside,
        observer: Observing | None = None,
        timed: bool = True,
        path: str = "",
    ) -> StampedResult:
        """Run once. feeds: already counted in the budget. inside: receives the events of graphs inside nodes. timed:
        whether to measure times. path: of the plan's graph, as in `Run`.

        Raises whatever the Python steps raise, Unplanned and Undecided; then the steps must run one by
        one. Raises TimeLimitError.
        """
        this_run = ProgramRun(budget, inside, observer, path, {})

        def call_python(item: int, arrays: list[Array]) -> Sequence[Array]:
            step = self._elsewhere.get(item) or self._bind_step(item)
            try:
                return step.run(arrays, this_run)
            except TimeLimitError as error:
                raise locate_limit(error, self.plan.model, self.plan.steps[item].node) from None

        try:
            ran = self.program.run(feeds, call_python, budget, observer, timed)
        except Exception as error:
            late = self._late(error, budget)
            if late is None:
                raise
            raise late from None
        return replace(ran, told=this_run.told) if this_run.told else ran

    def _late(self, error: Exception, budget: Budget) -> Exception | None:
        """If `error` says that the run took too long: the error to raise, with the node's place in it; else None."""
        if not isinstance(error, Late):
            return None
        assert budget.deadline is not None
        return locate_limit(out_of_time(budget.deadline.seconds), self.plan.model, self.plan.steps[error.item].node)

    def _bind_step(self, item: int) -> BoundStep:
        """Bind the Python step of an item; kept for later runs."""
        loose = self.program.listing.steps[item].loose
        natives, arith = self.natives, self.arith
        made = (
            LooseStep(self.plan, item, self.events[item], arith, natives)
            if loose
            else BoundStep(self.plan, item, self.bounds[item], arith, natives)
        )
        self._elsewhere[item] = made
        return made

    def events_of(self, ran: StampedResult) -> Timed:
        """The events of a run."""
        return Timed(self.events, self.program.listing, ran)


class Timed(LaterEvents):
    """The events of one run of a program, built from its time stamps on first access."""

    def __init__(self, events: Sequence[NodeEvent], listing: Listing, ran: StampedResult) -> None:
        self._known, self._listing, self._ran = events, listing, ran

    def build(self) -> tuple[NodeEvent, ...]:
        """The nodes' events, with the times of the run's stamps."""
        from qrun.native.plan.stamps import helper_spans, times

        listing = self._listing
        starts, spans = times(self._ran.stamps, listing.item_of, listing.items)
        helpers = helper_spans(self._ran.stamps, listing.item_of) if listing.engine.threads > 1 else {}
        steps = self._steps(listing.joined)
        return tuple(
            self._ran.told.get(item, event).at(start, span, helpers.get(item, ()), steps.get(item, ()))
            for item, (event, start, span) in enumerate(zip(self._known, starts, spans, strict=True))
        )

    def _steps(self, joined: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """For each item that does the work of several nodes: the indices of these nodes."""
        found: dict[int, list[int]] = {}
        for item, doer in sorted(joined.items()):
            found.setdefault(doer, [doer]).append(item)
        known = self._known
        return {doer: tuple(sorted({known[item].index for item in items})) for doer, items in found.items()}

    def __len__(self) -> int:
        return len(self._known)


@frozen
class Loose:
    """The part of a plan that a program does not bind to shapes.

    tensors: may have any shape, or, where their values follow from shapes, any values; only loose steps read them.
    steps: numbers of the loose steps, which read or make such tensors. Their other outputs must have the planned
    shapes, which each run checks.
    """

    tensors: frozenset[str]
    steps: frozenset[int]

    @classmethod
    def of(
        cls,
        plan: Plan,
        unsteady: frozenset[str] = frozenset(),
        sized: frozenset[str] = frozenset(),
        derived: frozenset[str] = frozenset(),
    ) -> Loose:
        """unsteady: tensors whose shapes follow from values; all that is computed from them may have any shape too.

        sized: inputs whose shapes change, and tensors whose shapes follow from these. derived: see `derived_tensors`.
        """
        free, tensors, steps = set[str](), set(sized), set[int]()
        for number, step in enumerate(plan.steps) if unsteady or sized else ():
            outputs = [name for name in step.node.outputs if name]
            if not (unsteady.isdisjoint(outputs) and free.isdisjoint(step.reads)):
                free.update(outputs)
                tensors.update(outputs)
            elif tensors.isdisjoint(step.reads) and sized.isdisjoint(outputs):
                continue
            tensors.update(derived.intersection(outputs))
            steps.add(number)
        return cls(frozenset(tensors), frozenset(steps))


@frozen
class Compiler:
    """Makes the programs of a model's plans."""

    natives: NativeKernels
    arith: Arith

    def program(
        self,
        plan: Plan,
        events: Sequence[NodeEvent],
        infos: Mapping[str, TensorInfo],
        fed: Iterable[str],
        shapes: Mapping[str, Array],
        bounds: Sequence[KernelBinding | None],
        loose: Loose,
        calls: Mapping[int, Item] = MappingProxyType({}),
    ) -> Compiled | None:
        """The program of a plan; None if an operation refuses it.

        events: of the plan's steps. infos: of all tensors. fed: names of the inputs that are fed. shapes: values that
        follow from shapes. bounds: the kernel of each step. loose: steps and tensors without fixed shapes. calls: items
        of steps with graphs, by number.
        """
        from qrun.native.machine.operation import Operand
        from qrun.native.plan.items import PythonStep
        from qrun.native.plan.program import Program
        from qrun.native.plan.schedule import Schedule

        shapes = {name: value for name, value in shapes.items() if name not in loose.tensors}
        bounds = tuple(None if number in loose.steps else bound for number, bound in enumerate(bounds))
        items = [
            PythonStep((), ())
            if not shapes.keys().isdisjoint(step.node.outputs)
            else calls.get(number) or _item(plan, step, bounds[number], number in loose.steps)
            for number, step in enumerate(plan.steps)
        ]
        given, fixed = _entering_operands(plan, items, infos, fed), dict(shapes)
        names = (name for item in items if not isinstance(item, PythonStep) for name in item.inputs)
        fixed |= {n: a for n in names if isinstance(n, str) and (a := plan.model.constant(n)) is not None}
        given |= {name: Operand(a.shape, a.dtype) for name, a in fixed.items()}
        constants = plan.model.constants
        wanted = [name for name in plan.keep if name not in constants or plan.model.constant(name) is None]
        try:
            program = Program.of(Schedule(self.natives.engine, items, given, fixed, wanted, loose.tensors))
        except Declined:
            return None
        return Compiled(plan, program, bounds, events, self.arith, self.natives)


def _item(plan: Plan, step: Step, bound: KernelBinding | None, loose: bool) -> Item:
    """The item of a step whose results are not known before the run."""
    from qrun.native.plan.items import PythonStep

    kernel = bound.kernel if bound else None
    if kernel is None or not kernel.stages:
        return PythonStep(varying_names(plan, step), tuple(name for name in step.node.outputs if name), loose)
    return _stages(step, kernel)


def _entering_operands(
    plan: Plan, items: Sequence[Item], infos: Mapping[str, TensorInfo], fed: Iterable[str]
) -> dict[Key, Operand]:
    """Shape and type of each value that enters the program as an array: fed, or made by a step outside the program."""
    from qrun.native.machine.operation import Operand
    from qrun.native.plan.items import PythonStep

    made = (
        name
        for step, item in zip(plan.steps, items, strict=True)
        for name in step.node.outputs
        if isinstance(item, PythonStep) and name in item.outputs
    )
    return {name: Operand(infos[name].shape, infos[name].dtype) for name in (*fed, *made) if name in infos}


def _stages(step: Step, kernel: NativeKernel) -> Item:
    """The kernel's stages, applied to the node's values. Values between two stages, and outputs without a name,
    get keys of their own."""
    from qrun.native.plan.items import Task, item_of

    node = step.node

    def key(value: int | str, names: Sequence[str]) -> str | tuple[int, int | str]:
        name = names[value] if isinstance(value, int) and value < len(names) else ""
        return name or (node.index, value)

    return item_of(
        [
            Task(s.operation, tuple([key(value, node.inputs) for value in s.inputs]), key(s.output, node.outputs))
            for s in kernel.stages
        ]
    )
