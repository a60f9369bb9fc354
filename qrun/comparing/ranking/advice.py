"""Proposes improvements to a quantized model and measures each by running it: constants to correct, such as scales and
zero points, and nodes to keep in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from qrun.comparing.differences import ErrorSums, decibels
from qrun.comparing.ranking.faults import Correction
from qrun.comparing.ranking.groups import Mixed
from qrun.comparing.ranking.local import Watch
from qrun.comparing.ranking.rank import Cost, mean_ratio, numbers_or_zeros
from qrun.comparing.sides import Values
from qrun.declare import grouped
from qrun.declare.frozen import changeable, frozen, keys
from qrun.ir import Model, Node

_LEAST_OF_FAULTS, _LEAST_OF_RANGES = 0.05, 0.5
"""The dB that a correction must gain: for a proved fault, and for a range that may be wrong."""
_MOST = 16
"""The most corrections that are tried."""
MANY = 3.0
"""The total gain in dB from which corrections come before any list of nodes to keep in float."""

TOGETHER = "together: "
"""Begins the text of corrections that only help together."""


@frozen
class Corrected:
    """A correction of a node.

    text:  describes the change; before, after: SQNR at the outputs in dB without and with this correction, after all
           corrections before it; None if no constant can correct it, so that nothing is measured.
    """

    KEYS = keys("index=node.index name=node.label text before_db=before after_db=after")

    node: Node
    text: str
    before: float | None = None
    after: float | None = None


def corrections(
    costs: Sequence[Cost], model: Model, whole: float, measure: Callable[[Model], float], seconds: float
) -> tuple[Corrected, ...]:
    """Try corrections in the order of the costs. Returns those that gain enough, and faults that no constant corrects.

    whole: noise to signal ratio of the model's outputs; measure: returns it for a changed model. seconds: the limit.
    """
    begun, now, found = monotonic(), decibels(whole), list[Corrected]()
    left: list[tuple[Node, tuple[Correction, ...]]] = []
    tried = 0
    for node, text, parts, least in _proposals(costs):
        if not parts:
            found.append(Corrected(node, text))
            continue
        if tried >= _MOST or (tried and monotonic() - begun > seconds):
            break
        tried += 1
        better = _with(model, parts)
        after = decibels(measure(better))
        if after >= now + least:
            found.append(Corrected(node, _changes(parts), now, after))
            model, now = better, after
        else:
            left.append((node, parts))
    if len(left) > 1 and monotonic() - begun <= seconds:
        found += _correct_together(left, model, now, lambda: monotonic() - begun > seconds, measure)
    return tuple(found)


def _correct_together(
    left: Sequence[tuple[Node, tuple[Correction, ...]]],
    model: Model,
    now: float,
    out_of_time: Callable[[], bool],
    measure: Callable[[Model], float],
) -> Iterator[Corrected]:
    """Yield the corrections that gain little one by one and much together, as one: with ranges that are all too small,
    the others hide what one gains. Corrections that add nothing to the others are left out, while time lasts."""
    node = left[0][0]
    parts = {part.name: part for _, group in left for part in group}
    after = decibels(measure(_with(model, tuple(parts.values()))))
    if after < now + MANY:
        return
    for _, group in reversed(left):
        fewer = {name: part for name, part in parts.items() if all(part is not one for one in group)}
        if out_of_time() or not fewer:
            break
        without = decibels(measure(_with(model, tuple(fewer.values()))))
        if without >= after - _LEAST_OF_FAULTS:
            parts, after = fewer, without
    yield Corrected(node, f"{TOGETHER}{_changes(tuple(parts.values()))}", now, after)


def _with(model: Model, parts: Sequence[Correction]) -> Model:
    return replace(model, constants={**model.constants, **{part.name: part.array for part in parts}})


def _changes(parts: Sequence[Correction]) -> str:
    return ", ".join(f"{part.name} {part.change}" for part in parts)


def _proposals(costs: Sequence[Cost]) -> Iterator[tuple[Node, str, tuple[Correction, ...], float]]:
    """Yield candidate corrections, each constant once: node, text, changed constants, and the dB that it must gain."""
    done: set[str] = set()
    for cost in costs:
        found = [(fault.text, fault.corrections, _LEAST_OF_FAULTS) for fault in cost.faults]
        found += [(cost.fit.text, cost.fit.corrections, _LEAST_OF_RANGES)] if cost.fit else []
        for text, parts, least in found:
            names = {part.name for part in parts}
            if done.isdisjoint(names):
                done |= names
                yield cost.node, text, parts, least


SIZES = (1, 2, 3, 5, 8, 13)
PART = 3
"""A list has at most one in PART of the nodes, unless the requested SQNR takes more."""
HALF = 0.5
"""The share of the noise that the best list must remove; otherwise no list is suggested."""
MOST = 0.8
"""The share of the best list's gain that is enough for a shorter list."""

Kept = frozenset[str]
"""The targets of the groups that stay in float."""


@frozen
class OperatorCost:
    """The cost of one operator. nodes: the number of its quantized nodes; sqnr: dB at the outputs with all in float."""

    KEYS = keys("op domain=full_domain nodes output_sqnr_db=sqnr")

    domain: str
    op: str
    nodes: int
    sqnr: float

    @property
    def full_domain(self) -> str:
        """The domain, "ai.onnx" written out."""
        return self.domain or "ai.onnx"

    @property
    def name(self) -> str:
        """The operator, with its domain unless that is ai.onnx."""
        return self.op if self.domain in ("", "ai.onnx") else f"{self.domain}::{self.op}"


@frozen
class Suggestion:
    """The suggestion which nodes to keep in float.

    tried:     measured pairs: a list length n (0 for no nodes), and the SQNR in dB with the ranking's first n in float.
    count:     the number of suggested nodes: the fewest that reach the requested SQNR. If none is requested, or it is
               reached with no node in float: the fewest that remove most of the noise that the best list removes; 0 if
               the best list removes less than half.
    nodes:     these nodes in the first model; around: nodes that read their results, and would round them again unless
               kept in float too. listed: measured SQNR with all of these in float; None if `around` is empty.
    runs:      the number of inputs used. ratio: noise to signal ratio with no node in float, over these inputs.
    reached:   does each output reach the requested SQNR with these in float? None: none was requested.
    operators: the cost of each operator, the costliest first.
    budget_exceeded: did the time run out before everything was measured?
    """

    tried: tuple[tuple[int, float], ...]
    count: int
    nodes: tuple[Node, ...]
    around: tuple[Node, ...]
    listed: float | None
    runs: int
    ratio: float
    reached: bool | None = None
    operators: tuple[OperatorCost, ...] = ()
    budget_exceeded: bool = False


@changeable
class _Trials:
    """Measures the noise at the outputs with some groups in float, over as many runs as time allows, at least one.

    sums: error sums for each list, by output or part. used: completed runs. budget_exceeded: was there too little time?
    """

    mixed: Mixed
    watches: Sequence[Watch]
    feeds: Sequence[Values]
    seconds: float
    sums: dict[Kept, list[ErrorSums]]
    used: int = 0
    budget_exceeded: bool = False
    begun: float = 0.0
    clean: Values | None = None

    def all(self, lists: Sequence[Kept], optional: Sequence[Kept]) -> None:
        """Measure these lists, and the optional ones that the first run has time for."""
        self.begun = monotonic()
        for one in self.feeds:
            clean = self.mixed.clean(one)
            for kept in dict.fromkeys(lists):
                self._add(kept, clean)
            for kept in dict.fromkeys(optional):
                if kept in self.sums if self.used else not self.late:
                    self._add(kept, clean)
            self.used += 1
            self.clean = clean if len(self.feeds) == 1 else None
            if monotonic() - self.begun > self.seconds * self.used / (self.used + 1):
                break
        self.budget_exceeded = self.used < len(self.feeds) or any(kept not in self.sums for kept in optional)

    @property
    def late(self) -> bool:
        """Whether the time for trials has passed."""
        return monotonic() - self.begun > self.seconds

    def one(self, kept: Kept) -> list[ErrorSums]:
        """Measure one more list, on the inputs of the other lists."""
        if kept not in self.sums:
            for feeds in self.feeds[: self.used]:
                self._add(kept, self.clean if self.clean is not None else self.mixed.clean(feeds))
        return self.sums[kept]

    def _add(self, kept: Kept, clean: Values) -> None:
        """Run the model with the tensors `kept` in float, and add its errors."""
        wanted = self.mixed.parts([clean[name] for name in self.mixed.outputs])
        row = self.sums.setdefault(kept, [ErrorSums() for _ in wanted])
        active = [w.group for w in self.watches if w.group.target not in kept]
        for total, x, want in zip(row, self.mixed.parts(self.mixed.run(clean, active)), wanted, strict=True):
            total.add(numbers_or_zeros(x), numbers_or_zeros(want))


def suggest(
    mixed: Mixed,
    watches: Sequence[Watch],
    costs: Sequence[Cost],
    feeds: Sequence[Values],
    seconds: float,
    wanted: float | None = None,
) -> Suggestion:
    """Measure the gain with the first nodes of the ranking in float, and with all nodes of one operator.

    costs:   the ranking, costliest first. feeds: inputs; as many are used as time allows, at least the first.
    seconds: the time limit. wanted: dB that each output must reach. If given, lists of any length are tried until the
             fewest nodes that reach it are found.
    """
    measured = [cost for cost in costs if cost.measured]
    sizes = (0, *(n for n in SIZES if n <= max(1, len(watches) // PART) and n <= len(measured)))
    lists = {n: _targets(measured[:n]) for n in sizes}
    operators = _by_operator(costs)
    trials = _Trials(mixed, watches, feeds, seconds, {})
    trials.all(list(lists.values()), list(operators.values()))
    if wanted is None or _least(trials.one(lists[0])) >= wanted:
        count = _enough({n: mean_ratio(trials.one(kept)) for n, kept in lists.items()})
        reached = None if wanted is None else True
    else:
        count, reached = (
            _search_reaching(trials, [*measured, *(c for c in costs if not c.measured)], lists, wanted),
            True,
        )
        if not count:
            reached, trials.budget_exceeded = False, trials.budget_exceeded or trials.late
    tried = tuple((n, decibels(mean_ratio(trials.sums[lists[n]]))) for n in sorted(lists))
    order = [*measured, *(c for c in costs if not c.measured)]
    nodes, around = _names(mixed, order[:count])
    named = {node.index for node in (*nodes, *around)}
    listed = _targets(order[:count]) | {c.target for c in order if named.intersection(n.index for n in c.floats)}
    return Suggestion(
        tried,
        count,
        nodes,
        around,
        decibels(mean_ratio(trials.one(listed))) if around else None,
        trials.used,
        mean_ratio(trials.sums[lists[0]]),
        reached,
        _operator_costs(operators, trials),
        trials.budget_exceeded,
    )


def _targets(costs: Sequence[Cost]) -> Kept:
    """The tensors of costs."""
    return frozenset(cost.target for cost in costs)


def _least(sums: Sequence[ErrorSums]) -> float:
    """The SQNR of the worst output."""
    return min((decibels(one.ratio) for one in sums), default=math.inf)


def _enough(ratios: Mapping[int, float]) -> int:
    """The length of the shortest list that removes most of what the best list removes; 0 if none removes half."""
    won = {n: _share_removed(ratios[0], ratio) for n, ratio in ratios.items()}
    best = max(won.values())
    return next((n for n in ratios if best >= HALF and won[n] >= MOST * best), 0)


def _share_removed(whole: float, left: float) -> float:
    """The share of the noise ratio `whole` that is removed if `left` remains."""
    if not math.isfinite(whole):
        return float(math.isfinite(left))
    return 1 - left / whole if whole else 0.0


def _search_reaching(trials: _Trials, costs: Sequence[Cost], lists: dict[int, Kept], wanted: float) -> int:
    """The smallest number of the ranking's first nodes with which each output reaches `wanted`; 0 if none did in time.

    lists: the measured lists, by length; receives the new ones.
    """
    low, high = 0, 0
    for n in sorted(lists):
        if _least(trials.one(lists[n])) >= wanted:
            high = n
            break
        low = n
    while not high or high - low > 1:
        if low >= len(costs) or trials.late:
            break
        n = (low + high) // 2 if high else min(len(costs), max(1, 2 * low))
        lists[n] = _targets(costs[:n])
        if _least(trials.one(lists[n])) >= wanted:
            high = n
        else:
            low = n
    return high


def _by_operator(costs: Sequence[Cost]) -> dict[tuple[str, str], Kept]:
    """The groups of each operator, the costliest operator first; empty if all nodes are of one operator."""
    found = grouped(((cost.node.domain, cost.node.op_type), cost) for cost in costs)
    order = sorted(found, key=lambda key: -math.fsum(cost.share for cost in found[key]))
    return {key: _targets(found[key]) for key in order} if len(order) > 1 else {}


def _operator_costs(operators: Mapping[tuple[str, str], Kept], trials: _Trials) -> tuple[OperatorCost, ...]:
    """For each operator, the SQNR with all of its nodes in float; worst first."""
    rows = [
        OperatorCost(domain, op, len(kept), decibels(mean_ratio(trials.sums[kept])))
        for (domain, op), kept in operators.items()
        if kept in trials.sums
    ]
    return tuple(sorted(rows, key=lambda row: -row.sqnr))


def _names(mixed: Mixed, costs: Sequence[Cost]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The nodes of these groups, and the other readers of each result whose rounding makes most of its noise."""
    nodes = {node.index: node for cost in costs for node in cost.floats}
    rounded = [c for c in costs if c.local.rounding + c.local.clipped > c.local.weights + c.local.input]
    readers = mixed.a.model.consumers
    around = {n.index: n for c in rounded for n in readers.get(c.target, ()) if n.index not in nodes}
    return tuple(nodes[i] for i in sorted(nodes)), tuple(around[i] for i in sorted(around))
