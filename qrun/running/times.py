"""The clock of a run, and what happens at the nodes of graphs inside other nodes, added up."""

from __future__ import annotations

from time import perf_counter_ns

from qrun.declare.frozen import frozen


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


@frozen
class InsideEvent:
    """What happened at a node of a graph inside another one, in all of its runs: how many, and how long they took (ns).

    path: where it is, ``If_3/then_branch/Conv_7``: the node around it, the attribute, and the node. op: its operator, with
    the domain unless that is ai.onnx. backend, why: as of a NodeEvent, of the last run.
    """

    path: str
    op: str
    runs: int
    duration_ns: int
    backend: str
    why: str


class Inside:
    """Such events by path, in the order in which the nodes ran first. timed: whether somebody wants them."""

    def __init__(self, timed: bool = True) -> None:
        self.timed = timed
        self._found: dict[str, InsideEvent] = {}

    def add(self, path: str, op: str, duration_ns: int, backend: str, why: str, more: int = 1) -> None:
        """One more run of a node, or so many."""
        if not self.timed:
            return
        before = self._found.get(path)
        runs, spent = (before.runs, before.duration_ns) if before else (0, 0)
        self._found[path] = InsideEvent(path, op, runs + more, spent + duration_ns, backend, why)

    def add_all(self, other: Inside) -> None:
        """What happened elsewhere too."""
        for event in other._found.values():
            self.add(event.path, event.op, event.duration_ns, event.backend, event.why, event.runs)

    @property
    def events(self) -> tuple[InsideEvent, ...]:
        return tuple(self._found.values()) if self._found else ()


UNTIMED = Inside(False)
"""For runs of which nobody wants the events: it keeps none."""
