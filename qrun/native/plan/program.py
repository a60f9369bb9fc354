"""A schedule that runs, from several threads at once: each run has memory of its own, kept for the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qrun.memory import Budget
from qrun.native.machine.memory import Array
from qrun.native.plan.instance import Elsewhere, Instance, Looks
from qrun.native.plan.listing import Listing
from qrun.native.plan.stamps import StampedResult

if TYPE_CHECKING:
    from qrun.native.plan.schedule import Schedule


class Program:
    """A listing, and the memory of its runs: `nbytes` each. schedule: what it was made of, None if another process made it.

    `run` may be called from several threads at once; each run has memory of its own, kept for the next one: `free` are those
    that nobody has.
    """

    def __init__(self, listing: Listing, schedule: Schedule | None = None) -> None:
        self.listing, self.schedule, self.nbytes = listing, schedule, listing.nbytes
        self.free: deque[Instance] = deque()

    @classmethod
    def of(cls, schedule: Schedule) -> Program:
        return cls(Listing.of(schedule), schedule)

    def run(
        self,
        arrays: Mapping[Any, Array],
        elsewhere: Elsewhere,
        budget: Budget,
        looks: Looks | None = None,
        timed: bool = True,
    ) -> StampedResult:
        """arrays: the values that come from outside, counted already. elsewhere: item number and its inputs to its outputs.
        timed: whether the result has stamps.

        Raises Unplanned if an array has not the type and shape of its operand, Undecided if a kernel could not decide, Late.
        """
        instance = self.take(budget)
        try:
            return instance.run(arrays, elsewhere, budget, looks, timed)
        finally:
            self.give(instance)

    def take(self, budget: Budget) -> Instance:
        """Memory of a run, for one thread, until it is given back."""
        try:
            instance = self.free.pop()
        except IndexError:
            budget.reserve(self.nbytes, "native program")
            return Instance(self.listing)
        budget.reserve(self.nbytes, "native program", there=True)
        return instance

    def give(self, instance: Instance) -> None:
        """Another run may have this memory."""
        self.free.append(instance)
