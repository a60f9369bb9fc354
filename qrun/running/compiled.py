"""A plan as a native program, its runs, and their events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

from qrun.declare.frozen import frozen, replace
from qrun.errors import LimitError, TimeLimitError
from qrun.ir import Array, Node
from qrun.memory import Budget, out_of_time
from qrun.ops import Arith
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import LaterEvents, NodeEvent
from qrun.running.flat.origins import Flat
from qrun.running.plan import Plan
from qrun.running.pythonsteps import BoundStep, LooseStep, Observing, ProgramRun
from qrun.running.steps import placed
from qrun.running.times import UNTIMED, Happening, Inside

if TYPE_CHECKING:
    from qrun.native.plan.listing import Listing
    from qrun.native.plan.program import Direct, Program
    from qrun.native.plan.stamps import StampedResult
    from qrun.native.plan.turns import Turned


@frozen(slots=False)
class Compiled:
    """A plan as a native program, for inputs of certain shapes.

    events: the events of its steps, which are the same in each run, except for the times.
    natives: the native kernels; in a program that another process made, only those of graphs inside nodes,
    None if there are no such graphs.
    flat: set if nodes of inner graphs stand in place of an If, Loop or Scan in the plan;
    `timed` then gives the events of the original plan's steps.
    """

    plan: Plan
    program: Program
    bounds: tuple[KernelBinding | None, ...]
    events: Sequence[NodeEvent]
    arith: Arith
    natives: NativeKernels | None = None
    flat: Flat | None = None
    _elsewhere: dict[int, BoundStep | LooseStep] = field(default_factory=dict)

    @cached_property
    def direct(self) -> Direct | None:
        """Runs the program with little Python; None if that is impossible, or if a value must be checked afterwards."""
        from qrun.native.plan.program import Direct

        return None if self._needs else Direct.of(self.program, self.plan.keep)

    def run_directly(self, feeds: Mapping[str, Array], budget: Budget) -> dict[str, Array] | None:
        """The outputs that `direct` computes from checked feeds; None where only `run` can compute them.
        budget: counts the arrays that steps outside the program make, and the memory that they claim.

        Raises whatever the kernels that run elsewhere raise; then the steps must run one by one."""
        this_run = ProgramRun(budget, UNTIMED, None, "", {})

        def elsewhere(item: int, arrays: list[Array]) -> Sequence[Array]:
            made = (self._elsewhere.get(item) or self._bound_step(item)).run(arrays, this_run)
            for array in made:
                budget.hold_made(array, "output")
            return made

        return self.direct.run(feeds, elsewhere) if self.direct else None

    def run(
        self,
        feeds: Mapping[str, Array],
        budget: Budget,
        inside: Inside,
        observer: Observing | None = None,
        timed: bool = True,
        path: str = "",
    ) -> StampedResult:
        """Run once. feeds: already counted in the budget. inside: receives what happens in graphs inside nodes.
        timed: whether times are measured. path: of the plan's graph, as in `Run`.

        Raises whatever the kernels that run elsewhere raise, Unplanned and Undecided; then the steps must run one by
        one. Raises TimeLimitError.
        """
        this_run = ProgramRun(budget, inside, observer, path, {})

        def elsewhere(item: int, arrays: list[Array]) -> Sequence[Array]:
            step = self._elsewhere.get(item) or self._bound_step(item)
            try:
                return step.run(arrays, this_run)
            except TimeLimitError as error:
                raise placed(error, self.plan.model, self._node(item)) from None

        try:
            ran = self.program.run(feeds, elsewhere, budget, observer, timed)
        except Exception as error:
            late = self._late(error, budget)
            if (
                late is None and self._needs and not isinstance(error, LimitError)
            ):  # the run may have needed a branch that the plan leaves out
                raise _undecided() from error
            if late is None:
                raise
            raise late from None
        if self.flat is not None and not all(ran.values[name].all() for name in self._needs):
            raise _undecided()
        ran = replace(ran, told=this_run.told) if this_run.told else ran
        if self.flat is not None:
            inside.add_later(lambda: self._inside(ran, path))
        return ran

    @property
    def _needs(self) -> Sequence[str]:
        return self.flat.needed if self.flat else ()

    def _inside(self, ran: StampedResult, path: str) -> Iterator[Happening]:
        """What happened at nodes of inner graphs that stand in place of an If, Loop or Scan."""
        from qrun.native.plan.stamps import times

        assert self.flat is not None
        listing = self.program.listing
        _, spans = times(ran.stamps, listing.item_of, listing.items)
        return self.flat.inside(spans, lambda guard: int(guard not in ran.unmet), path, ran.inside)

    def turned(self, made: Turned, path: str) -> Iterator[Happening]:
        """What happened at each node in all the turns that one call made."""
        events, spans, count = self.events, list(made.spans), made.count
        if self.flat is not None:
            yield from self.flat.inside_turns(made, path)
            events, spans = self.flat.whole, self.flat.spans(spans)
        for event, span in zip(events, spans, strict=True):
            assert event.node is not None
            yield f"{path}{event.node.label}", event.node.op, span, event.backend, event.why, count

    def _node(self, item: int) -> Node:
        """The node of an item, or the one that it was made of."""
        found = self.flat.whole[self.flat.sources[item].number].node if self.flat else None
        return found or self.plan.steps[item].node

    def _late(self, error: Exception, budget: Budget) -> Exception | None:
        """The error to raise if `error` says that the run took too long, with the node's place in it; else None."""
        from qrun.native.errors import Late

        if not isinstance(error, Late):
            return None
        assert budget.deadline is not None
        return placed(out_of_time(budget.deadline.seconds), self.plan.model, self._node(error.item))

    def _bound_step(self, item: int) -> BoundStep:
        loose = self.program.listing.steps[item].loose
        natives, arith = self.natives, self.arith
        made = (
            LooseStep(self.plan, item, self.events[item], arith, natives)
            if loose
            else BoundStep(self.plan, item, self.bounds[item], arith, natives)
        )
        self._elsewhere[item] = made
        return made

    def timed(self, ran: StampedResult) -> Timed:
        """The events of a run."""
        return Timed(self.events, self.program.listing, ran, self.flat)


class Timed(LaterEvents):
    """The events of a run of a program, made of its time stamps when somebody looks at them."""

    def __init__(
        self, events: Sequence[NodeEvent], listing: Listing, ran: StampedResult, flat: Flat | None = None
    ) -> None:
        self._known, self._listing, self._ran, self._flat = events, listing, ran, flat

    def made(self) -> tuple[NodeEvent, ...]:
        from qrun.native.plan.stamps import helped, times

        listing = self._listing
        starts, spans = times(self._ran.stamps, listing.item_of, listing.items)
        helpers = helped(self._ran.stamps, listing.item_of) if listing.engine.threads > 1 else {}
        steps = self._steps(listing.joined)
        if self._flat is not None:
            return tuple(self._flat.folded(starts, spans, helpers, steps))
        return tuple(
            self._ran.told.get(item, event).at(start, span, helpers.get(item, ()), steps.get(item, ()))
            for item, (event, start, span) in enumerate(zip(self._known, starts, spans, strict=True))
        )

    def _steps(self, joined: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """For each item that does the work of several nodes: the indices of these nodes."""
        found: dict[int, list[int]] = {}
        for item, doer in sorted(joined.items()):
            found.setdefault(doer, [doer]).append(item)
        known, flat = self._known, self._flat
        index = [flat.whole[s.number].index for s in flat.sources] if flat else [event.index for event in known]
        return {doer: tuple(sorted({index[item] for item in items})) for doer, items in found.items()}

    def __len__(self) -> int:
        return len(self._flat.whole if self._flat else self._known)


def _undecided() -> Exception:
    from qrun.native.errors import Undecided

    return Undecided()
