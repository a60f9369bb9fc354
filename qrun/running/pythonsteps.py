"""Steps of a native program that run in Python; everything that does not depend on their values is prepared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from qrun.declare.frozen import changeable, replace
from qrun.declare.stored import Part, StoredConstants, hold, parts
from qrun.ir import Array
from qrun.ir.compound import copy_shared
from qrun.memory import Budget
from qrun.ops import Arith, Context, Observation
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import Clock, Inside, NodeEvent
from qrun.running.plan import Plan, varying_names
from qrun.running.steps import Run, compute, compute_step, reference
from qrun.running.typecheck import check_types


class Observing(Protocol):
    """An observer of a program's run: `look` sees results while it runs (native/plan/instance.py), `found` receives the
    observations of steps that run outside the program."""

    items: Sequence[int]
    found: dict[int, tuple[Observation, ...]]

    def look(self, item: int, value: Callable[[Any], Array]) -> None:
        """Look at the value of an item."""

    def now(self) -> int:
        """Nanoseconds now, without the time that was set aside."""


@changeable
class ProgramRun:
    """State shared by the Python steps of one run. inside: receives the events of graphs inside nodes. path: of the
    plan's graph, as in `Run`. told: by item, the events of the steps whose events differ from run to run."""

    budget: Budget
    inside: Inside
    observer: Observing | None
    path: str
    told: dict[int, NodeEvent]


FEW = 1 << 14
"""Up to this many elements, a reference kernel takes less time than making a native one for their shapes."""


class BoundStep:
    """A step of a program, with its native kernel if it is bound to one, else with the reference kernel.

    item: its number in the plan. natives: the kernels of the graphs inside it.
    """

    def __init__(
        self, plan: Plan, item: int, bound: KernelBinding | None, arith: Arith, natives: NativeKernels | None
    ) -> None:
        self.step, self._item, self._arith, self._natives = plan.steps[item], item, arith, natives
        node, self._constants = self.step.node, parts(plan.model.constants)
        self._moving = varying_names(plan, self.step)
        places = {name: index for index, name in enumerate(self._moving)}
        self._known = [self._constants[name] if name and name not in places else None for name in node.inputs]
        self._read = [(at, places[name]) for at, name in enumerate(node.inputs) if name in places]
        self._wanted = tuple(map(bool, node.outputs))
        self._kernel, self._claims = (bound.kernel, bound.claims) if bound else (None, ())

    def run(self, given: Sequence[Array], of: ProgramRun) -> Sequence[Array]:
        """The outputs that have names. given: the values read, without constants, in the order of `varying_names`."""
        args = self._args(given)
        if self._kernel is None:
            made = self._reference(args, given, of)
        else:
            for shape, itemsize, what in self._claims:
                of.budget.claim(shape, itemsize, what)
            made = self._kernel.run(self._kernel.read(args))
        return self._named_outputs(made, given)

    def _args(self, given: Sequence[Array]) -> list[Part | None]:
        """All inputs of the node: known ones, and those that the program gives."""
        args: list[Part | None] = self._known.copy()
        for at, index in self._read:
            args[at] = given[index]
        return args

    def _named_outputs(self, made: Any, given: Sequence[Array]) -> Sequence[Array]:
        """The outputs that have names."""
        outputs = made if isinstance(made, (tuple, list)) else (made,)
        return [copy_shared(array, given) for array, wanted in zip(outputs, self._wanted, strict=False) if wanted]

    def _around(self, given: Sequence[Array]) -> Mapping[str, Array]:
        """All values that the step reads, by name, and the constants."""
        return StoredConstants({**self._constants, **dict(zip(self._moving, given, strict=True))})

    def _reference(self, args: Sequence[Part | None], given: Sequence[Array], of: ProgramRun) -> Any:
        """Run the node's reference kernel."""
        step, wanted, observer = self.step, self._wanted, of.observer
        observing = observer is not None
        ctx = Context(
            self._arith, step.node.version, len(wanted), wanted, observing, of.budget, memo=step.memo, fixed=step.fixed
        )
        if step.bodies:
            run = Run(self._arith, of.budget, False, self._natives, Clock(), {}, inside=of.inside, path=of.path)
            ctx.bodies = run.bodies(step, self._around(given))
        made = reference(step, [hold(part) for part in args], ctx)
        if observer is not None:
            observer.found[self._item] = tuple(ctx.observations)
        return made


class LooseStep(BoundStep):
    """A step whose shapes follow from values or differ from run to run. Each run binds it to a kernel for the shapes
    that it meets. For inputs of at most FEW elements the reference kernel runs, as it takes less time than binding.

    before: the step's event in the run step by step.
    """

    def __init__(self, plan: Plan, item: int, before: NodeEvent, arith: Arith, natives: NativeKernels | None) -> None:
        super().__init__(plan, item, None, arith, natives)
        self._model, self._before = plan.model, before

    def run(self, given: Sequence[Array], of: ProgramRun) -> Sequence[Array]:
        """Run a step whose shapes may differ from run to run."""
        args, step = self._args(given), self.step
        few = not step.bodies and sum(array.size for array in args if array is not None) <= FEW
        natives = None if few else self._natives
        if of.inside.timed or (of.observer is not None and natives is not None):
            return self._run_recorded(given, of, natives)
        check_types(step, args)
        if natives is None or step.bodies:
            return self._named_outputs(self._reference(args, given, of), given)
        ctx = Context(
            self._arith,
            step.node.version,
            len(self._wanted),
            self._wanted,
            False,
            of.budget,
            memo=step.memo,
            fixed=step.fixed,
        )
        bound = natives.find(step, args) or natives.bind(step, args, of.budget)
        return self._named_outputs(compute(step, args, bound, ctx)[0], given)

    def _run_recorded(self, given: Sequence[Array], of: ProgramRun, natives: NativeKernels | None) -> Sequence[Array]:
        """Run, and record the event."""
        step, before = self.step, self._before
        groups, observe = {step.node.index: before.group}, of.observer is not None
        run = Run(self._arith, of.budget, observe, natives, Clock(), groups, inside=of.inside, path=of.path)
        made, event = compute_step(step, self._model, self._around(given), run)
        why = before.why or "small, of a shape that differs from run to run"
        of.told[self._item] = event if natives else replace(event, why=why)
        return self._named_outputs(made, given)
