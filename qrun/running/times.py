"""The clock of a run, and what happens at the nodes of graphs inside other nodes, added up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    """A context in which a clock stands still; one inside another changes nothing."""

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

    path: where it is, ``If_3/then_branch/Conv_7``: the node around it, the attribute, and the node. op: its operator,
    with the domain unless that is ai.onnx. backend, why: as of a NodeEvent, of the last run.
    """

    path: str
    op: str
    runs: int
    duration_ns: int
    backend: str
    why: str


Happening = tuple[str, str, int, str, str, int]
"""The fields of an InsideEvent, with runs at the end."""
_NOTED = 256
"""What is noted at most before it is added up: it may hold the time stamps of runs."""


class Inside:
    """InsideEvents by path, in the order in which the nodes first ran. timed: whether somebody wants them.

    What happens is only noted, and is added up when somebody asks: adding up must not count as time of the run.
    """

    def __init__(self, timed: bool = True) -> None:
        self.timed = timed
        self._noted: list[Happening | Callable[[], Iterable[Happening]]] = []
        self._found: dict[str, InsideEvent] = {}

    def add(self, path: str, op: str, duration_ns: int, backend: str, why: str, more: int = 1) -> None:
        """One more run of a node, or so many."""
        if self.timed:
            self._note((path, op, duration_ns, backend, why, more))

    def add_later(self, told: Callable[[], Iterable[Happening]]) -> None:
        """Add what `told` returns; it is called when the events are added up."""
        if self.timed:
            self._note(told)

    def add_all(self, other: Inside) -> None:
        """Add the events of `other`, to which nothing more is added."""
        self.add_later(other.happenings)

    def happenings(self) -> Iterator[Happening]:
        for event in self.events:
            yield event.path, event.op, event.duration_ns, event.backend, event.why, event.runs

    @property
    def events(self) -> tuple[InsideEvent, ...]:
        self._add_up()
        return tuple(self._found.values())

    def _note(self, noted: Happening | Callable[[], Iterable[Happening]]) -> None:
        self._noted.append(noted)
        if len(self._noted) >= _NOTED:
            self._add_up()

    def _add_up(self) -> None:
        noted, self._noted = self._noted, []
        for one in noted:
            for path, op, duration_ns, backend, why, more in one() if callable(one) else (one,):
                before = self._found.get(path)
                runs, spent = (before.runs, before.duration_ns) if before else (0, 0)
                self._found[path] = InsideEvent(path, op, runs + more, spent + duration_ns, backend, why)


UNTIMED = Inside(False)
"""For runs of which nobody wants the events: it keeps none."""
