"""Counts values inside a model over all samples: what the rules find in the sums, and how the codes of each tensor are
used.

Everything is a count, so the order in which the samples run, and where, does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from qrun.checking.codes import places
from qrun.checking.rules import Finding, check, once
from qrun.checking.rules._scope import Scope
from qrun.checking.rules.collapsed import Used, over_all
from qrun.declare.frozen import changeable, frozen
from qrun.documents.record import Item
from qrun.ir import Array, Model
from qrun.ir.types import type_name
from qrun.ops import Observation
from qrun.running.session import RunResult

_COUNTED = 2
"""The size in bytes of the widest integer type whose codes are counted one by one."""


@frozen
class TensorHealth:
    """A quantized tensor over all samples.

    node:   the node that makes it, or reads it first. size: the number of elements in all samples.
    limits: the smallest and the largest code of the type; used: of the codes that occurred;
    unused: the number of codes that never did. at_low, at_high: the number of elements at the limits.
    range:  of the values that occurred; holds: of the values that the codes can represent; None for both unless one
            scale and zero point are stored.
    """

    name: str
    index: int
    node: str
    type: str
    size: int
    limits: tuple[int, int]
    used: tuple[int, int]
    unused: int
    at_low: int
    at_high: int
    range: tuple[float, float] | None
    holds: tuple[float, float] | None


@frozen
class Accumulator:
    """An int32 tensor of sums: the largest magnitude over all samples, and its share of 2^31."""

    name: str
    largest: int
    share: float


@frozen
class Health:
    """The health of a model. findings: those of the rules about values, over all samples."""

    findings: tuple[Finding, ...]
    tensors: tuple[TensorHealth, ...]
    accumulators: tuple[Accumulator, ...]


@changeable
class InnerCounts:
    """Counts over some samples.

    codes:    by tensor, how often each code occurred, int64 [256 or 65536], from the smallest code on; types: of these.
    peaks:    by int32 tensor, the largest magnitude.
    observed: by place of the event, kind and parameter: the affected elements. elements: by place: those of output 0.
    """

    codes: dict[str, Array] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    observed: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    elements: Counter[int] = field(default_factory=Counter)

    def see(self, name: str, array: Array) -> None:
        """Count a tensor if it holds integers."""
        dtype = array.dtype
        if dtype.kind in "iu" and dtype.itemsize <= _COUNTED:
            low = int(np.iinfo(dtype).min)
            found = np.bincount(array.reshape(-1).astype(np.int64) - low, minlength=1 << 8 * dtype.itemsize)
            self._add(name, found)
            self.types[name] = type_name(dtype)
        elif dtype == np.int32 and array.size:
            self.peaks[name] = max(self.peaks.get(name, 0), int(array.max()), -int(array.min()))

    def add(self, result: RunResult) -> None:
        """Count what the kernels of a run observed."""
        for place, event in enumerate(result.events):
            self.elements[place] += prod(event.outputs[0].shape) if event.outputs else 0
            for seen in event.observations:
                self.observed[place, seen.kind, seen.param] += seen.count

    def merge(self, other: InnerCounts) -> None:
        for name, found in other.codes.items():
            self._add(name, found)
        self.types |= other.types
        for name, peak in other.peaks.items():
            self.peaks[name] = max(self.peaks.get(name, 0), peak)
        self.observed.update(other.observed)
        self.elements.update(other.elements)

    def _add(self, name: str, found: Array) -> None:
        self.codes[name] = self.codes[name] + found if name in self.codes else found


def health(model: Model, counts: InnerCounts, run: RunResult, samples: Sequence[Mapping[str, Array]]) -> Health:
    """Compute the health from the counts. run: any run of the model with the same settings, for its node events.
    samples: some inputs, from which values before rounding are computed."""
    alone = {(f.rule, f.index, f.tensor) for f in check(model)}
    used = _used_codes(counts)
    found = [*check(model, _sum_observations(run, counts)), *over_all(model, used, samples)]
    findings = once([f for f in found if (f.rule, f.index, f.tensor) not in alone], model)
    sums = (Accumulator(name, peak, peak / 2**31) for name, peak in counts.peaks.items() if name in model.producers)
    largest = sorted(sums, key=lambda a: (-a.largest, a.name))
    return Health(tuple(findings), tuple(_tensors(model, counts, used)), tuple(largest))


def _used_codes(counts: InnerCounts) -> dict[str, Used]:
    """The used codes of each tensor that had any."""
    made = {}
    for name, found in counts.codes.items():
        low, there = int(np.iinfo(counts.types[name]).min), np.flatnonzero(found)
        if there.size:
            made[name] = Used(low + int(there[0]), low + int(there[-1]), int(there.size), int(found.sum()))
    return made


def _sum_observations(run: RunResult, counts: InnerCounts) -> RunResult:
    """The run with its observations replaced by those of all samples."""
    by_place: dict[int, list[Observation]] = {}
    for (place, kind, param), count in sorted(counts.observed.items()):
        by_place.setdefault(place, []).append(Observation(kind, param, count, counts.elements[place]))
    events = (replace(e, observations=tuple(by_place.get(place, ()))) for place, e in enumerate(run.events))
    return replace(run, events=tuple(events))


def _tensors(model: Model, counts: InnerCounts, used: Mapping[str, Used]) -> Iterator[TensorHealth]:
    scope = Scope(model)
    for name, place in places(model).items():
        if name not in used:
            continue
        found, kind, codes = counts.codes[name], np.dtype(counts.types[name]), used[name]
        low = int(np.iinfo(kind).min)
        ends, limits = (codes.low, codes.high), (low, low + found.size - 1)
        line = _line(scope.value(place.scale), scope.value(place.zero_point) if place.zero_point else None)
        seen, holds = (line and (line[0] * (a - line[1]), line[0] * (b - line[1])) for a, b in (ends, limits))
        where = name, place.node.index, place.node.label, kind.name
        at_ends = int(found[0]), int(found[-1])
        yield TensorHealth(*where, codes.size, limits, ends, found.size - codes.count, *at_ends, seen, holds)


def _line(scale: Array | None, zero: Array | None) -> tuple[float, int] | None:
    """Scale and zero point, if both are single numbers; else None."""
    if scale is None or scale.size != 1 or (zero is not None and zero.size != 1):
        return None
    return float(scale.reshape(())), 0 if zero is None else int(zero.reshape(()))


def plain(counts: Mapping[int, InnerCounts]) -> tuple[dict[str, Array], list[object]]:
    """Convert the counts of some models to arrays by name and JSON; `restore_counts` converts back."""
    arrays = {f"{model}/{name}": found for model, one in counts.items() for name, found in one.codes.items()}
    rest: list[object] = []
    for model, one in counts.items():
        observed = [[*key, count] for key, count in sorted(one.observed.items())]
        rest.append([model, one.types, one.peaks, observed, sorted(one.elements.items())])
    return arrays, rest


def restore_counts(arrays: Mapping[str, Array], rest: Item) -> dict[int, InnerCounts]:
    """Convert the result of `plain` back to counts. Raises CallError or ValueError for anything else."""
    made: dict[int, InnerCounts] = {}
    for one in rest:
        model, types, peaks, observed, elements = one
        prefix = f"{model.size}/"
        made[model.size] = InnerCounts(
            {name.removeprefix(prefix): found for name, found in arrays.items() if name.startswith(prefix)},
            {name: types[name].text for name in types.keys},
            {name: peaks[name].size for name in peaks.keys},
            Counter({(place.size, kind.text, param.text): count.size for place, kind, param, count in observed}),
            Counter({place.size: count.size for place, count in elements}),
        )
    return made
