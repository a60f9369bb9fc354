"""Where the steps of a flat plan (running/flat/flattened.py) come from, and how their events become events of the
original plan's steps and of the nodes in inner graphs."""

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
    """Where a step of a flat plan comes from. number: of the original plan's step; path: of the node inside that step,
    ``then_branch/Conv_7``, "" where the flat step does work of the original step itself. around: the paths of the inner
    nodes with graphs whose work it is a part of, from the outermost to the innermost."""

    number: int
    path: str = ""
    around: tuple[str, ...] = ()


@frozen
class GoneNode:
    """An If, Loop or Scan inside another one, replaced by its graphs' steps. guard: the name of the bool that decides
    whether it runs, "" if it always runs; op, why: as in InsideEvent."""

    source: Origin
    guard: str
    op: str
    why: str


@frozen
class Flat:
    """What a flat plan has besides its steps.

    events:  of its steps. sources: where these come from; guards: by step number, the name of the bool that decides
             whether the step runs. inner: the replaced nodes inside other ones, once for each time that one was added.
    whole:   events of the original plan's steps.
    needed:  names of bools that must be true in a run; where one is false, the run would need a branch that was left
             out because it refuses its inputs.
    repeated: by number of a step that makes all turns of a loop, the Flat of one turn, whose `whole` is this `whole`.
    """

    events: Sequence[NodeEvent]
    sources: Sequence[Origin]
    guards: Mapping[int, str]
    inner: Sequence[GoneNode]
    whole: Sequence[NodeEvent]
    needed: Sequence[str] = ()
    repeated: Mapping[int, Flat] = field(default_factory=dict)

    def spans(self, spans: Sequence[int]) -> list[int]:
        """How long each step of the original plan took (ns). spans: how long each flat step took (ns)."""
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
        """The events of the original plan's steps. starts, spans: of the flat steps (ns); helpers, steps: by flat step,
        as in NodeEvent (`helpers`, `step`)."""
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
        """What happened at the nodes of inner graphs. spans: of the flat steps (ns); runs: from a guard's name to how
        often it was true, from "" to how often the plan ran; path: of the plan's graph, as in `Run`; turns: what each
        step that makes all turns of a loop made, by step number (native/plan/turns.py::Turned)."""
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
        """As `inside`, for the plan of one turn. made: what all turns made (native/plan/turns.py::Turned)."""
        return self.inside(made.spans, lambda guard: made.met[guard] if guard else made.count, path, made.inside)

    def _path(self, source: Origin, path: str) -> str:
        node = self.whole[source.number].node
        assert node is not None
        return f"{path}{node.label}/{source.path}"
