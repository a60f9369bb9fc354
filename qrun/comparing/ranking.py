"""Which groups cost most accuracy at the outputs: each put alone into the first model's run, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import monotonic

from qrun.comparing.accuracy_sums import ErrorSums, decibels
from qrun.comparing.matching_graph import Reals
from qrun.comparing.ranking_effects import Effects, comparable, mean_ratio
from qrun.comparing.ranking_groups import Mixed, RoundingGroup
from qrun.comparing.ranking_local import Local, Spread, Watch
from qrun.comparing.ranking_reasons import Fit, explain
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.running.profiling import Progress

NOTHING = 1e-12
"""Noise to signal ratio (120 dB) up to which a difference is that of float32 arithmetic."""
SIZES = (1, 2, 3, 5, 8, 13)
PART = 3
"""A list to keep in float has at most one in so many of the nodes."""
HALF = 0.5
"""Share of the noise that the longest list must remove, or there is no list to suggest."""
MOST = 0.8
"""Share of the noise which the best list removes that is enough."""


@frozen
class Cost:
    """A quantized node and what it alone costs.

    node:     of the second model; tensor: what it makes; floats: the first model's nodes that do the same.
    ratio:    noise to signal at the outputs when only this node is quantized (mean over the outputs). Not `measured`:
              its part, by the noise of its own result, of what it does together with nodes next to it.
    sqnr:     the same in dB. share: of the sum over all nodes.
    reason:   ``clipped``, ``range-unused``, ``far-values``, ``outliers``, ``weights-per-tensor``, ``weights``, ``input``,
              ``operator``, ``both-round``, ``first-rounds`` or ``rounding``; why: in words, with the numbers seen.
    fit:      the scale that the values need, where the one they have is far off.
    """

    node: Node
    tensor: str
    target: str
    floats: tuple[Node, ...]
    ratio: float
    share: float
    measured: bool
    local: Local
    spread: Spread
    reason: str
    why: str
    fit: Fit | None

    @property
    def sqnr(self) -> float:
        return decibels(self.ratio)


@frozen
class Suggestion:
    """Nodes to keep in float.

    tried:  (how many of the ranking's first nodes, SQNR at the outputs with these in float), measured; 0 for none.
    count:  how many are suggested: the fewest that bring most of what the best list brings; 0 if that is less than half
            of the noise.
    nodes:  the first model's nodes that they are; around: those that read the results of these and would round them
            again.
    runs:   inputs that were used. ratio: noise to signal with no node in float, in these.
    """

    tried: tuple[tuple[int, float], ...]
    count: int
    nodes: tuple[Node, ...]
    around: tuple[Node, ...]
    runs: int
    ratio: float


class Ranking:
    """Collects over the runs. seconds: how long measuring effects may take, all runs together."""

    def __init__(
        self, a: Reals, b: Reals, groups: Sequence[RoundingGroup], runs: int, seconds: float, progress: Progress | None
    ):
        self.mixed = Mixed(a, b)
        self.watches = [Watch(b, group) for group in groups]
        self.effects = Effects(self.mixed, self.watches, runs, seconds, progress)

    def add(self, clean: Mapping[str, Array]) -> None:
        """One run of the first model, with all tensors."""
        self.effects.add(clean, [watch.add(clean) for watch in self.watches])

    def costs(self) -> list[Cost]:
        """The nodes that cost something, the dearest first."""
        ratios = self.effects.ratios()
        whole = math.fsum(ratio for ratio, _ in ratios if math.isfinite(ratio))
        found = []
        for watch, (ratio, measured) in zip(self.watches, ratios, strict=True):
            if ratio <= NOTHING:
                continue
            share = ratio / whole if math.isfinite(ratio) else 1.0
            group, local, spread = watch.group, watch.local(), watch.spread()
            reason, why, fit = explain(watch, local, spread)
            found.append(Cost(group.node, group.value, group.target, group.floats, ratio, share, measured, local,
                              spread, reason, why, fit))  # fmt: skip
        return sorted(found, key=lambda c: (-c.ratio, -c.local.noise.ratio))

    def suggest(self, costs: Sequence[Cost], runs: Sequence[Mapping[str, Array]], seconds: float) -> Suggestion:
        """How much is won with the first nodes of the ranking in float; as many runs as there is time for, at least one."""
        measured = [cost for cost in costs if cost.measured]
        sizes = (0, *(n for n in SIZES if n <= max(1, len(self.watches) // PART) and n <= len(measured)))
        sums = {n: [ErrorSums() for _ in self.mixed.outputs] for n in sizes}
        start, used = monotonic(), 0
        for feeds in runs:
            clean = self.mixed.clean(feeds)
            for n, row in sums.items():
                kept = {cost.target for cost in measured[:n]}
                active = [w.group for w in self.watches if w.group.target not in kept]
                for total, x, name in zip(row, self.mixed.run(clean, active), self.mixed.outputs, strict=True):
                    total.add(comparable(x), comparable(clean[name]))
            used += 1
            if monotonic() - start > seconds * used / (used + 1):
                break
        ratios = {n: mean_ratio(row) for n, row in sums.items()}
        won = {n: _won(ratios[0], ratios[n]) for n in sizes}
        best = max(won.values())
        count = next((n for n in sizes if best >= HALF and won[n] >= MOST * best), 0)
        nodes, around = self._names(measured[:count])
        return Suggestion(tuple((n, decibels(r)) for n, r in ratios.items()), count, nodes, around, used, ratios[0])

    def _names(self, costs: Sequence[Cost]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """The nodes of these groups; and where it is the result that is rounded, those that read it."""
        nodes = {node.index: node for cost in costs for node in cost.floats}
        rounded = [c for c in costs if c.local.rounding + c.local.clipped > c.local.weights + c.local.input]
        readers = self.mixed.a.model.consumers
        around = {n.index: n for c in rounded for n in readers.get(c.target, ()) if n.index not in nodes}
        return tuple(nodes[i] for i in sorted(nodes)), tuple(around[i] for i in sorted(around))


def _won(whole: float, left: float) -> float:
    """The share of the noise that is gone."""
    if not math.isfinite(whole):
        return float(math.isfinite(left))
    return 1 - left / whole if whole else 0.0
