"""What the values inside say over all samples: what the rules find in their sums,
and how the codes of each tensor are used.

Everything is a count, so that it does not matter in which order, or where, the samples were run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from qrun.checking.codes import places
from qrun.checking.rules import Finding, check, once
from qrun.checking.rules._scope import Scope
from qrun.checking.rules.collapsed import Used, over_all
from qrun.declare.frozen import changeable, frozen
from qrun.documents.item import Item
from qrun.ir import Array, Model
from qrun.ir.types import type_name
from qrun.ops import Observation
from qrun.running.session import RunResult

_COUNTED = 2
"""Bytes of the widest integers of which every code is counted."""


@frozen
class TensorHealth:
    """A quantized tensor over all samples.

    node:   that makes it, or reads it first. size: elements of all samples.
    limits: the smallest and the largest code, used: of those that occurred;
    unused: codes between the limits that never did.
    at_low, at_high: elements at the limits. scale: the smallest and the largest; None where it is not stored.
    range:  of the values seen, and holds: of those that the codes can stand for; None without one scale and zero point.
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
    """findings: of the rules about values, over all samples."""

    findings: tuple[Finding, ...]
    tensors: tuple[TensorHealth, ...]
    accumulators: tuple[Accumulator, ...]


@changeable
class InnerCounts:
    """What was counted in some samples.

    codes:    by tensor how often each code occurred, int64 [256 or 65536], from the smallest code on; types: of these.
    peaks:    by int32 tensor the largest magnitude.
    observed: by place of the event, kind and parameter the elements concerned. elements: by place, of the first output.
    """

    codes: dict[str, Array]
    types: dict[str, str]
    peaks: dict[str, int]
    observed: dict[tuple[int, str, str], int]
    elements: dict[int, int]

    @classmethod
    def none(cls) -> InnerCounts:
        return cls({}, {}, {}, {}, {})

    def see(self, name: str, array: Array) -> None:
        """Count a tensor, if it is of integers."""
        dtype = array.dtype
        if dtype.kind in "iu" and dtype.itemsize <= _COUNTED:
            low = int(np.iinfo(dtype).min)
            found = np.bincount(array.reshape(-1).astype(np.int64) - low, minlength=1 << 8 * dtype.itemsize)
            self.codes[name] = self.codes[name] + found if name in self.codes else found
            self.types[name] = type_name(dtype)
        elif dtype == np.int32 and array.size:
            self.peaks[name] = max(self.peaks.get(name, 0), int(array.max()), -int(array.min()))

    def add(self, result: RunResult) -> None:
        """Count what the kernels of a run observed."""
        for place, event in enumerate(result.events):
            size = prod(event.outputs[0].shape) if event.outputs else 0
            self.elements[place] = self.elements.get(place, 0) + size
            for seen in event.observations:
                key = place, seen.kind, seen.param
                self.observed[key] = self.observed.get(key, 0) + seen.count

    def merge(self, other: InnerCounts) -> None:
        for name, found in other.codes.items():
            self.codes[name] = self.codes[name] + found if name in self.codes else found
        self.types |= other.types
        for name, peak in other.peaks.items():
            self.peaks[name] = max(self.peaks.get(name, 0), peak)
        for key, count in other.observed.items():
            self.observed[key] = self.observed.get(key, 0) + count
        for place, size in other.elements.items():
            self.elements[place] = self.elements.get(place, 0) + size


def health(model: Model, counts: InnerCounts, run: RunResult, samples: Sequence[Mapping[str, Array]]) -> Health:
    """The findings of the counts. run: any run of the model with the same settings, for the nodes of its events.
    samples: some inputs, which show the values before rounding."""
    alone = {(f.rule, f.index, f.tensor) for f in check(model)}
    found = [*check(model, _summed(run, counts)), *over_all(model, _used(counts), samples)]
    findings = once([f for f in found if (f.rule, f.index, f.tensor) not in alone], model)
    sums = (Accumulator(name, peak, peak / 2**31) for name, peak in counts.peaks.items() if name in model.producers)
    return Health(
        tuple(findings), tuple(_tensors(model, counts)), tuple(sorted(sums, key=lambda a: (-a.largest, a.name)))
    )


def _used(counts: InnerCounts) -> dict[str, Used]:
    """The codes of each tensor that had any."""
    made = {}
    for name, found in counts.codes.items():
        low, there = int(np.iinfo(counts.types[name]).min), np.flatnonzero(found)
        if there.size:
            made[name] = Used(low + int(there[0]), low + int(there[-1]), int(there.size), int(found.sum()))
    return made


def _summed(run: RunResult, counts: InnerCounts) -> RunResult:
    """The run with the observations of all samples in place of its own."""
    by_place: dict[int, list[Observation]] = {}
    for (place, kind, param), count in sorted(counts.observed.items()):
        by_place.setdefault(place, []).append(Observation(kind, param, count, counts.elements[place]))
    events = (replace(e, observations=tuple(by_place.get(place, ()))) for place, e in enumerate(run.events))
    return replace(run, events=tuple(events))


def _tensors(model: Model, counts: InnerCounts) -> Sequence[TensorHealth]:
    scope, made = Scope(model), []
    for name, place in places(model).items():
        if name not in counts.codes:
            continue
        found, kind = counts.codes[name], np.dtype(counts.types[name])
        low = int(np.iinfo(kind).min)
        there = np.flatnonzero(found)
        if not there.size:
            continue
        used = low + int(there[0]), low + int(there[-1])
        limits = low, low + found.size - 1
        line = _line(scope.value(place.scale), scope.value(place.zero_point) if place.zero_point else None)
        seen, holds = (None if line is None else _reals(line, *pair) for pair in (used, limits))
        made.append(
            TensorHealth(
                name,
                place.node.index,
                place.node.label,
                kind.name,
                int(found.sum()),
                limits,
                used,
                found.size - there.size,
                int(found[0]),
                int(found[-1]),
                seen,
                holds,
            )
        )
    return made


def _line(scale: Array | None, zero: Array | None) -> tuple[float, int] | None:
    """Scale and zero point, if there is one of each."""
    if scale is None or scale.size != 1 or (zero is not None and zero.size != 1):
        return None
    return float(scale.reshape(())), 0 if zero is None else int(zero.reshape(()))


def _reals(line: tuple[float, int], first: int, last: int) -> tuple[float, float]:
    """What two codes stand for."""
    scale, zero = line
    return scale * (first - zero), scale * (last - zero)


def plain(counts: Mapping[int, InnerCounts]) -> tuple[dict[str, Array], list[object]]:
    """The counts of some models as arrays by name and as JSON; `restored` is the way back."""
    arrays = {f"{model}/{name}": found for model, one in counts.items() for name, found in one.codes.items()}
    rest: list[object] = []
    for model, one in counts.items():
        observed = [[*key, count] for key, count in sorted(one.observed.items())]
        rest.append([model, one.types, one.peaks, observed, sorted(one.elements.items())])
    return arrays, rest


def restored(arrays: Mapping[str, Array], rest: Item) -> dict[int, InnerCounts]:
    """Raises CallError or ValueError for what `plain` did not make."""
    made: dict[int, InnerCounts] = {}
    for one in rest:
        model, types, peaks, observed, elements = one
        prefix = f"{model.size}/"
        made[model.size] = InnerCounts(
            {name.removeprefix(prefix): found for name, found in arrays.items() if name.startswith(prefix)},
            {name: types[name].text for name in types.keys},
            {name: peaks[name].size for name in peaks.keys},
            {(place.size, kind.text, param.text): count.size for place, kind, param, count in observed},
            {place.size: count.size for place, count in elements},
        )
    return made
