"""What a plan is in which the nodes of branches stand in place of the Ifs that run them, and what happened at those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from qrun.declare.frozen import frozen
from qrun.running.events import NodeEvent
from qrun.running.times import Happening

CERTAIN = "its condition follows from shapes"


@frozen
class Origin:
    """Where a step of a flat plan comes from: the number of a step of the plan that it was made of, and the path of a node
    inside that, ``then_branch/Conv_7``; "" for what is done for the step itself. around: the paths of Ifs that it is done
    for, from the outer one to the inner one."""

    number: int
    path: str = ""
    around: tuple[str, ...] = ()


@frozen
class InnerIf:
    """An If inside the branch of another one. guard: what its branch is guarded by, "" for nothing; why: as of an InsideEvent."""

    source: Origin
    guard: str
    why: str


@frozen
class Flat:
    """What a flat plan has besides its steps.

    events:  of its steps. sources: where these come from; guards: of those that a bool of the run decides on, its name.
    inner:   the Ifs inside others that are gone.
    whole:   events of the steps of the plan that it was made of.
    """

    events: Sequence[NodeEvent]
    sources: Sequence[Origin]
    guards: Mapping[int, str]
    inner: Sequence[InnerIf]
    whole: Sequence[NodeEvent]

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
        """Events of the steps of the plan that it was made of. starts, spans: of its own (ns); helpers, steps: as of their
        NodeEvents."""
        items: list[list[int]] = [[] for _ in self.whole]
        for item, source in enumerate(self.sources):
            items[source.number].append(item)
        for event, own, span in zip(self.whole, items, self.spans(spans), strict=True):
            start = min((starts[item] for item in own if spans[item]), default=starts[own[0]] if own else 0)
            helped = [help for item in own for help in helpers.get(item, ())]
            joined = {index for item in own for index in steps.get(item, ())}
            yield event.at(start, span, helped, tuple(sorted(joined)) if len(joined) > 1 else ())

    def inside(self, spans: Sequence[int], runs: Callable[[str], int], path: str) -> Iterator[Happening]:
        """What happened at nodes inside others. spans: of its steps (ns); runs: how often a guard was true, "" for none; path:
        of the plan's graph, as a Run has it."""
        within = {(one.source.number, one.source.path): 0 for one in self.inner}
        for item, (source, event, span) in enumerate(zip(self.sources, self.events, spans, strict=True)):
            for outer in source.around:
                within[source.number, outer] += span
            times = runs(self.guards.get(item, ""))
            if source.path not in ("", *source.around) and times and event.node is not None:
                yield self._path(source, path), event.node.op, span, event.backend, event.why, times
        for one in self.inner:
            if times := runs(one.guard):
                backend, spent = "reference" if one.why else "native", within[one.source.number, one.source.path]
                yield self._path(one.source, path), "If", spent, backend, one.why, times

    def _path(self, source: Origin, path: str) -> str:
        node = self.whole[source.number].node
        assert node is not None
        return f"{path}{node.label}/{source.path}"
