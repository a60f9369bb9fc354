"""How a tensor differs from a recorded one, as far as the recorded facts tell.

Hashes tell which tensors differ. How much they differ is known only from below, by facts that hold whatever the other
elements are: the elements of the sample; half the L1 distance of two histograms, which each changed element changes by
at most 2; order statistics: if no element moved by more than d, no minimum, maximum or quantile did (for histograms
this is the infinity-Wasserstein distance); and of dequantized codes the codes,
of which different ones are different numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite, prod
from typing import Literal

import numpy as np

from qrun.comparing.differences import Tolerance
from qrun.comparing.records.entry import NEARLY, TIE, Histogram, Number, RecordEntry, places
from qrun.declare.frozen import frozen

Verdict = Literal["equal", "close", "unknown", "differs", "form"]
_UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half a unit in the last place, relative: what rounding a product to the type changes it by at most."""


@frozen
class Sampled:
    """An element of the sample that differs."""

    index: tuple[int, ...]
    recorded: Number
    now: Number


@frozen
class TensorChange:
    """A tensor that both have.

    verdict:   ``equal``: the same hash. ``close``: another hash, and every element is in the sample and within the
               tolerance. ``unknown``: no recorded fact is outside the tolerance, but elements that are not recorded may
               be: the record cannot tell. ``differs``: some fact is outside. ``form``: another type or shape.
    elements:  how many elements differ at least; step: by how much some element does at least: steps of integers, else
               absolute (inf: a NaN or an infinity is on one side only).
    sampled:   elements of the sample that differ.
    inputs:    the inputs of the node that makes it, and whether they are equal; None: not known.
    reading:   what the facts say about the reason, in a sentence.
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
        """Are all inputs equal? None if that is not known of some, and none differs."""
        states = [equal for _, equal in self.inputs]
        return False if False in states else None if None in states else True


@frozen
class Gap:
    """What the codes of a DequantizeLinear tell of its result: how many elements differ, and the least difference
    of the real numbers in one of these elements."""

    elements: int
    step: float


def judged(
    a: RecordEntry,
    b: RecordEntry,
    tolerance: Tolerance,
    inputs: tuple[tuple[str, bool | None], ...] = (),
    gap: Gap | None = None,
) -> TensorChange:
    """How tensor `b` differs from the recorded `a`. gap: what the codes tell, if a DequantizeLinear makes it."""
    if (a.type, a.shape) != (b.type, b.shape):
        return TensorChange(a, b, "form", inputs=inputs, reading="another type or shape")
    if a.sha256 == b.sha256:
        return TensorChange(a, b, "equal", inputs=inputs)
    sampled = tuple(_sampled(a, b))
    pairs = [*((s.recorded, s.now) for s in sampled), *_ordered(a, b)]
    steps = [_distance(x, y) for x, y in pairs]
    odd = (a.nan, a.inf) != (b.nan, b.inf)
    whole = a.type.startswith(("int", "uint"))
    apart = _sure(gap, a, b)
    step = max([float("inf") if odd else 1.0 if whole else 0.0, apart, *steps])
    elements = max(1, len(sampled), abs(a.nan - b.nan), _moved(a.histogram, b.histogram), gap.elements if gap else 0)
    allowed = tolerance.atol + tolerance.rtol * _largest(a)
    outside = odd or _outside(pairs, steps, step, whole, tolerance) or apart > allowed
    numbers = prod(a.shape) * (2 if a.type.startswith("complex") else 1)
    verdict: Verdict = "differs" if outside else "close" if len(a.sample) == numbers else "unknown"
    change = TensorChange(a, b, verdict, elements, step, sampled, inputs)
    unknown = "no recorded fact is beyond the tolerance, but the other elements are not recorded"
    told = (unknown if verdict == "unknown" else "", _origin(change, whole))
    return replace(change, reading="; ".join(filter(None, told)))


def _sure(gap: Gap | None, a: RecordEntry, b: RecordEntry) -> float:
    """The least difference that is left of `gap.step` once both real numbers are rounded to the tensor's type."""
    if gap is None or a.type not in _UNITS or not isfinite(gap.step):
        return 0.0
    return max(0.0, gap.step - _UNITS[a.type] * (_largest(a) + _largest(b)))


def _largest(entry: RecordEntry) -> float:
    return max((abs(v) for v in (entry.low, entry.high) if v is not None), default=float("inf"))


def _outside(
    pairs: list[tuple[Number, Number]], steps: list[float], step: float, whole: bool, tolerance: Tolerance
) -> bool:
    """Does a recorded fact show an element outside the tolerance? If the tolerance is 0, or if no fact is known,
    the different hash alone shows that."""
    if whole:
        return step > tolerance.lsb
    if (not tolerance.atol and not tolerance.rtol) or (not pairs and not steps):
        return True
    return any(s > tolerance.atol + tolerance.rtol * abs(x) for (x, _), s in zip(pairs, steps, strict=True))


def _sampled(a: RecordEntry, b: RecordEntry) -> Iterator[Sampled]:
    size = prod(a.shape)
    if len(a.sample) != len(b.sample):
        return
    shape = a.shape if len(a.sample) == len(places(size)) and not a.type.startswith("complex") else (*a.shape, 2)
    for place, x, y in zip(places(prod(shape)), a.sample, b.sample, strict=False):
        if x != y and not (x != x and y != y):
            yield Sampled(tuple(int(i) for i in np.unravel_index(place, shape)), x, y)


def _ordered(a: RecordEntry, b: RecordEntry) -> list[tuple[Number, Number]]:
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


def _origin(change: TensorChange, whole: bool) -> str:
    """What the facts say about where the difference comes from."""
    if change.inputs_equal is False:
        first = next(name for name, equal in change.inputs if equal is False)
        return f"an input has other bits already: {first}"
    if not whole or change.recorded.ties is None:
        return ""
    ties = change.recorded.ties
    told = f"{ties.tie} elements were within {TIE:g} LSB of a tie, {ties.near} within {NEARLY:g}" + (
        f", the nearest {ties.smallest:g}" if ties.smallest is not None else ""
    )
    if change.step > 1:
        return f"no matter of ties: an element differs by {change.step:.0f} steps or more; {told}"
    if change.elements > ties.near:
        return f"more than rounding of near-ties: {change.elements} or more elements differ; {told}"
    return told
