"""A quantized model against the float model that it was made from: how accurate each tensor is, which nodes cost the
most accuracy, and where the model computes something else than the simulation of its nodes does."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.comparing.accuracy_rows import OutputAccuracy, Rows, TensorAccuracy, mismatch
from qrun.comparing.differences import ErrorSums, Tolerance, decibels
from qrun.comparing.matching.graph import Reals
from qrun.comparing.matching.match import Left, match
from qrun.comparing.matching.operators import is_dequantize
from qrun.comparing.ranking.corrections import MANY, Corrected, corrections
from qrun.comparing.ranking.effects import averaged
from qrun.comparing.ranking.groups import RoundingGroup, groups
from qrun.comparing.ranking.lists import Suggestion, suggest
from qrun.comparing.ranking.rank import Cost, Ranking
from qrun.comparing.sides import Values
from qrun.declare import InNotebook
from qrun.declare.frozen import frozen
from qrun.errors import CallError, some
from qrun.io.feeds import check_feeds
from qrun.ir import Array, Model, Node, TensorType
from qrun.memory import Budget, default_limit
from qrun.running.profiling import Progress
from qrun.running.session import Session

SECONDS = 60.0
"""Time for the measured effects of nodes, all runs together."""
_SHARE = 0.7
"""Of that time, for the single nodes; the rest is for the lists of nodes to keep in float."""
_RUNS = 4
"""Sets of inputs with which corrections are measured."""


@frozen
class Accuracy(InNotebook):
    """Everything known about two models and their runs.

    costs:    the ranking, dearest first, without nodes that have no effect; empty if there is a `departure`.
    measured: how many of the `quantizing` quantized nodes had their effect at the outputs measured alone.
    unranked: nodes beside those that read stored codes directly, so that nothing of them is measured.
    partly:   nodes of which only the rounding of the result is known: tensors that they read have no counterpart in the
              reference, so that they cannot be computed from its tensors.
    suggestion: None without costs, with a departure, and where the reference is quantized too.
    corrections: what to correct first; measured with the first of the inputs, see _RUNS.
    real:     SQNR of the outputs (of the mean ratio of the `averaged` ones: all that are floats, if any is), over the
              runs in which all nodes together were measured; as measured there if an output is of codes that nothing
              tells the scale of.
    min_sqnr: dB that each output must reach, in place of the tolerance; None: the tolerance counts.
    judged:   is there anything to reach? A float model and one quantized from it differ, so unless the caller states a
              tolerance or dB, comparing them is a measurement.
    seconds:  the time limit of the ranking; inf: none.
    """

    reference: Model
    quantized: Model
    runs: int
    feeds: Values
    outputs: tuple[OutputAccuracy, ...]
    tensors: tuple[TensorAccuracy, ...]
    left: tuple[Left, ...]
    costs: tuple[Cost, ...]
    measured: int
    quantizing: int
    unranked: tuple[Node, ...]
    partly: tuple[Node, ...]
    suggestion: Suggestion | None
    departure: Departure | None
    corrections: tuple[Corrected, ...]
    real: float
    averaged: int
    tolerance: Tolerance
    min_sqnr: float | None
    judged: bool = True
    seconds: float = SECONDS

    def __repr__(self) -> str:
        return f"<qrun.Accuracy {self.quantized.label} against {self.reference.label}: outputs {self.real:.1f} dB, {len(self.costs)} nodes ranked>"

    @property
    def hurried(self) -> bool:
        """Was the time too short to measure every node alone, and every list with all inputs?"""
        if self.departure is not None:
            return False
        return self.measured < self.quantizing or (self.suggestion is not None and self.suggestion.hurried)

    @property
    def equal(self) -> bool:
        """Are all outputs within the tolerance?"""
        return all(output.equal for output in self.outputs)

    def reaches(self, output: OutputAccuracy) -> bool:
        """Is an output good enough? One without numbers must be equal."""
        if self.min_sqnr is None or not output.noise.count:
            return output.equal
        return min(noise.sqnr for noise in (output.noise, *(part.noise for part in output.parts))) >= self.min_sqnr

    @property
    def passed(self) -> bool:
        """Are all outputs good enough? All are where nothing must be reached."""
        return not self.judged or all(map(self.reaches, self.outputs))

    @property
    def mismatches(self) -> tuple[Cost, ...]:
        """Nodes where something is to be corrected."""
        nodes = {one.node.index for one in self.corrections}
        return tuple(cost for cost in self.costs if cost.node.index in nodes)

    @property
    def wrong(self) -> bool:
        """Is there so much to correct that it comes before any list of nodes to keep in float?"""
        gains = [one.after - one.before for one in self.corrections if one.after is not None and one.before is not None]
        return len(gains) < len(self.corrections) or sum(gains) >= MANY


def accuracy(
    reference: Model,
    quantized: Model,
    feeds: Sequence[Values],
    *,
    tolerance: Tolerance | None = None,
    min_sqnr: float | None = None,
    max_memory: int | None = None,
    max_time: float | None = None,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> Accuracy:
    """Compare two models with the same inputs, over all feeds.

    feeds:      at least one set of arrays by input name; one at a time is in memory with all its tensors.
    tolerance:  None: the usual one, which a model quantized from a float one need not keep.
    min_sqnr:   dB, see `Accuracy`.
    max_memory: bytes that a run may hold; None: 80 % of what is free.
    max_time:   seconds that a run of the first inputs may take; None: any time.
    seconds:    for measuring what nodes do to the outputs, all feeds together; inf for no limit. See `Effects` for what
                is left out where that does not suffice.
    Raises CallError if the inputs differ or no feed is given, RunError if a run fails, UnsupportedError.
    """
    _check(reference, quantized, feeds)
    session, other = (
        Session(model, fuse=False, max_memory=max_memory, max_time=max_time) for model in (quantized, reference)
    )
    for ready in (other, session):
        ready.run(feeds[0])
    a, b = (Reals(replace(model, defaults=_fed(model, feeds))) for model in (reference, quantized))
    found = match(a, b)
    ranking = Ranking(a, b, groups(a, b, found), len(feeds), seconds * _SHARE, progress)
    rows = Rows(a, b, found, session, tolerance or Tolerance(), ranking.mixed.mixed)
    for one in feeds:
        a.budget = b.budget = Budget(default_limit if max_memory is None else max_memory)
        clean = ranking.mixed.clean(check_feeds(reference, one))
        rows.add(one, clean)
        ranking.add(clean)
    costs = ranking.costs()
    lists = [] if a.quantizes else costs
    suggestion = suggest(ranking.mixed, ranking.watches, lists, feeds, seconds * (1 - _SHARE), min_sqnr)
    real = suggestion.ratio if any(rows.coded) else rows.reached[suggestion.runs - 1]
    a.budget = b.budget = Budget(default_limit if max_memory is None else max_memory)
    gone = departure(rows, ranking, feeds[0], real, suggestion.ratio)
    better: tuple[Corrected, ...] = ()
    if lists and not gone:
        used = list(feeds[:_RUNS])

        def measure(model: Model) -> float:
            trial = Rows(
                a,
                Reals(replace(model, defaults=_fed(model, feeds))),
                found,
                Session(model, fuse=False),
                rows.tolerance,
                ranking.mixed.mixed,
            )
            for one in used:
                trial.add(one, ranking.mixed.clean(check_feeds(reference, one)))
            return trial.reached[-1]

        better = corrections(costs, quantized, rows.reached[len(used) - 1], measure, seconds * (1 - _SHARE))
    locals_ = {watch.group.value: watch.local() for watch in ranking.watches}
    return Accuracy(
        reference,
        quantized,
        len(feeds),
        feeds[0],
        tuple(rows.outputs()),
        tuple(rows.tensors(locals_)),
        found.left,
        () if gone else tuple(costs),
        ranking.effects.measured,
        len(ranking.watches),
        b.opaque,
        tuple(w.group.node for w in ranking.watches if not w.group.whole),
        suggestion if any(cost.measured for cost in lists) and not gone else None,
        gone,
        better,
        decibels(real),
        len(averaged(rows.judged_sums)),
        tolerance or Tolerance(),
        min_sqnr,
        tolerance is not None or min_sqnr is not None or not _made_of(a, b) or any(rows.coded),
        seconds,
    )


def _check(reference: Model, quantized: Model, feeds: Sequence[Values]) -> None:
    if not feeds:
        calls = ["qrun.compare(reference, quantized, {name: array})"]
        raise CallError("QR001", "no inputs were given", fixes=["-i FILE, or --random"], calls=calls)
    mine, theirs = ({v.name: v for v in m.inputs} for m in (reference, quantized))
    where = [reference.label, quantized.label]
    if mine.keys() != theirs.keys():
        names = [some([*inputs], 12) or "none" for inputs in (mine, theirs)]
        fix = "compare a model with one that was made from it, or rename the inputs"
        raise mismatch("the two models have inputs of different names", where, *names, fix)
    for name, one in mine.items():
        other = theirs[name]
        if one.dtype != other.dtype or not _fit(one.shape, other.shape):
            fix = "compare models with inputs of one type and shape"
            raise mismatch(f"input {name!r} differs between the two models", where, str(one), str(other), fix)
    if len(reference.outputs) != len(quantized.outputs):
        ends = [", ".join(v.name for v in model.outputs) for model in (reference, quantized)]
        fix = "compare a model with one that was made from it"
        raise mismatch("the two models have different numbers of outputs", where, *ends, fix, name="output-mismatch")


def _made_of(a: Reals, b: Reals) -> bool:
    """Is only the second model quantized?"""
    return not (a.quantizes or a.opaque) and bool(b.quantizes or b.opaque)


def _fed(model: Model, feeds: Sequence[Values]) -> tuple[TensorType, ...]:
    """The inputs with a default that are fed; the others are constants."""
    return tuple(value for value in model.defaults if any(value.name in one for one in feeds))


def _fit(one: tuple[int | str | None, ...] | None, other: tuple[int | str | None, ...] | None) -> bool:
    if one is None or other is None:
        return True
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(x == y or not isinstance(x, int) or not isinstance(y, int) for x, y in pairs)


_APART = 6.0
"""If the two SQNRs differ by more decibels, the measurement of the nodes says nothing about the model."""
_EXACT = 1e-9
"""Noise to signal ratio (90 dB) below which both are exact enough."""
_PART = 0.5
"""A departure starts at the first tensor of whose noise the measurement misses more than this share."""


@frozen
class Departure:
    """The model's outputs are more, or less, accurate than all its quantized nodes, measured together, make them.

    real, measured: the SQNR of both, dB.
    node:           the first node whose result is not what its measurement computes; None if no tensor shows that.
    floats:         the reference's nodes that should do the same.
    hint:           in words, what the node reads with another scale or zero point than it was made with,
                    or what to look at.
    """

    real: float
    measured: float
    node: Node | None
    floats: tuple[Node, ...]
    hint: str


def departure(rows: Rows, ranking: Ranking, feeds: Values, real: float, measured: float) -> Departure | None:
    """The departure, if the noise to signal ratios of the model (`real`) and of its nodes measured together
    (`measured`) differ by more than _APART dB; else None. feeds: inputs of a run in which to look for the node."""
    ends = [decibels(max(ratio, _EXACT)) for ratio in (real, measured)]
    if not ranking.watches or not abs(ends[0] - ends[1]) > _APART:
        return None
    group = _first(rows, ranking, feeds)
    if group is None:
        return Departure(decibels(real), decibels(measured), None, (), "")
    return Departure(decibels(real), decibels(measured), group.node, group.floats, _hint(rows.b, group))


def _first(rows: Rows, ranking: Ranking, feeds: Values) -> RoundingGroup | None:
    """The first group whose measurement, made from the model's own values, differs much from the model's own result."""
    clean = ranking.mixed.clean(check_feeds(rows.a.model, feeds))
    groups = {watch.group.value: watch.group for watch in ranking.watches}
    own: dict[str, Array] = {}
    for pair, got, want in rows.pairs(rows.run(feeds), clean):
        group = groups.get(pair.value)
        if group is not None:
            missed, noise = ErrorSums(), ErrorSums()
            missed.add(ranking.mixed.made(group, ChainMap(own, clean)), got)
            noise.add(got, want)
            if missed.odd or missed.noise > _PART * noise.noise:
                return group
        own[rows.a.settled(pair.other)] = got.reshape(want.shape)
    return None


def _hint(b: Reals, group: RoundingGroup) -> str:
    """In words: codes that the group reads with another scale or zero point than they were made with; or a guess."""
    for place in group.region.operators:
        node = b.nodes[place]
        source = b.sources.get(node.inputs[0]) if is_dequantize(node) else None
        if source is None or not source.path:
            continue
        pairs = zip(("scale", "zero point"), node.inputs[1:], b.nodes[source.path[-1]].inputs[1:], strict=False)
        for what, read, written in pairs:
            one, other = (_number(b.constant(name)) for name in (read, written))
            if one is not None and other is not None and one != other:
                return f"it reads {node.inputs[0]} with {what} {one:.4g}, which was made with {other:.4g}"
    return (
        "look at its scales and zero points" if group.whole else "what it reads has no counterpart in the first model"
    )


def _number(array: Array | None) -> float | None:
    return float(np.asarray(array, np.float64).reshape(-1)[0]) if array is not None and array.size == 1 else None
