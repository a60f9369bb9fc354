"""Steps of a native program that run in Python: what does not depend on values is found out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from qrun.ir import Array
from qrun.ir.compound import apart
from qrun.memory import Budget
from qrun.ops import Arith, Context, Observation
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.plan import Plan, moving
from qrun.running.steps import Run, reference
from qrun.running.times import Clock, Inside


class Observing(Protocol):
    """Who looks at what a program makes (native/plan/program.py), and gets what the steps that run elsewhere observe."""

    items: Sequence[int]
    found: dict[int, tuple[Observation, ...]]

    def look(self, item: int, value: Callable[[Any], Array]) -> None: ...

    def now(self) -> int: ...


class BoundStep:
    """A step of a program, with its native kernel if it is bound to one, else with the reference kernel.

    item: its number in the plan. natives: those of the graphs inside it.
    """

    def __init__(
        self, plan: Plan, item: int, bound: KernelBinding | None, arith: Arith, natives: NativeKernels | None
    ) -> None:
        self.step, self._item, self._arith, self._natives = plan.steps[item], item, arith, natives
        node, self._constants = self.step.node, plan.model.constants
        self._moving = moving(plan, self.step)
        places = {name: place for place, name in enumerate(self._moving)}
        self._known = [self._constants[name] if name and name not in places else None for name in node.inputs]
        self._read = [(at, places[name]) for at, name in enumerate(node.inputs) if name in places]
        self._wanted = tuple(map(bool, node.outputs))
        self._kernel, self._claims = (bound.kernel, bound.claims) if bound else (None, ())

    def run(
        self, given: Sequence[Array], budget: Budget, inside: Inside, observer: Observing | None, path: str = ""
    ) -> Sequence[Array]:
        """The outputs that have names. given: what it reads that is not constant, in the order of `moving`. path: of the graph
        that it is a node of, as a Run has it."""
        args = self._known.copy()
        for at, place in self._read:
            args[at] = given[place]
        if self._kernel is None:
            made = self._reference(args, given, budget, inside, observer, path)
        else:
            for shape, itemsize, what in self._claims:
                budget.claim(shape, itemsize, what)
            made = self._kernel.run(args)
        outputs = made if isinstance(made, tuple) else (made,)
        return [apart(array, given) for array, wanted in zip(outputs, self._wanted, strict=False) if wanted]

    def _reference(
        self,
        args: Sequence[Array | None],
        given: Sequence[Array],
        budget: Budget,
        inside: Inside,
        observer: Observing | None,
        path: str,
    ) -> Any:
        step, wanted = self.step, self._wanted
        ctx = Context(self._arith, step.node.version, len(wanted), wanted, observer is not None, budget)
        if step.bodies:
            run = Run(self._arith, budget, False, self._natives, Clock(), {}, inside=inside, path=path)
            ctx.bodies = run.bodies(step, {**self._constants, **dict(zip(self._moving, given, strict=True))})
        made = reference(step, args, ctx)
        if observer is not None:
            observer.found[self._item] = tuple(ctx.observations)
        return made
