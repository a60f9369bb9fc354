"""Times calls in a row, in this process and in the one that runs other runtimes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns

Calls = tuple[list[int], int]
"""How long each call took, and how long this thread was on a processor meanwhile; ns."""


def timed_calls(call: Callable[[], object], times: int) -> Calls:
    """Call `times` times with only the clock in between, as a loop of a user's program does."""
    spent: list[int] = []
    now, on = perf_counter_ns, thread_time_ns()
    for _ in range(times):
        begin = now()
        call()
        spent.append(now() - begin)
    return spent, thread_time_ns() - on
