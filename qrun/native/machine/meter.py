"""Calibrates the processor's clock for the times in programs: the length of a tick, and the cost of reading it."""

from __future__ import annotations

from functools import cached_property
from time import perf_counter_ns
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import ENTRY, PLAN, STATE, STRUCT, TIMES
from qrun.native.machine.memory import Array, address, aligned

_STEPS, _TIMES = 32, 9
"""The steps of the empty program, and its runs."""


@frozen(slots=False)
class Meter:
    """The time of a tick of the processor's clock, and of an empty step.

    lead, empty: functions of emit/runner.py.
    start, first: both clocks at the same moment, perf_counter_ns and ticks. A tick is measured from there on: the time
    around one run would include the Python around its calls.
    """

    lead: Any
    empty: int
    start: int
    first: int

    @classmethod
    def of(cls, lead: Any, ticks: Any, empty: int) -> Meter:
        """A meter of the CPU's clock, compared with Python's clock now."""
        before = perf_counter_ns()
        first = int(ticks())
        return cls(lead, empty, (before + perf_counter_ns()) // 2, first)

    def tick(self, begin: int, end: int, first: int, last: int) -> float:
        """The nanoseconds of a tick, from the values of both clocks when calls began and when they had ended.

        The calls took no more than the time around them; where clocks of processors differ, only this bound is known.
        """
        most = (end - begin) / max(last - first, 1)
        found = (end - self.start) / max(last - self.first, 1)
        return min(found, most) if found > 0 else most

    @cached_property
    def step(self) -> float:
        """The ticks of an empty step, which a program's notes add to the time of each call."""
        plan, structs = aligned((_STEPS, ENTRY // 8), np.int64, 0), aligned((_STEPS, STRUCT // 8), np.int64, 0)
        state, times = aligned(STATE // 8, np.int64, 0), aligned((_STEPS + 1, 2), np.int64, 0)
        plan[:, 0], plan[:, 1] = self.empty, address(structs) + STRUCT * np.arange(_STEPS)
        plan[:, 2] = 1
        state[PLAN // 8], state[TIMES // 8] = address(plan), address(times)
        return min(self._once(state, times) for _ in range(_TIMES)) / _STEPS

    def _once(self, state: Array, times: Array) -> int:
        """Run an empty program once; returns its time in ticks."""
        self.lead(address(state), 0, _STEPS, 0)
        return int(times[-1, 0] - times[0, 0])
