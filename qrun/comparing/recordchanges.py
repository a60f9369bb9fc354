"""Compares a run with a record: finds the first tensor that differs, bounds the difference by the recorded facts, and
names a cause if recomputing with it reproduces the recorded hash.

Hashes show which tensors differ. The facts give lower bounds on the difference, whatever the unrecorded elements are:
the elements of the sample; half the L1 distance of two histograms, since one changed element changes it by at most 2;
order statistics, since if no element moved by more than d, no minimum, maximum or quantile did (for histograms this
is the infinity-Wasserstein distance); and for dequantized tensors their codes, since different codes are different
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import isfinite, prod
from pathlib import Path
from typing import Literal

import numpy as np

from qrun.comparing.causes import CAUSES, UNKNOWN, Suspect, reason
from qrun.comparing.differences import Tolerance, is_integral
from qrun.comparing.record import (
    NEARLY,
    TIE,
    Histogram,
    Made,
    Number,
    Record,
    RecordedInput,
    RecordEntry,
    Tensors,
    exact_values,
    host,
    places,
    read_record,
    recorded_inputs,
    recorded_model,
    walk,
)
from qrun.comparing.saved import Setting, differing_settings, unpaired_names
from qrun.comparing.sides import Unit, Values
from qrun.comparing.ties import tie_distance
from qrun.declare.frozen import frozen
from qrun.errors import CallError
from qrun.io.storable import digest
from qrun.ir import Model, Node
from qrun.ir.types import integer_range

Verdict = Literal["equal", "close", "unknown", "differs", "form"]
_UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half a unit in the last place, relative: the largest change by rounding a product to the type."""


@frozen
class Sampled:
    """A sampled element that differs."""

    index: tuple[int, ...]
    recorded: Number
    now: Number


@frozen
class TensorChange:
    """A tensor that is in the record and in the run.

    verdict:   ``equal``: the same hash. ``close``: another hash, but every element is in the sample and within the
               tolerance. ``unknown``: no recorded fact is outside the tolerance, but unrecorded elements may be.
               ``differs``: some fact is outside. ``form``: another type or shape.
    elements:  at least this many elements differ; step: the largest difference is at least this: steps of integers,
               else absolute (inf: a NaN or an infinity is on one side only).
    sampled:   elements of the sample that differ.
    inputs:    the inputs of the node that makes it, each with: is it equal? None: not known.
    reading:   what the facts say about the cause, for display.
    """

    recorded: RecordEntry
    now: RecordEntry
    verdict: Verdict
    elements: int = 0
    step: float = 0.0
    sampled: tuple[Sampled, ...] = ()
    inputs: tuple[tuple[str, bool | None], ...] = ()
    reading: str = ""

    @property
    def inputs_equal(self) -> bool | None:
        """Are all inputs equal? None if none is known to differ, but some are unknown."""
        states = [equal for _, equal in self.inputs]
        return False if False in states else None if None in states else True


@frozen
class Gap:
    """Lower bounds on the difference of a DequantizeLinear's result, from its codes: the number of elements that
    differ, and the largest difference of the real numbers before they are rounded."""

    elements: int
    step: float


def judge(
    a: RecordEntry,
    b: RecordEntry,
    tolerance: Tolerance,
    inputs: tuple[tuple[str, bool | None], ...] = (),
    gap: Gap | None = None,
) -> TensorChange:
    """Judge how tensor `b` differs from the recorded `a`. gap: bounds from codes, if a DequantizeLinear makes it."""
    if (a.type, a.shape) != (b.type, b.shape):
        return TensorChange(a, b, "form", inputs=inputs, reading="different type or shape")
    if a.sha256 == b.sha256:
        return TensorChange(a, b, "equal", inputs=inputs)
    sampled = tuple(_sample(a, b))
    pairs = [*((s.recorded, s.now) for s in sampled), *_order_statistics(a, b)]
    steps = [_distance(x, y) for x, y in pairs]
    odd = (a.nan, a.inf) != (b.nan, b.inf)
    whole = a.type.startswith(("int", "uint"))
    apart = _sure(gap, a, b)
    step = max([float("inf") if odd else 1.0 if whole else 0.0, apart, *steps])
    elements = max(
        1, len(sampled), abs(a.nan - b.nan), _count_moved(a.histogram, b.histogram), gap.elements if gap else 0
    )
    allowed = tolerance.atol + tolerance.rtol * _largest(a)
    outside = odd or _outside(pairs, steps, step, whole, tolerance) or apart > allowed
    numbers = prod(a.shape) * (2 if a.type.startswith("complex") else 1)
    verdict: Verdict = "differs" if outside else "close" if len(a.sample) == numbers else "unknown"
    change = TensorChange(a, b, verdict, elements, step, sampled, inputs)
    unknown = "no recorded fact is beyond the tolerance, but the other elements are not recorded"
    told = (unknown if verdict == "unknown" else "", _origin(change, whole))
    return replace(change, reading="; ".join(filter(None, told)))


def _sure(gap: Gap | None, a: RecordEntry, b: RecordEntry) -> float:
    """A lower bound on what remains of `gap.step` after both real numbers are rounded to the tensor's type."""
    if gap is None or a.type not in _UNITS or not isfinite(gap.step):
        return 0.0
    return max(0.0, gap.step - _UNITS[a.type] * (_largest(a) + _largest(b)))


def _largest(entry: RecordEntry) -> float:
    """The largest magnitude of a tensor in a record."""
    return max((abs(v) for v in (entry.low, entry.high) if v is not None), default=float("inf"))


def _outside(
    pairs: list[tuple[Number, Number]], steps: list[float], step: float, whole: bool, tolerance: Tolerance
) -> bool:
    """Does a recorded fact show an element outside the tolerance? If the tolerance is 0, or if no fact is known, the
    different hash alone counts as one."""
    if whole:
        return step > tolerance.lsb
    if (not tolerance.atol and not tolerance.rtol) or (not pairs and not steps):
        return True
    return any(s > tolerance.atol + tolerance.rtol * abs(x) for (x, _), s in zip(pairs, steps, strict=True))


def _sample(a: RecordEntry, b: RecordEntry) -> Iterator[Sampled]:
    """The sampled elements that differ."""
    size = prod(a.shape)
    if len(a.sample) != len(b.sample):
        return
    shape = a.shape if len(a.sample) == len(places(size)) and not a.type.startswith("complex") else (*a.shape, 2)
    for index, x, y in zip(places(prod(shape)), a.sample, b.sample, strict=False):
        if x != y and not (x != x and y != y):
            yield Sampled(tuple(int(i) for i in np.unravel_index(index, shape)), x, y)


def _order_statistics(a: RecordEntry, b: RecordEntry) -> list[tuple[Number, Number]]:
    """Pairs of order statistics of the same rank; none unless both have as many NaNs and infinities."""
    if (a.nan, a.inf) != (b.nan, b.inf):
        return []
    pairs = [(a.low, b.low), (a.high, b.high)]
    if len(a.quantiles) == len(b.quantiles):
        pairs += zip(a.quantiles, b.quantiles, strict=True)
    if a.histogram is not None and b.histogram is not None:
        pairs += _ranks(a.histogram, b.histogram)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _ranks(a: Histogram, b: Histogram) -> list[tuple[Number, Number]]:
    """Pairs of codes at each rank where the code changes in one of the two sorted tensors."""
    one, other = (np.cumsum(h.counts, dtype=np.int64) for h in (a, b))
    ranks = np.union1d(one, other)[:-1]
    return [
        (a.first + int(x), b.first + int(y))
        for x, y in zip(np.searchsorted(one, ranks, "right"), np.searchsorted(other, ranks, "right"), strict=True)
    ]


def _count_moved(a: Histogram | None, b: Histogram | None) -> int:
    """Half the L1 distance of two histograms of equally many elements: at least this many elements changed."""
    if a is None or b is None:
        return 0
    counts: dict[int, int] = {}
    for histogram, sign in ((a, 1), (b, -1)):
        for at, count in enumerate(histogram.counts, histogram.first):
            counts[at] = counts.get(at, 0) + sign * count
    return sum(map(abs, counts.values())) // 2


def _distance(x: Number, y: Number) -> float:
    """The distance of two numbers; 0 for two NaN."""
    if x == y or (x != x and y != y):
        return 0.0
    gap = abs(x - y)
    return float(gap) if isfinite(gap) else float("inf")


def _origin(change: TensorChange, whole: bool) -> str:
    """Describe what the facts say about the origin of the difference; "" if nothing."""
    if change.inputs_equal is False:
        first = next(name for name, equal in change.inputs if equal is False)
        return f"an input already has different bits: {first}"
    if not whole or change.recorded.ties is None:
        return ""
    ties = change.recorded.ties
    told = f"{ties.tie} elements were within {TIE:g} LSB of a tie, {ties.near} within {NEARLY:g}" + (
        f", the nearest {ties.smallest:g}" if ties.smallest is not None else ""
    )
    if change.step > 1:
        return f"not only ties: an element differs by {change.step:.0f} steps or more; {told}"
    if change.elements > ties.near:
        return f"more than rounding of near-ties: {change.elements} or more elements differ; {told}"
    return told


@frozen
class RecordComparison:
    """The comparison of a run with a record: common tensors in graph order, and names that only one of them has.

    recorded, now: labels of the runtimes that made them. settings: differences in versions, machine and threads.
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
        """Is every tensor known to be within the tolerance?"""
        return all(t.verdict in ("equal", "close") for t in self.tensors)

    @property
    def undecided(self) -> tuple[TensorChange, ...]:
        """The tensors for which the record does not show whether they are within the tolerance."""
        return tuple(t for t in self.tensors if t.verdict == "unknown")

    @property
    def first(self) -> TensorChange | None:
        """The first tensor that is known to differ by more than the tolerance;
        if there is none, the first with another hash."""
        changed = [t for t in self.tensors if t.verdict != "equal"]
        return next((t for t in changed if t.verdict in ("differs", "form")), changed[0] if changed else None)


def compare_record(
    tensors: Tensors, model: Model, feeds: Values, folder: Path, tolerance: Tolerance, *, label: str = ""
) -> RecordComparison:
    """Compare a run with the record in `folder`.

    tensors, feeds, label: the run, as in `qrun.comparing.record.record`.
    Raises CallError if `folder` is no record, is damaged, was made with a different model or inputs, or has no tensor
    in common with the run, and whatever `tensors` raises.
    """
    record = read_record(folder)
    _same_model(record, model)
    _same_inputs(record, feeds)
    now, wholes, proofs = _now(tensors, model, feeds, record)
    if now.keys().isdisjoint(record.entries):
        there, here = (", ".join(list(found)[:3]) or "none" for found in (record.entries, now))
        message = "the record and this run share no tensor"
        raise _other_run_error("QR005", message, [str(folder)], there, here, "record it again")
    settings = differing_settings(record.made_by, {"runtime": label, **host()})
    changes = tuple(_changes(record, now, wholes, proofs, model, tolerance))
    names = unpaired_names(record.entries, now)
    return RecordComparison(folder, record.head.label, label, settings, tolerance, changes, *names)


def _now(
    tensors: Tensors, model: Model, feeds: Values, record: Record
) -> tuple[dict[str, RecordEntry], dict[str, str], dict[str, str]]:
    """Three maps by tensor name: the entries of a run; the node's output that each is part of; and for tensors that
    differ although their inputs are equal, the proved cause."""
    now: dict[str, RecordEntry] = {}
    wholes: dict[str, str] = {}
    proofs: dict[str, str] = {}
    same = {*feeds, *model.constants, ""}
    for made in walk(tensors, model, feeds):
        wholes[made.name] = made.whole
        known, bare = record.entries.get(made.name), RecordEntry.bare(made.name, made.array, made.node)
        if known is not None and (known.sha256, known.type, known.shape) == (bare.sha256, bare.type, bare.shape):
            now[made.name] = known
            same.add(made.name)
            continue
        now[made.name] = made.entry()
        if known is not None and made.values is not None and same.issuperset(made.node.inputs):
            proofs[made.name] = name_cause(made, model, known.sha256)
    return now, wholes, proofs


def _changes(
    record: Record,
    now: Mapping[str, RecordEntry],
    wholes: Mapping[str, str],
    proofs: Mapping[str, str],
    model: Model,
    tolerance: Tolerance,
) -> Iterator[TensorChange]:
    """Yield the change of each tensor that both have, in graph order."""
    equal = dict.fromkeys([*model.constants, *(v.name for v in (*model.inputs, *model.defaults))], True)
    done: dict[str, TensorChange] = {}
    for name, whole in wholes.items():
        node = model.producers[whole]
        if name in record.entries:
            inputs = tuple((read, equal.get(read)) for read in dict.fromkeys(node.inputs) if read)
            gap = _codes_gap(node, model, done)
            change = done[name] = judge(record.entries[name], now[name], tolerance, inputs, gap)
            equal[whole] = change.verdict == "equal" and equal.get(whole, True)
            proof = proofs.get(name, "")
            told = (proof, change.reading) if proof in ("", RECORD_EXACT) else (proof,)
            yield replace(change, reading="; ".join(filter(None, told)))


def _codes_gap(node: Node, model: Model, done: Mapping[str, TensorChange]) -> Gap | None:
    """Lower bounds on the difference of a DequantizeLinear's results, from that of its codes and its smallest scale.

    None for other nodes, and if the codes are equal or the scale is not known.
    """
    codes = done.get(node.inputs[0]) if node.op_type == "DequantizeLinear" and node.inputs else None
    scale = model.constants.get(node.inputs[1]) if codes is not None else None
    if codes is None or codes.verdict in ("equal", "form") or scale is None or not scale.size:
        return None
    return Gap(codes.elements, codes.step * float(np.abs(scale.astype(np.float64)).min()))


def _same_model(record: Record, model: Model) -> None:
    """Raise CallError if the record is of another model."""
    then, now = record.head.model, recorded_model(model)
    pairs = [("the model", then.sha256, now.sha256)]
    files, others = then.external or {}, now.external or {}
    pairs += [(name, files.get(name, "none"), others.get(name, "none")) for name in {**files, **others}]
    for what, recorded, got in pairs:
        if recorded != got:
            message = f"the record in {str(record.folder)!r} was made with a different model"
            fix = "compare the recorded model, or --record again"
            raise _other_run_error("QR005", message, [model.label, what], f"sha256 {recorded}", f"sha256 {got}", fix)


def _same_inputs(record: Record, feeds: Values) -> None:
    """Raise CallError if the record is of other inputs."""
    then, now = ({i.name: i for i in side} for side in (record.head.inputs, recorded_inputs(feeds)))
    for name in {**then, **now}:
        recorded, got = (side.get(name, RecordedInput(name, "none", "none")) for side in (then, now))
        if recorded != got:
            message, where = f"input {name!r} differs from the recorded one", [str(record.folder), f"input {name}"]
            there, here = (f"{side.form}, sha256 {side.sha256}" for side in (recorded, got))
            fix = "use the recorded inputs, or --record again"
            raise _other_run_error("QR003", message, where, there, here, fix)


def _other_run_error(code: str, message: str, where: Sequence[str], recorded: str, got: str, fix: str) -> CallError:
    """The error for a record that was not made with this model, these inputs or these tensors."""
    return CallError(code, message, where=where, facts=[("recorded", recorded), ("got", got)], fixes=[fix])


RECORD_EXACT = "the record is exact"
SUBSETS = 10
"""The largest number of near-ties of which all subsets are tried."""
HASHED = 1 << 29
"""The most bytes to hash while trying subsets."""


def name_cause(made: Made, model: Model, sha256: str) -> str:
    """Name the cause, or rounding of near-ties, that reproduces the recorded hash from the node's inputs; "" if none.

    made: a tensor whose hash differs although its node read the same values. If the record has the exact result, the
    text explains this run's tensor instead. Only for integer tensors.
    """
    if made.values is None or not is_integral(made.array.dtype):
        return ""
    values = {name: v for name, v in zip(made.node.inputs, made.values, strict=True) if v is not None}
    suspect = Suspect(model, Unit(made.node, (made.node,)), made.name, values, made.array, made.array)
    exact = suspect.evaluate()
    if exact is not None:
        suspect = replace(suspect, mine=exact)
        if digest(exact) == sha256:
            found = reason(suspect)
            named = f"now: {found.cause}: {found.text}" if found.cause != UNKNOWN else _ties(made, sha256)
            return f"{RECORD_EXACT}; {named}" if named else RECORD_EXACT
        with np.errstate(all="ignore"):
            for known in sorted(CAUSES.values(), key=lambda c: c.rank):
                for tried in known.function(replace(suspect, theirs=None)):
                    if tried.array is not None and digest(tried.array) == sha256:
                        return f"the record has {known.name}: {tried.text}"
    return _ties(made, sha256)


def _ties(made: Made, sha256: str) -> str:
    """A sentence if rounding elements within 1e-5 LSB of a tie to the other side reproduces the recorded hash;
    else ""."""
    array, exact = made.array, exact_values(made.array, made.node, made.values)
    if exact is None:
        return ""
    low, high = integer_range(array.dtype)
    flat, below = exact.reshape(-1), np.floor(exact.reshape(-1))
    now = array.reshape(-1).astype(np.float64)
    between = ((now == below) | (now == below + 1)) & (below >= low) & (below + 1 <= high)
    places = np.flatnonzero(between & (tie_distance(flat) <= TIE))
    other = 2 * below[places] + 1 - now[places]
    for chosen in _subsets(len(places), HASHED // max(array.nbytes, 1)):
        tried = array.reshape(-1).copy()
        tried[places[chosen]] = other[chosen].astype(np.int64).astype(array.dtype)
        if digest(tried.reshape(array.shape)) == sha256:
            return f"only near-ties: {len(chosen)} of {len(places)} elements within {TIE:g} LSB of a tie round the other way"
    return ""


def _subsets(count: int, most: int) -> Iterator[list[int]]:
    """Yield the set of all indices, then all smaller non-empty subsets if there are at most `most` subsets."""
    yield list(range(count))
    if count <= SUBSETS and 2**count <= most:
        for size in range(1, count):
            yield from map(list, combinations(range(count), size))
