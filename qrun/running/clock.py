"""The clock of a run."""

from __future__ import annotations

from time import perf_counter_ns


class Clock:
    """perf_counter_ns, less the time spent in ``with clock.aside:`` blocks."""

    def __init__(self) -> None:
        self.aside_ns = 0
        self.aside = _Aside(self)

    def now(self) -> int:
        return perf_counter_ns() - self.aside_ns


class _Aside:
    """Blocks for which a clock stands still; those inside another one do nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._depth, self._start = clock, 0, 0

    def __enter__(self) -> None:
        if not self._depth:
            self._start = perf_counter_ns()
        self._depth += 1

    def __exit__(self, *failed: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._clock.aside_ns += perf_counter_ns() - self._start
