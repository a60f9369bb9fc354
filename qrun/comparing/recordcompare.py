"""A run beside a record, or two records: the first tensor that differs, and what the recorded facts say about by how much.

Hashes tell which tensors differ. How much they differ is known only from below, by facts that hold whatever the other
elements are: the elements of the sample; half the L1 distance of two histograms, which each changed element changes by at
most 2; and order statistics: if no element moved by more than d, no minimum, maximum or quantile did (for histograms this
is the infinity-Wasserstein distance).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite, prod
from pathlib import Path
from typing import Literal

import numpy as np

from qrun.comparing.record import Tensors, input_facts, model_facts, walk
from qrun.comparing.recordentry import NEARLY, TIE, Entry, Histogram, Number, places
from qrun.comparing.recordhost import host
from qrun.comparing.recordproof import RECORD_EXACT, proved
from qrun.comparing.recordread import Record, read_record
from qrun.comparing.settings import Setting, differing, text
from qrun.differences import Tolerance
from qrun.errors import CallError
from qrun.ir import Array, Model

Verdict = Literal["equal", "close", "differs", "form"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """An element of the sample that differs."""

    index: tuple[int, ...]
    recorded: Number
    now: Number


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that both have.

    verdict:   ``equal``: the same hash. ``close``: another hash, but no recorded fact is outside the tolerance.
               ``differs``: some is. ``form``: another type or shape.
    elements:  how many elements differ at least; step: by how much some element does at least: steps of integers, else
               absolute (inf: a NaN or an infinity is on one side only).
    sampled:   elements of the sample that differ.
    inputs:    the inputs of the node that makes it, and whether they are equal; None: not known.
    reading:   what the facts say about the reason, in a sentence.
    """

    recorded: Entry
    now: Entry
    verdict: Verdict
    elements: int = 0
    step: float = 0.0
    sampled: tuple[Sampled, ...] = ()
    inputs: tuple[tuple[str, bool | None], ...] = ()
    reading: str = ""

    @property
    def inputs_equal(self) -> bool | None:
        """Are all inputs equal? None if that is not known of some, and none differs."""
        states = [equal for _, equal in self.inputs]
        return False if False in states else None if None in states else True


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """All tensors in graph order, and the names of those that only the record or only the run has.

    recorded, now: labels of what made them. settings: in what versions, machines and threads differ.
    """

    folder: Path
    recorded: str
    now: str
    settings: tuple[Setting, ...]
    tolerance: Tolerance
    tensors: tuple[TensorChange, ...]
    only_recorded: tuple[str, ...] = ()
    only_now: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """No tensor differs by more than the tolerance as far as the record can tell; integers are equal bit for bit."""
        return not any(t.verdict in ("differs", "form") for t in self.tensors)

    @property
    def first(self) -> TensorChange | None:
        """The first tensor that differs; if none does by more than the tolerance, the first with another hash."""
        changed = [t for t in self.tensors if t.verdict != "equal"]
        return next((t for t in changed if t.verdict != "close"), changed[0] if changed else None)


def compare_record(
    tensors: Tensors,
    model: Model,
    feeds: Mapping[str, Array],
    folder: Path,
    tolerance: Tolerance,
    *,
    label: str = "",
    threads: int | None = None,
) -> RecordComparison:
    """Compare a run with the record in `folder`.

    tensors, feeds, label, threads: of the run, as `qrun.comparing.record.record` takes them.
    Raises CallError if `folder` is no record, is damaged, or was made with another model or other inputs; what `tensors`
    raises.
    """
    record = read_record(folder)
    _same_model(record, model)
    _same_inputs(record, feeds)
    now, proofs = _now(tensors, model, feeds, record)
    if now.keys().isdisjoint(record.entries):
        raise CallError("QR005", "bad-option", "the record and this run have no tensor in common", where=[str(folder)],
                        facts=[("recorded", ", ".join(list(record.entries)[:3]) or "none"),
                               ("got", ", ".join(list(now)[:3]) or "none")], fixes=["record it again"])  # fmt: skip
    told = {"runtime": label, **{key: text(value) for key, value in host(threads).items()}}
    settings = differing({"runtime": record.label, **record.environment}, told)
    changes = tuple(_changes(record, now, proofs, model, tolerance))
    only_recorded, only_now = (
        tuple(n for n in x if n not in y) for x, y in ((record.entries, now), (now, record.entries))
    )
    return RecordComparison(folder, record.label, label, settings, tolerance, changes, only_recorded, only_now)


def _now(
    tensors: Tensors, model: Model, feeds: Mapping[str, Array], record: Record
) -> tuple[dict[str, Entry], dict[str, str]]:
    """The entries of a run; and for tensors that differ though their inputs do not, what is proved about the reason."""
    now: dict[str, Entry] = {}
    proofs: dict[str, str] = {}
    same = {*feeds, *model.constants, ""}
    for made in walk(tensors, model, feeds):
        known, bare = record.entries.get(made.name), Entry.bare(made.name, made.array, made.node)
        if known is not None and (known.sha256, known.type, known.shape) == (bare.sha256, bare.type, bare.shape):
            now[made.name] = known
            same.add(made.name)
            continue
        now[made.name] = made.entry()
        if known is not None and made.values is not None and same.issuperset(made.node.inputs):
            proofs[made.name] = proved(made, model, known.sha256)
    return now, proofs


def _changes(
    record: Record, now: Mapping[str, Entry], proofs: Mapping[str, str], model: Model, tolerance: Tolerance
) -> Iterator[TensorChange]:
    """What became of each tensor that both have, in graph order."""
    equal = dict.fromkeys([*model.constants, *(v.name for v in (*model.inputs, *model.defaults))], True)
    for name, node in model.producers.items():
        if name in now and name in record.entries:
            inputs = tuple((read, equal.get(read)) for read in dict.fromkeys(node.inputs) if read)
            change = judged(record.entries[name], now[name], tolerance, inputs)
            equal[name] = change.verdict == "equal"
            proof = proofs.get(name, "")
            told = (proof, change.reading) if proof in ("", RECORD_EXACT) else (proof,)
            yield replace(change, reading="; ".join(filter(None, told)))


def judged(a: Entry, b: Entry, tolerance: Tolerance, inputs: tuple[tuple[str, bool | None], ...] = ()) -> TensorChange:
    """How a tensor differs from the recorded `a`."""
    if (a.type, a.shape) != (b.type, b.shape):
        return TensorChange(a, b, "form", inputs=inputs, reading="another type or shape")
    if a.sha256 == b.sha256:
        return TensorChange(a, b, "equal", inputs=inputs)
    sampled = tuple(_sampled(a, b))
    pairs = [*((s.recorded, s.now) for s in sampled), *_ordered(a, b)]
    steps = [_distance(x, y) for x, y in pairs]
    odd = (a.nan, a.inf) != (b.nan, b.inf)
    whole = a.type.startswith(("int", "uint"))
    step = max([float("inf") if odd else 1.0 if whole else 0.0, *steps])
    elements = max(1, len(sampled), abs(a.nan - b.nan), _moved(a.histogram, b.histogram))
    outside = _outside(pairs, steps, step, whole, tolerance)
    change = TensorChange(a, b, "differs" if outside or odd else "close", elements, step, sampled, inputs)
    return replace(change, reading=_reading(change, whole))


def _outside(
    pairs: list[tuple[Number, Number]], steps: list[float], step: float, whole: bool, tolerance: Tolerance
) -> bool:
    """Does a fact show an element outside the tolerance? Where none is allowed, or nothing is known, another hash does."""
    if whole:
        return step > tolerance.lsb
    if (not tolerance.atol and not tolerance.rtol) or (not pairs and not steps):
        return True
    return any(s > tolerance.atol + tolerance.rtol * abs(x) for (x, _), s in zip(pairs, steps, strict=True))


def _sampled(a: Entry, b: Entry) -> Iterator[Sampled]:
    size = prod(a.shape)
    if len(a.sample) != len(b.sample):
        return
    shape = a.shape if len(a.sample) == len(places(size)) and not a.type.startswith("complex") else (*a.shape, 2)
    for place, x, y in zip(places(prod(shape)), a.sample, b.sample, strict=False):
        if x != y and not (x != x and y != y):
            yield Sampled(tuple(int(i) for i in np.unravel_index(place, shape)), x, y)


def _ordered(a: Entry, b: Entry) -> list[tuple[Number, Number]]:
    """Order statistics of both: the same ranks of equally many elements."""
    if (a.nan, a.inf) != (b.nan, b.inf):
        return []
    pairs = [(a.low, b.low), (a.high, b.high)]
    if len(a.quantiles) == len(b.quantiles):
        pairs += zip(a.quantiles, b.quantiles, strict=True)
    if a.histogram is not None and b.histogram is not None:
        pairs += _ranks(a.histogram, b.histogram)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _ranks(a: Histogram, b: Histogram) -> list[tuple[Number, Number]]:
    """The codes at each rank where one of the two sorted tensors goes on to another code."""
    one, other = (np.cumsum(h.counts, dtype=np.int64) for h in (a, b))
    ranks = np.union1d(one, other)[:-1]
    return [
        (a.first + int(x), b.first + int(y))
        for x, y in zip(np.searchsorted(one, ranks, "right"), np.searchsorted(other, ranks, "right"), strict=True)
    ]


def _moved(a: Histogram | None, b: Histogram | None) -> int:
    """Half the L1 distance of two histograms of equally many elements: so many elements changed at least."""
    if a is None or b is None:
        return 0
    counts: dict[int, int] = {}
    for histogram, sign in ((a, 1), (b, -1)):
        for at, count in enumerate(histogram.counts, histogram.first):
            counts[at] = counts.get(at, 0) + sign * count
    return sum(map(abs, counts.values())) // 2


def _distance(x: Number, y: Number) -> float:
    if x == y or (x != x and y != y):
        return 0.0
    gap = abs(x - y)
    return float(gap) if isfinite(gap) else float("inf")


def _reading(change: TensorChange, whole: bool) -> str:
    if change.inputs_equal is False:
        first = next(name for name, equal in change.inputs if equal is False)
        return f"an input has other bits already: {first}"
    if not whole or change.recorded.ties is None:
        return ""
    ties = change.recorded.ties
    told = (f"{ties.tie} elements were within {TIE:g} LSB of a tie, {ties.near} within {NEARLY:g}"
            + (f", the nearest {ties.smallest:g}" if ties.smallest is not None else ""))  # fmt: skip
    if change.step > 1:
        return f"no matter of ties: an element differs by {change.step:.0f} steps or more; {told}"
    if change.elements > ties.near:
        return f"more than rounding of near-ties: {change.elements} or more elements differ; {told}"
    return told


def _same_model(record: Record, model: Model) -> None:
    facts = model_facts(model)
    pairs = [("the model", record.model, facts["sha256"])]
    external = facts.get("external", {})
    pairs += [(n, record.external.get(n, "none"), external.get(n, "none")) for n in {**record.external, **external}]
    for what, recorded, now in pairs:
        if recorded != now:
            raise CallError("QR005", "bad-option", f"the record in {str(record.folder)!r} was made with another model",
                            where=[model.label, what], facts=[("recorded", f"sha256 {recorded}"), ("got", f"sha256 {now}")],
                            fixes=["compare with the model that was recorded, or --record it again"])  # fmt: skip


def _same_inputs(record: Record, feeds: Mapping[str, Array]) -> None:
    now = {fact["name"]: (fact["form"], fact["sha256"]) for fact in input_facts(feeds)}
    for name in {**record.inputs, **now}:
        recorded, got = (side.get(name, ("none", "none")) for side in (record.inputs, now))
        if recorded != got:
            raise CallError("QR003", "input-mismatch", f"input {name!r} is not the one that was recorded",
                            where=[str(record.folder), f"input {name}"],
                            facts=[("recorded", f"{recorded[0]}, sha256 {recorded[1]}"), ("got", f"{got[0]}, sha256 {got[1]}")],
                            fixes=["give the inputs that were recorded, or --record again"])  # fmt: skip
