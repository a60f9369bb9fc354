"""Compares a quantized model with its float model: how accurate each tensor is, which nodes cost the most accuracy,
and where the model's results depart from the simulation of its quantized nodes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qrun.comparing.differences import (
    Columns,
    ErrorSums,
    Noise,
    PartAccuracy,
    PartSums,
    Tolerance,
    class_axis,
    decibels,
    difference,
    is_integral,
)
from qrun.comparing.matching.graph import Reals, Source
from qrun.comparing.matching.match import Left, Match, Matching, match
from qrun.comparing.matching.operators import is_dequantize
from qrun.comparing.meanings import Meaning, TensorScales, meaning
from qrun.comparing.ranking.advice import MANY, Corrected, Suggestion, corrections, suggest
from qrun.comparing.ranking.groups import RoundingGroup, groups
from qrun.comparing.ranking.local import Local
from qrun.comparing.ranking.rank import Cost, Ranking, mean_ratio, outputs_to_average
from qrun.comparing.sides import Values
from qrun.declare import InNotebook
from qrun.declare.frozen import frozen, keys, through
from qrun.errors import CallError, some
from qrun.io.feeds import check_feeds
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.compound import form_difference, numbers
from qrun.ir.types import shape_text
from qrun.memory import Budget, default_limit
from qrun.running.profiling import Progress
from qrun.running.session import Session


@frozen
class OutputAccuracy:
    """The accuracy of one output of the graph.

    agreed, decided: samples that get the same class in both models, and all samples; None if it has no class scores.
    equal:           is it within the tolerance in all runs?
    counted:         does the tolerance count steps, because the second model's output is integer or dequantized?
    parts:           the accuracy of each part, if the output mixes ranges of values.
    codes:           does one model give quantized values of unknown scale, and the other real numbers? Then the output
                     has no noise and is not equal.
    """

    KEYS = {
        **keys("name other"),
        **through("noise", Noise.KEYS),
        **keys("argmax_agreed=agreed argmax_total=decided codes equal parts"),
    }

    name: str
    other: str
    noise: Noise
    agreed: int | None
    decided: int | None
    equal: bool
    counted: bool
    codes: bool
    parts: tuple[PartAccuracy, ...] = ()


@frozen
class TensorAccuracy:
    """The accuracy of one tensor of the quantized model.

    node:      the node of the quantized model that makes it; None for a graph input.
    reference: the matching tensor of the float model; how: how they were matched, see `Match`.
    cumulated: the noise of the quantized model's run against the float model's; None if no run exposes the tensor.
    local:     the noise of its own quantization alone; None if it is not quantized.
    codes:     is it a tensor of quantized values of unknown scale? Then it has no cumulated noise either.
    """

    KEYS = keys("tensor node=node.index reference matched=how codes cumulated local=local.noise")

    tensor: str
    node: Node | None
    reference: str
    how: str
    cumulated: Noise | None
    local: Local | None
    codes: bool = False


class Rows:
    """Accumulates the errors of each pair of tensors and of outputs, run by run.

    mixed:   the parts of outputs that mix ranges, by the name of the output in the first model.
    reached: after each run, the mean noise to signal ratio of the outputs or their parts.
    """

    def __init__(
        self,
        a: Reals,
        b: Reals,
        found: Matching,
        session: Session,
        tolerance: Tolerance,
        mixed: Mapping[str, Sequence[Columns]],
    ) -> None:
        self.a, self.b, self.session, self.tolerance = a, b, session, tolerance
        self.matches = found.matches
        self.sums = {m.value: ErrorSums() for m in found.matches}
        self.unknown: set[str] = set()
        self.shown = {m.value: shown for m in found.matches if (shown := _find_quantizer(b, m.value))}
        mine, theirs = [v.name for v in a.model.outputs], [v.name for v in b.model.outputs]
        self.ends = [(n, n) for n in mine] if set(mine) == set(theirs) else list(zip(mine, theirs, strict=True))
        self.end_sums = [ErrorSums() for _ in self.ends]
        self.mixed = mixed
        self.parts: list[list[PartSums]] = [[] for _ in self.ends]
        self.agreed = [[0, 0] for _ in self.ends]
        self.equal = [True] * len(self.ends)
        self.counted = [False] * len(self.ends)
        self.coded = [False] * len(self.ends)
        self.meanings = [(meaning(a.model, one), meaning(b.model, other)) for one, other in self.ends]
        self.reached: list[float] = []

    def run(self, feeds: Values) -> dict[str, Array]:
        """Run the quantized model and return the tensors that are compared, with the feeds."""
        scales = [name for _, told in self.meanings if told is not None for name in told.names]
        names = dict.fromkeys([*(name for name, _ in self.shown.values()), *(n for _, n in self.ends), *scales])
        there = {v.name for v in (*self.b.model.inputs, *self.b.model.defaults)} | set(self.b.model.constants)
        return {**feeds, **self.session.values(feeds, [n for n in names if n not in there])}

    def pairs(self, got: Values, clean: Values) -> Iterator[tuple[Match, Array, Array]]:
        """Yield each match that both runs expose, with the quantized model's value and the reference's."""
        for m in self.matches:
            want = clean[self.a.name_after_rounding(m.other)]
            if m.value not in self.shown or want.dtype.kind not in "fiub":
                continue
            name, path = self.shown[m.value]
            array = self.b.dequantize(got[name], path[0]) if path else got[name]
            if is_integral(array.dtype) and not is_integral(want.dtype):
                real = _real(array, meaning(self.b.model, name), {**self.b.model.constants, **got})
                if real is None:
                    self.shown.pop(m.value)
                    self.unknown.add(m.value)
                    continue
                array = real
            if array.size != want.size:
                self.shown.pop(m.value)
            else:
                yield m, array, want

    def add(self, feeds: Values, clean: Values) -> None:
        """Run the second model on an input set and add its errors; `clean`: the first model's tensors."""
        got = self.run(feeds)
        for m, array, want in self.pairs(got, clean):
            self.sums[m.value].add(array, want)
        first, second = ({**side.model.constants, **run} for side, run in ((self.a, clean), (self.b, got)))
        for at, (mine, theirs) in enumerate(self.ends):
            self._end(at, got[theirs], clean[mine], second, first, feeds)
        self.reached.append(mean_ratio(self.judged_sums))

    @property
    def judged_sums(self) -> list[ErrorSums]:
        """The error sums of each output, or of its parts if it has any."""
        pairs = zip(self.end_sums, self.parts, strict=True)
        return [sums for whole, parts in pairs for sums in ([part.sums for part in parts] or [whole])]

    def _end(self, at: int, got: Array, want: Array, theirs: Values, mine: Values, feeds: Values) -> None:
        """Add the errors of output number `at`."""
        form = form_difference(got, want)
        got, want = numbers(got), numbers(want)
        if form or got.shape != want.shape:
            ends = form[::-1] if form else (shape_text(want.shape), shape_text(got.shape))
            where = [self.a.model.label, self.b.model.label]
            message = f"output {self.ends[at][0]!r} has another shape in the second model"
            raise mismatch(message, where, *ends, name="output-mismatch")
        whole = is_integral(got.dtype)
        got, want, step = self._comparable(at, got, want, theirs, mine)
        self.counted[at] |= whole or step is not None
        if self.coded[at]:
            self.equal[at] = False
            return
        self.equal[at] &= difference(got, want, self.tolerance, step).equal
        if want.dtype.kind not in "fiub":
            return
        self.end_sums[at].add(got, want)
        if not self.parts[at]:
            self.parts[at] = [PartSums(part, self.ends[at][0]) for part in self.mixed.get(self.ends[at][0], ())]
        for one in self.parts[at]:
            one.add(got, want)
        samples = next((feed.shape[0] for feed in feeds.values() if feed.ndim), None)
        axis = class_axis(want.shape, samples) if want.dtype.kind == "f" and not self.parts[at] else None
        if axis is not None and want.size:
            same = np.argmax(got, axis) == np.argmax(want, axis)
            self.agreed[at][0] += int(np.count_nonzero(same))
            self.agreed[at][1] += int(np.size(same))

    def _comparable(
        self, at: int, got: Array, want: Array, theirs: Values, mine: Values
    ) -> tuple[Array, Array, Array | None]:
        """Make two outputs comparable: dequantize integers if the other array holds real numbers or has another scale
        or zero point. Returns both arrays, and the quantization step of `got`, if known."""
        spoken, told = self.meanings[at]
        if is_integral(got.dtype) and is_integral(want.dtype) and not _scales_differ(told, theirs, spoken, mine):
            return got, want, None
        first, second = _real(got, told, theirs), _real(want, spoken, mine)
        if first is None or second is None:
            self.coded[at] = True
            return got, want, None
        kind = got.dtype if not is_integral(got.dtype) else want.dtype if not is_integral(want.dtype) else np.float32
        own = told.step(got, theirs) if told is not None and is_integral(got.dtype) else None
        step = TensorScales(self.b.model, theirs).step(self.ends[at][1], got) if own is None else own
        return first.astype(kind), second.astype(kind), step

    def outputs(self) -> Iterator[OutputAccuracy]:
        """The accuracy of each output."""
        for at, (mine, theirs) in enumerate(self.ends):
            agreed, decided = self.agreed[at]
            told = (
                self.equal[at],
                self.counted[at],
                self.coded[at],
                tuple(one.result() for one in self.parts[at]),
            )
            yield OutputAccuracy(
                mine, theirs, self.end_sums[at].result(), agreed if decided else None, decided or None, *told
            )

    def tensors(self, locals_: Mapping[str, Local]) -> Iterator[TensorAccuracy]:
        """The accuracy of each matched tensor."""
        for m in self.matches:
            index = self.b.made.get(m.value)
            node = None if index is None else self.b.nodes[index]
            noise = self.sums[m.value].result() if m.value in self.shown else None
            telling = _find_quantizer(self.b, m.value)
            name = telling[0] if telling is not None else m.value
            yield TensorAccuracy(
                name, node, self._reference(m.other), m.how, noise, locals_.get(m.value), m.value in self.unknown
            )

    def _reference(self, value: str) -> str:
        """The name of the reference's tensor that holds a value: its own, or that of its quantized values."""
        telling = _find_quantizer(self.a, value)
        return value if telling is None or value in _stored_names(self.a) else telling[0]


def mismatch(message: str, where: Sequence[str], first: str, second: str, *fixes: str, name: str = "") -> CallError:
    """The error for two models that cannot be compared. where: their labels; first, second: what each has."""
    facts = [("first", first), ("second", second)]
    return CallError("QR003", message, where=where, facts=facts, fixes=fixes, name=name)


def _real(array: Array, told: Meaning | None, values: Values) -> Array | None:
    """The real numbers of an array: floats unchanged, integers dequantized; None if the scale is unknown."""
    if not is_integral(array.dtype):
        return array
    return told.real(array, values) if told is not None else None


def _scales_differ(a: Meaning | None, a_values: Values, b: Meaning | None, b_values: Values) -> bool:
    """Are the scales and zero points of both sides known, and different?"""
    one, other = (m.parameters(v) if m is not None else None for m, v in ((a, a_values), (b, b_values)))
    if one is None or other is None:
        return False
    return any(not np.array_equal(x.reshape(-1), y.reshape(-1)) for x, y in zip(one, other, strict=True))


def _stored_names(reals: Reals) -> set[str]:
    """Names of the inputs and node outputs of the model as stored, without tensors that expanding its nodes adds."""
    return {n for node in reals.model.nodes for n in node.outputs} | {v.name for v in reals.model.inputs}


def _find_quantizer(reals: Reals, value: str) -> tuple[str, tuple[int, ...]] | None:
    """The tensor of a run that holds a value, and the quantizer of its integers, () for floats; None without one."""
    own, path = _stored_names(reals), reals.rounds.get(value, ())
    codes = reals.codes.get(Source(value, path))
    if path and codes in own:
        return codes, path[-1:]
    name = reals.name_after_rounding(value)
    return (name, ()) if name in own else None


SECONDS = 60.0
"""Seconds for measuring the effects of nodes, all runs together."""
_SHARE = 0.7
"""The share of that time for single nodes; the rest is for lists of nodes to keep in float."""
_RUNS = 4
"""The most sets of inputs on which corrections are measured."""


@frozen
class Accuracy(InNotebook):
    """The result of comparing a quantized model with its float model.

    costs:    the ranking, costliest node first, without nodes that have no effect; empty if there is a `departure`.
    measured: how many of the `quantizing` quantized nodes had their effect on the outputs measured alone.
    unranked: quantized nodes that read stored codes directly, so that their effect cannot be measured.
    partly:   nodes for which only the rounding of the result is measured: tensors that they read have no counterpart in
              the reference, so they cannot be computed from its tensors.
    suggestion: the nodes to keep in float; None without measured costs, with a departure, or if the reference is
              quantized too.
    corrections: what to correct first, measured on the first _RUNS inputs.
    sqnr:     SQNR in dB of the mean noise ratio of the outputs, over the runs in which all nodes were measured
              together; the simulated value if an output has quantized values of unknown scale.
    averaged: the number of outputs in that mean: the float outputs, or all if none is float.
    min_sqnr: dB that each output must reach, in place of the tolerance; None: the tolerance counts.
    judged:   can the comparison fail? A quantized model differs from its float model, so without a tolerance or dB
              from the caller, comparing them is only a measurement.
    seconds:  the time limit of the ranking; inf: none.
    exchanged: is the first model quantized and the second one not, so that their order is probably a mistake?
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
    sqnr: float
    averaged: int
    tolerance: Tolerance
    min_sqnr: float | None
    judged: bool = True
    seconds: float = SECONDS
    exchanged: bool = False

    def __repr__(self) -> str:
        return f"<qrun.Accuracy {self.quantized.label} against {self.reference.label}: outputs {self.sqnr:.1f} dB, {len(self.costs)} nodes ranked>"

    @property
    def budget_exceeded(self) -> bool:
        """Did the time run out before every node was measured alone and every list on all inputs?"""
        if self.departure is not None:
            return False
        return self.measured < self.quantizing or (self.suggestion is not None and self.suggestion.budget_exceeded)

    @property
    def equal(self) -> bool:
        """Are all outputs within the tolerance?"""
        return all(output.equal for output in self.outputs)

    def reaches(self, output: OutputAccuracy) -> bool:
        """Does an output reach `min_sqnr`? Without `min_sqnr` or numbers to compare, it must be equal."""
        if self.min_sqnr is None or not output.noise.count:
            return output.equal
        return min(noise.sqnr for noise in (output.noise, *(part.noise for part in output.parts))) >= self.min_sqnr

    @property
    def passed(self) -> bool:
        """Do all outputs reach what is required? True if nothing is required."""
        return not self.judged or all(map(self.reaches, self.outputs))

    @property
    def mismatches(self) -> tuple[Cost, ...]:
        """The ranked nodes that have a correction."""
        nodes = {one.node.index for one in self.corrections}
        return tuple(cost for cost in self.costs if cost.node.index in nodes)

    @property
    def wrong(self) -> bool:
        """Do the corrections come before any list of nodes to keep in float? True if a gain is unmeasured or large."""
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
    """Compare two models on the same inputs, over all feeds.

    feeds:      at least one set of arrays by input name; the tensors of one set at a time are in memory.
    tolerance:  None: the default, which a quantized model need not meet against its float model.
    min_sqnr:   dB, see `Accuracy`.
    max_memory: bytes that a run may hold; None: 80 % of the free memory.
    max_time:   seconds that a run in a Session may take; None: no limit.
    seconds:    time for measuring the nodes' effects on the outputs, all feeds together; inf for no limit. `Effects`
                says what is left out if the time does not suffice.
    Raises CallError if the inputs differ or no feed is given, RunError if a run fails, UnsupportedError.
    """
    _check(reference, quantized, feeds)
    session, other = (
        Session(model, fuse=False, max_memory=max_memory, max_time=max_time) for model in (quantized, reference)
    )
    for ready in (other, session):
        ready.run(feeds[0])
    a, b = (Reals(replace(model, defaults=_fed_inputs(model, feeds))) for model in (reference, quantized))
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
                Reals(replace(model, defaults=_fed_inputs(model, feeds))),
                found,
                Session(model, fuse=False),
                rows.tolerance,
                ranking.mixed.mixed,
            )
            for one in used:
                trial.add(one, ranking.mixed.clean(check_feeds(reference, one)))
            return trial.reached[-1]

        better = corrections(costs, quantized, rows.reached[len(used) - 1], measure, seconds * (1 - _SHARE))
    first, second = (bool(side.quantizes or side.opaque) for side in (a, b))
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
        len(outputs_to_average(rows.judged_sums)),
        tolerance or Tolerance(),
        min_sqnr,
        tolerance is not None or min_sqnr is not None or first or not second or any(rows.coded),
        seconds,
        first and not second,
    )


def _check(reference: Model, quantized: Model, feeds: Sequence[Values]) -> None:
    """Raise CallError unless the models have the same inputs and there are feeds."""
    if not feeds:
        calls = ["qrun.compare(reference, quantized, {name: array})"]
        raise CallError("QR001", "no inputs were given", fixes=["-i FILE, or --random"], calls=calls)
    mine, theirs = ({v.name: v for v in m.inputs} for m in (reference, quantized))
    where = [reference.label, quantized.label]
    if mine.keys() != theirs.keys():
        names = [some([*inputs], 12) or "none" for inputs in (mine, theirs)]
        fix = "compare two versions of one model, or rename the inputs"
        raise mismatch("the inputs of the two models have different names", where, *names, fix)
    for name, one in mine.items():
        other = theirs[name]
        if one.dtype != other.dtype or not _fit(one.shape, other.shape):
            fix = "compare models whose inputs have the same types and shapes"
            raise mismatch(f"input {name!r} differs between the two models", where, str(one), str(other), fix)
    if len(reference.outputs) != len(quantized.outputs):
        ends = [", ".join(v.name for v in model.outputs) for model in (reference, quantized)]
        fix = "compare two versions of one model"
        raise mismatch("the two models have different numbers of outputs", where, *ends, fix, name="output-mismatch")


def _fed_inputs(model: Model, feeds: Sequence[Values]) -> tuple[TensorType, ...]:
    """The inputs with a default that some feed overrides; the others stay constants."""
    return tuple(value for value in model.defaults if any(value.name in one for one in feeds))


def _fit(one: tuple[int | str | None, ...] | None, other: tuple[int | str | None, ...] | None) -> bool:
    """Whether two shapes may be equal."""
    if one is None or other is None:
        return True
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(x == y or not isinstance(x, int) or not isinstance(y, int) for x, y in pairs)


_APART = 6.0
"""If the two SQNRs differ by more decibels, the simulation of the nodes does not describe the model."""
_EXACT = 1e-9
"""Noise to signal ratio (90 dB) below which differences do not count."""
_PART = 0.5
"""A departure starts at the first tensor whose simulation has an error above this share of the tensor's noise."""


@frozen
class Departure:
    """The model's outputs are more or less accurate than the simulation of all its quantized nodes predicts.

    sqnr, measured: the SQNR of the model and of the simulation, in dB.
    node:           the first node whose result differs from its simulation; None if no tensor shows one.
    floats:         the reference's nodes that correspond to it.
    hint:           a sentence: which tensor the node reads with another scale or zero point than it was made with,
                    or what to look at.
    """

    sqnr: float
    measured: float
    node: Node | None
    floats: tuple[Node, ...]
    hint: str


def departure(rows: Rows, ranking: Ranking, feeds: Values, real: float, measured: float) -> Departure | None:
    """The departure, if the noise to signal ratios of the model (`real`) and of the simulation of all its nodes
    (`measured`) differ by more than _APART dB; else None. feeds: the inputs of the run to search for the node."""
    ends = [decibels(max(ratio, _EXACT)) for ratio in (real, measured)]
    if not ranking.watches or not abs(ends[0] - ends[1]) > _APART:
        return None
    group = _first(rows, ranking, feeds)
    if group is None:
        return Departure(decibels(real), decibels(measured), None, (), "")
    return Departure(decibels(real), decibels(measured), group.node, group.floats, _hint(rows.b, group))


def _first(rows: Rows, ranking: Ranking, feeds: Values) -> RoundingGroup | None:
    """The first group whose simulation on the model's own values differs from the model's result by more than _PART."""
    clean = ranking.mixed.clean(check_feeds(rows.a.model, feeds))
    groups = {watch.group.value: watch.group for watch in ranking.watches}
    own: dict[str, Array] = {}
    for pair, got, want in rows.pairs(rows.run(feeds), clean):
        group = groups.get(pair.value)
        if group is not None:
            missed, noise = ErrorSums(), ErrorSums()
            missed.add(ranking.mixed.compute(group, ChainMap(own, clean)), got)
            noise.add(got, want)
            if missed.outliers or missed.noise > _PART * noise.noise:
                return group
        own[rows.a.name_after_rounding(pair.other)] = got.reshape(want.shape)
    return None


def _hint(b: Reals, group: RoundingGroup) -> str:
    """A hint: the tensor that the group reads with another scale or zero point than it was made with, or a guess."""
    for index in group.region.operators:
        node = b.nodes[index]
        source = b.sources.get(node.inputs[0]) if is_dequantize(node) else None
        if source is None or not source.path:
            continue
        pairs = zip(("scale", "zero point"), node.inputs[1:], b.nodes[source.path[-1]].inputs[1:], strict=False)
        for what, read, written in pairs:
            one, other = (_number(b.constant(name)) for name in (read, written))
            if one is not None and other is not None and one != other:
                return f"it reads {node.inputs[0]} with {what} {one:.4g}, but the tensor was quantized with {other:.4g}"
    return "look at its scales and zero points" if group.whole else "its inputs have no counterpart in the first model"


def _number(array: Array | None) -> float | None:
    """The one number of an array; None if it has more."""
    return float(np.asarray(array, np.float64).reshape(-1)[0]) if array is not None and array.size == 1 else None
