"""What a plan is in which the nodes of graphs stand in place of the nodes that run these,
and what happened at those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from qrun.declare.frozen import frozen
from qrun.running.events import NodeEvent
from qrun.running.times import Happening

CERTAIN = "its condition follows from shapes"


@frozen
class Origin:
    """Where a step of a flat plan comes from: the number of a step of the plan that it was made of, and the path of a
    node inside that, ``then_branch/Conv_7``; "" for what is done for the step itself. around: the paths of
    nodes with graphs that it is done for, from the outer one to the inner one."""

    number: int
    path: str = ""
    around: tuple[str, ...] = ()


@frozen
class GoneNode:
    """An If, Loop or Scan inside another one. guard: what its graph is guarded by, "" for nothing;
    op, why: as of an InsideEvent."""

    source: Origin
    guard: str
    op: str
    why: str


@frozen
class Flat:
    """What a flat plan has besides its steps.

    events:  of its steps. sources: where these come from; guards: of those that a bool of the run decides on, its name.
    inner:   what has graphs, and is inside other such nodes, and is gone; as often as it runs in a turn of these.
    whole:   events of the steps of the plan that it was made of.
    needed:  names of bools that are true in each run that the plan is for:
             a branch that is not there would refuse its inputs.
    repeated: of steps that make all turns of a loop, by number, what is in a turn; its `whole` is that of this one.
    """

    events: Sequence[NodeEvent]
    sources: Sequence[Origin]
    guards: Mapping[int, str]
    inner: Sequence[GoneNode]
    whole: Sequence[NodeEvent]
    needed: Sequence[str] = ()
    repeated: Mapping[int, Flat] = field(default_factory=dict)

    def spans(self, spans: Sequence[int]) -> list[int]:
        """How long each step of the plan that it was made of took (ns). spans: the same of its own."""
        found = [0] * len(self.whole)
        for source, span in zip(self.sources, spans, strict=True):
            found[source.number] += span
        return found

    def folded(
        self,
        starts: Sequence[int],
        spans: Sequence[int],
        helpers: Mapping[int, Sequence[tuple[int, int, int]]],
        steps: Mapping[int, tuple[int, ...]],
    ) -> Iterator[NodeEvent]:
        """Events of the steps of the plan that it was made of. starts, spans: of its own (ns); helpers, steps: as of
        their NodeEvents."""
        items: list[list[int]] = [[] for _ in self.whole]
        for item, source in enumerate(self.sources):
            items[source.number].append(item)
        for event, own, span in zip(self.whole, items, self.spans(spans), strict=True):
            start = min((starts[item] for item in own if spans[item]), default=starts[own[0]] if own else 0)
            helped = [help for item in own for help in helpers.get(item, ())]
            joined = {index for item in own for index in steps.get(item, ())}
            yield event.at(start, span, helped, tuple(sorted(joined)) if len(joined) > 1 else ())

    def inside(
        self, spans: Sequence[int], runs: Callable[[str], int], path: str, turns: Mapping[int, Any]
    ) -> Iterator[Happening]:
        """What happened at nodes inside others. spans: of its steps (ns); runs: how often a guard was true, "" for
        none; path: of the plan's graph, as a Run has it; turns: of steps that make those of a loop
        (native/plan/turns.py::Turned)."""
        within = {(one.source.number, one.source.path): 0 for one in self.inner}
        for item, (source, event, span) in enumerate(zip(self.sources, self.events, spans, strict=True)):
            for outer in source.around:
                within[source.number, outer] += span
            times = runs(self.guards.get(item, ""))
            if source.path not in ("", *source.around) and times and event.node is not None:
                yield self._path(source, path), event.node.op, span, event.backend, event.why, times
        for item, flat in self.repeated.items():
            if item in turns and turns[item].count:
                yield from flat.inside_turns(turns[item], path)
        ran = dict.fromkeys(within, 0)
        for one in self.inner:
            ran[one.source.number, one.source.path] += runs(one.guard)
        for one in self.inner:
            at = one.source.number, one.source.path
            if times := ran.pop(at, 0):
                yield (
                    self._path(one.source, path),
                    one.op,
                    within[at],
                    "reference" if one.why else "native",
                    one.why,
                    times,
                )

    def inside_turns(self, made: Any, path: str) -> Iterator[Happening]:
        """The same of turns (native/plan/turns.py::Turned)."""
        return self.inside(made.spans, lambda guard: made.met[guard] if guard else made.count, path, made.inside)

    def _path(self, source: Origin, path: str) -> str:
        node = self.whole[source.number].node
        assert node is not None
        return f"{path}{node.label}/{source.path}"
