"""Events of a run: when and where each node ran, what it read and wrote; sums over all runs of inner graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import Any, overload

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Node
from qrun.ops import Observation
from qrun.ops.lowering.kernel import NativeSection


@frozen
class TensorInfo:
    """Name, element type and shape of a tensor that a node read or wrote."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@frozen
class NodeEvent:
    """What happened at one node: when it started and how long it took (ns), what it read and wrote, its multiply-adds.

    node:     the node that ran; in a rewritten model it may replace a `group` of the model's nodes (their indices;
              `index` is that of the one it is named after).
    backend:  ``reference``, ``native`` or ``onnx.reference``, which runs operators that qrun has no kernel for; why:
              the reason why it is not ``native`` in a native session.
    sections: the parts of a native kernel.
    step:     the indices of all nodes that ran as one step of a native program with this one; the time covers all of
              them.
    helpers:  when other threads worked on the node: the thread's number from 1, start and duration (ns).
    """

    index: int
    start_ns: int
    duration_ns: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    macs: int
    backend: str
    observations: tuple[Observation, ...] = ()
    why: str = ""
    sections: tuple[NativeSection, ...] = ()
    group: tuple[int, ...] = ()
    node: Node | None = None
    helpers: tuple[tuple[int, int, int], ...] = ()
    step: tuple[int, ...] = ()

    def at(
        self,
        start_ns: int,
        duration_ns: int,
        helpers: Sequence[tuple[int, int, int]] = (),
        step: tuple[int, ...] = (),
    ) -> NodeEvent:
        """This event with other times, without observations."""
        return NodeEvent(
            self.index, start_ns, duration_ns, self.inputs, self.outputs, self.macs, self.backend, (), self.why,
            self.sections, self.group, self.node, tuple(helpers), step,
        )  # fmt: skip


class LaterEvents(Sequence[NodeEvent]):
    """The events of a run, built on first access; their number is known before."""

    @abstractmethod
    def build(self) -> tuple[NodeEvent, ...]:
        """All events; called once."""

    @cached_property
    def _events(self) -> tuple[NodeEvent, ...]:
        """The events, built when they are first read."""
        return self.build()

    def __iter__(self) -> Iterator[NodeEvent]:
        return iter(self._events)

    @overload
    def __getitem__(self, at: int) -> NodeEvent: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[NodeEvent, ...]: ...

    def __getitem__(self, at: int | slice) -> NodeEvent | tuple[NodeEvent, ...]:
        return self._events[at]


class Clock:
    """perf_counter_ns, less the time spent in ``with clock.aside:`` blocks."""

    def __init__(self) -> None:
        self.aside_ns = 0
        self.aside = _Aside(self)

    def now(self) -> int:
        """Nanoseconds now, without the time that was set aside."""
        return perf_counter_ns() - self.aside_ns


class _Aside:
    """A context that stops a clock; nested ones change nothing."""

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
    """A node of a graph inside another node, over all of its runs: how many there were, and how long they took (ns).

    path: where it is, ``If_3/then_branch/Conv_7``: the node around it, the attribute, and the node. op: its operator,
    with the domain unless that is ai.onnx. backend, why: as in a NodeEvent, of the last run.
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
"""The most notes kept before they are added up: they may hold the time stamps of runs."""


class Inside:
    """InsideEvents by path, in the order in which the nodes first ran. timed: whether events are wanted.

    Events are only noted, and added up on access: adding up must not count as time of the run.
    """

    def __init__(self, timed: bool = True) -> None:
        self.timed = timed
        self._noted: list[Happening | Callable[[], Iterable[Happening]]] = []
        self._found: dict[str, InsideEvent] = {}

    def add(self, event: NodeEvent, path: str) -> None:
        """Add a run of a node. path: of its graph."""
        if self.timed:
            self._note(_happening(event, path))

    def add_later(self, told: Callable[[], Iterable[NodeEvent]], path: str) -> None:
        """Add the events that `told` returns; it is called when they are added up."""
        if self.timed:
            self._note(lambda: (_happening(event, path) for event in told()))

    def add_told(self, told: Sequence[Happening]) -> None:
        """Add events that are already summed up."""
        self._note(lambda: told)

    def add_all(self, other: Inside) -> None:
        """Add the events of `other`, which must not change any more."""
        if self.timed:
            self._note(other.happenings)

    def happenings(self) -> Iterator[Happening]:
        """The runs inside, as (path, operator, nanoseconds, backend, reason, count)."""
        for event in self.events:
            yield event.path, event.op, event.duration_ns, event.backend, event.why, event.runs

    @property
    def events(self) -> tuple[InsideEvent, ...]:
        """The runs inside, added up by path."""
        self._add_up()
        return tuple(self._found.values())

    def _note(self, noted: Happening | Callable[[], Iterable[Happening]]) -> None:
        """Keep a run (or a function that lists several) to be added up later."""
        self._noted.append(noted)
        if len(self._noted) >= _NOTED:
            self._add_up()

    def _add_up(self) -> None:
        """Add what was kept to the events by path."""
        noted, self._noted = self._noted, []
        for one in noted:
            for path, op, duration_ns, backend, why, more in one() if callable(one) else (one,):
                before = self._found.get(path)
                runs, spent = (before.runs, before.duration_ns) if before else (0, 0)
                self._found[path] = InsideEvent(path, op, runs + more, spent + duration_ns, backend, why)


def _happening(event: NodeEvent, path: str) -> Happening:
    """A node's run inside a body: (path, operator, nanoseconds, backend, reason, 1)."""
    assert event.node is not None
    return f"{path}{event.node.label}", event.node.op, event.duration_ns, event.backend, event.why, 1


UNTIMED = Inside(False)
"""For runs whose events nobody wants: keeps none."""
