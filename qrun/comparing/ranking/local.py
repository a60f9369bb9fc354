"""Measures one group on the float model's values: its own noise and the parts of it, how well its range fits the
values, and which scales and zero points would fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from qrun.comparing.differences import ErrorSums, Noise, difference_mask, magnitude
from qrun.comparing.matching.graph import Path, Reals
from qrun.comparing.ranking.constants import Constants
from qrun.comparing.ranking.faults import Correction, Fault, Verdict, judge, judge_structure
from qrun.comparing.ranking.groups import Limits, Operation, RoundingGroup, limits, simulate
from qrun.comparing.sides import Values
from qrun.declare.frozen import frozen, keys, through
from qrun.errors import OperatorError
from qrun.ir import Array
from qrun.ir.types import integer_range

GAIN = 4.0
"""The factor by which another range must reduce the noise on the observed values to be tried."""
_WIDE = 4.0
"""A scale is too large above this multiple of what these values need; other inputs may need more."""
_LIKE = 1.25
"""The zero point is kept if the scale then needs at most this multiple of the smallest scale."""
_SAME = 0.001
"""The relative difference up to which two scales are equal."""


_OTHERS: dict[str, np.dtype[Any]] = {
    str(np.dtype(one)): np.dtype(other)
    for one, other in ((np.int8, np.uint8), (np.uint8, np.int8), (np.int16, np.uint16), (np.uint16, np.int16))
}
"""Maps the name of an integer type to the type of the same size with the other signedness."""


@frozen
class Fit:
    """A scale or zero point that does not fit the values, with one that does.

    now:    the scale; wanted: a scale whose codes reach from the smallest to the largest value and 0.
    inside: is the quantizer in front of the group's operators, not after them?
    text:   says what does not fit and what does.
    """

    KEYS = keys("scale=now wanted of_input=inside text")

    now: float
    wanted: float
    inside: bool
    text: str
    corrections: tuple[Correction, ...]


@frozen(eq=False)
class ActivationQuantizer:
    """The scale and zero point of an activation quantizer, and their names in the model."""

    names: tuple[str, str]
    scale: Array
    zero: Array
    known: Limits

    def can_narrow(self, factor: float, low: float, high: float) -> bool:
        """Do the codes still reach from low to high if the scale is divided by `factor`?"""
        zero = float(self.zero.astype(np.float64).reshape(-1)[0])
        return self.covers(self.known.step / factor, zero, low, high)

    def covers(self, scale: float, zero: float, low: float, high: float, kind: np.dtype[Any] | None = None) -> bool:
        """Whether a scale and zero point cover the range low .. high without clipping."""
        least, most = integer_range(kind or self.zero.dtype)
        return (least - zero - 0.5) * scale <= low and high <= (most - zero + 0.5) * scale


def quantizer(b: Reals, path: Path) -> ActivationQuantizer | None:
    """The parameters of a path of one quantizer with one scale and integer codes of up to 16 bits; else None."""
    known = limits(b, path)
    if known is None or len(path) != 1 or known.codes > 1 << 16:
        return None
    inputs = (*b.nodes[path[0]].inputs, "")[1:3]
    scale, zero = b.constant(inputs[0]), b.constant(inputs[1])
    if scale is None:
        return None
    names = b.own_name(inputs[0]), b.own_name(inputs[1])
    return ActivationQuantizer(names, scale, np.zeros((), np.uint8) if zero is None else zero, known)


def fit_parameters(b: Reals, path: Path, low: float, high: float, lossy: bool, inside: bool) -> Fit | None:
    """Find parameters that fit values from low to high, 0 included; None if the present ones fit. lossy: are values
    outside the range? inside: see `Fit`."""
    own = quantizer(b, path)
    if own is None or not high > low:
        return None
    now, zero = own.known.step, float(own.zero.astype(np.float64).reshape(-1)[0])
    least, most = (float(end) for end in integer_range(own.zero.dtype))
    wanted = (high - low) / (most - least)
    if lossy:
        moved = float(np.clip(np.rint(least - low / now), least, most))
        if moved != zero and own.covers(now, moved, low, high) and own.names[1]:
            return _fit_zero_point(own, now, zero, moved, low, high, inside)
    if not lossy and now < _WIDE * wanted:
        return None
    sides = [low / (least - zero) if low < 0 and zero > least else math.inf if low < 0 else 0.0]
    sides.append(high / (most - zero) if high > 0 and zero < most else math.inf if high > 0 else 0.0)
    kept = max(sides)
    corrections = []
    if not kept <= _LIKE * wanted:
        at = float(np.clip(np.rint(least - low / wanted), least, most))
        if at != zero:
            if not own.names[1]:
                return None
            corrections.append(_number(own.names[1], own.zero, at, zero))
        # Where no code is left on a side, its values are below half a step.
        below, above = (low / (least - at) if at > least else 0.0), (high / (most - at) if at < most else 0.0)
        kept = max(wanted, below, above)
    if lossy and kept <= now:
        return None
    value = np.float32(kept)
    like = _namesake(b, own, float(value))
    corrections.insert(0, _number(own.names[0], own.scale, float(value), now, f", the value of {like}" if like else ""))
    why = "too small" if kept > now else "too large"
    text = f"{own.names[0]} {now:.4g} is {why}: {value:.4g} fits" + (f", the value of {like}" if like else "")
    return Fit(now, float(value), inside, text, tuple(corrections))


def _fit_zero_point(
    own: ActivationQuantizer, now: float, zero: float, moved: float, low: float, high: float, inside: bool
) -> Fit:
    """The fit for a correct scale with a wrong zero point: its value or its type is wrong."""
    kind = own.zero.dtype
    other = _OTHERS.get(str(kind))
    fits = other is not None and own.covers(now, zero, low, high, other)
    either = f", or {other} {zero:g}" if fits else ""
    text = f"{own.names[1]} {kind} {zero:g} does not fit: {moved:g} does{either}"
    return Fit(now, now, inside, text, (_number(own.names[1], own.zero, moved, zero, either),))


def _number(name: str, like: Array, value: float, now: float, more: str = "") -> Correction:
    """The correction of one number."""
    return Correction(name, np.full(like.shape, value, like.dtype), f"{now:.4g} -> {value:.4g}{more}")


def _namesake(b: Reals, own: ActivationQuantizer, wanted: float) -> str:
    """The name of another scale of the model with this value, with which it may be exchanged; "" if there is none."""
    for name, scale in b.activation_scales.items():
        if name != own.names[0] and abs(scale - wanted) <= _SAME * wanted:
            return name
    return ""


_BINS, _PER_OCTAVE = 2048, 4
_SAMPLE = 1 << 16
"""The number of elements per tensor and run whose magnitudes are counted, evenly chosen from larger tensors."""
_KEPT, _THIRD = 1 << 14, 3
"""The most magnitudes kept for the median; of more, every third is kept, since channels are mostly powers of two."""
_GAP = 3.0
"""Octaves without values that split magnitudes into two parts."""
BULK = 0.999
_APART = 1e-6
"""The noise to signal ratio above which operators count as different."""


@frozen
class Local:
    """The noise of a group on the first model's values, and its parts by source.

    weights:   weights and other constants without biases. If the first model quantizes too, or the group's operators
               are unknown, this includes bias and structure.
    bias:      biases. structure: operators that compute something else with the first model's constants.
    input:     quantizers in front of the operators. before: rounding by the first model itself.
    rounding:  rounding the result inside the range. clipped: values beyond the range.
    The parts are energies relative to the energy of the first model's values, measured against these values before the
    first model rounds them. Their sum is nearly noise.ratio, unless both models round alike, or much is wrong.
    """

    KEYS = {**through("noise", Noise.KEYS), **keys("weights bias structure input rounding clipped before")}

    noise: Noise
    weights: float
    bias: float
    structure: float
    input: float
    rounding: float
    clipped: float
    before: float = 0.0


@frozen
class Spread:
    """The distribution of the first model's values, compared with the range of the codes.

    count:        number of values; beyond: values outside the range by more than half a step.
    least, most:  the smallest and the largest value; range: the range of the codes; without one fixed range, 256 codes
                  over all values and 0; None without a range and without values.
    bulk:         a magnitude that 99.9 % of the values do not exceed; typical: the median magnitude, without zeros.
    near, nearby: if the magnitudes have a wide gap: the largest magnitude below the gap, and the share of the values
                  below it; None and 1 otherwise.
    """

    KEYS = keys("count beyond min=least max=most bulk typical near near_share=nearby")

    count: int
    beyond: int
    least: float
    most: float
    range: Limits | None
    bulk: float
    typical: float
    near: float | None
    nearby: float

    def codes(self, magnitude: float) -> int:
        """The number of codes that values up to a magnitude span."""
        assert self.range is not None
        low, high = max(self.least, -magnitude, self.range.low), min(self.most, magnitude, self.range.high)
        return max(1, min(self.range.codes, round((high - low) / self.range.step) + 1)) if high >= low else 1


class Watch:
    """Accumulates the noise of one group over all runs.

    moved:    the number of result elements that differ from the first model's; apart: the largest difference before
              either model rounds them.
    constants: the differing constants; None if the first model quantizes too, or the group cannot be computed.
              verdicts: the verdict on each. of_constants: the noise energy of each.
    structure: the SQNR in dB of the operators with the first model's constants, and the fault that explains it; None
              if not examined.
    """

    def __init__(self, a: Reals, b: Reals, group: RoundingGroup) -> None:
        self.a, self.b, self.group = a, b, group
        self.range = limits(b, group.rounds)
        self.sums = ErrorSums()
        parts = ("weights", "bias", "structure", "input", "rounding", "clipped", "before")
        self.energy = dict.fromkeys(parts, 0.0)
        known = group.whole and group.there.whole and group.region.operators and not a.quantizes
        self.constants = Constants(a, b, group) if known else None
        self.of_constants = [0.0] * len(self.constants.found if self.constants else ())
        self.structure: tuple[float, Fault | None] | None = None
        self.moved, self.apart = 0, 0.0
        self.values = _Values(self.range)
        self.inputs = {key: _Values(limits(b, path)) for key, path in group.own.items()}
        self.noise = dict.fromkeys(group.own, 0.0)

    def add(self, clean: Values) -> Array:
        """Add one run of the first model. Returns the group's result on that run's values."""
        want = clean[self.group.target]
        held = self.group.before  # the first model's own range, to which its values before rounding are clipped
        raw = want if held is None else np.clip(clean[self.group.raw], held.low, held.high)
        made = self._operate(clean, want, raw)
        group = self.group
        got = self.b.pass_through(made, group.rounds)
        self.sums.add(got, want)
        if group.rounds:
            kept, out = self.b.pass_through(raw, group.rounds), outside_range(raw, self.range)
            self.energy["clipped"] += _error_energy(kept[out], raw[out])
            self.energy["rounding"] += _error_energy(kept[~out], raw[~out])
        self.values.add(raw)
        self.energy["before"] += _error_energy(want, raw)
        self.moved += int(np.count_nonzero(difference_mask(got.reshape(want.shape), want)))
        for (index, at), path in group.own.items():
            source = self.b.sources[self.b.nodes[index].inputs[at]]
            if source.value in group.inputs:
                array = clean[group.inputs[source.value]]
                self.inputs[index, at].add(array)
                self.noise[index, at] += _error_energy(self.b.pass_through(array, path), array)
        return got

    def _operate(self, clean: Values, want: Array, raw: Array) -> Array:
        """Compute the group's operators; if they cannot run on the first model's tensors, return the target's value."""
        group = self.group
        if not group.whole or not group.region.operators:
            return want
        try:
            made = simulate(self.b, group, clean).reshape(want.shape)
            plain = simulate(self.b, group, clean, own=False).reshape(want.shape) if group.own else made
        except (OperatorError, ValueError, IndexError):
            self.group = replace(group, whole=False)
            return want
        self._divide(clean, plain, raw)
        with np.errstate(all="ignore"):
            self.apart = max(self.apart, magnitude(made.astype(np.float64) - raw))
        self.energy["input"] += self._inside(made, plain) if group.own else 0.0
        return made

    def _divide(self, clean: Values, plain: Array, raw: Array) -> None:
        """Add the noise of the group's constants and of its operators, each alone."""
        constants = self.constants
        if constants is None:
            self.energy["weights"] += self._inside(plain, raw)
            return
        fair = self._with(constants.instead(), clean, raw) if constants.found else plain
        apart = self._inside(fair, raw)
        self.energy["structure"] += apart
        for at, constant in enumerate(constants.found):
            noise = self._inside(self._with(constants.instead([constant]), clean, raw), fair)
            self.of_constants[at] += noise
            self.energy["bias" if constant.role == "bias" else "weights"] += noise
        if self.structure is None and apart > _APART * _error_energy(raw, np.zeros_like(raw)):
            label = self.a.model.label
            self.structure = judge_structure(self.a, self.b, self.group, constants, clean, self._clip, label)

    def _with(self, instead: Mapping[int, Operation], clean: Values, like: Array) -> Array:
        """The group's result with some operators replaced."""
        return simulate(self.b, self.group, clean, own=False, instead=instead).reshape(like.shape)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What is wrong with the group's constants."""
        constants = self.constants
        if constants is None:
            return ()
        return tuple(judge(self.b, constant, constants, self.a.model.label) for constant in constants.found)

    def _clip(self, array: Array) -> Array:
        """Clip to the group's range."""
        return array if self.range is None else np.clip(array, self.range.low, self.range.high)

    def _inside(self, got: Array, want: Array) -> float:
        """The energy of the difference of two arrays, both clipped to the range."""
        return _error_energy(self._clip(got), self._clip(want))

    def local(self) -> Local:
        """The group's own error, and its parts by cause."""
        signal = self.sums.signal
        parts = {k: e / signal if signal else math.inf if e else 0.0 for k, e in self.energy.items()}
        return Local(self.sums.result(), **parts)

    def input_spread(self) -> Spread | None:
        """The distribution of the values that the noisiest quantizer in front of the operators reads;
        None without one."""
        key = self.noisiest()
        return None if key is None else self.inputs[key].spread()

    def noisiest(self) -> tuple[int, int] | None:
        """The (operator, input) whose quantizer in front of the group's operators makes the most noise, or None."""
        return max(self.noise, key=lambda key: self.noise[key]) if self.noise else None

    def ranges(self) -> Iterator[tuple[ActivationQuantizer, float, float]]:
        """Yield each quantizer of the group with one scale, with the smallest and the largest of its values and 0."""
        paths = [(self.group.rounds, self.values), *((self.group.own[key], one) for key, one in self.inputs.items())]
        for path, values in paths:
            found = quantizer(self.b, path)
            if found is not None:
                yield found, min(values.least, 0.0), max(values.most, 0.0)

    def channel_ratio(self) -> float:
        """The unevenness of the channels of weights with one scale: the largest over the median of the channels'
        largest magnitudes.

        1 if no weights of the group have one scale.
        """
        found = 1.0
        for index in self.group.weights:
            node = self.b.nodes[index]
            scale, codes = self.b.constant(node.inputs[1]), self.b.constant(node.outputs[0])
            if scale is None or codes is None or scale.size != 1 or codes.ndim < 2 or not codes.size:
                continue
            reader = next(
                (n for p in self.group.region.operators if node.outputs[0] in (n := self.b.nodes[p]).inputs), None
            )
            last = reader is not None and (
                reader.op_type == "MatMul" or (reader.op_type == "Gemm" and not reader.attributes.get("transB", 0))
            )
            axis = -1 if last else 0
            rows = np.abs(np.moveaxis(codes, axis, 0).reshape(codes.shape[axis], -1)).max(1, initial=0)
            middle = float(np.median(rows[rows > 0])) if (rows > 0).any() else 0.0
            found = max(found, float(rows.max()) / middle) if middle else found
        return found


def _error_energy(got: Array, want: Array) -> float:
    """The sum of the finite squared differences."""
    with np.errstate(all="ignore"):
        error = np.square(got.astype(np.float64) - want)
    return float(error[np.isfinite(error)].sum())


def outside_range(array: Array, range_: Limits | None) -> Array:
    """A mask of the values outside the range by more than half a step; all false without a range."""
    if range_ is None:
        return np.zeros(array.shape, bool)
    return np.asarray((array > range_.high + range_.step / 2) | (array < range_.low - range_.step / 2))


class _Values:
    """Accumulates the extremes of values, and a histogram of their magnitudes in quarters of octaves.

    range_: the range of the codes; None: 256 codes over the values of all runs and 0.
    """

    def __init__(self, range_: Limits | None) -> None:
        self.range, self.beyond = range_, 0
        self.bins = np.zeros(_BINS, np.int64)
        self.kept, self.every = np.zeros(0), 1
        self.zeros = self.count = 0
        self.least, self.most = math.inf, -math.inf

    def add(self, array: Array) -> None:
        """Add the values of a tensor."""
        flat = np.asarray(array, np.float64).reshape(-1)
        self.count += flat.size
        self.beyond += int(np.count_nonzero(outside_range(flat, self.range)))
        finite = flat[np.isfinite(flat)]
        if not finite.size:
            return
        self.least, self.most = min(self.least, float(finite.min())), max(self.most, float(finite.max()))
        sample = np.abs(finite[:: -(-finite.size // _SAMPLE)])
        self.zeros += int(np.count_nonzero(sample == 0))
        bins = np.ceil(np.log2(sample[sample > 0]) * _PER_OCTAVE).astype(np.int64) + _BINS // 2
        self.bins += np.bincount(np.clip(bins, 0, _BINS - 1), minlength=_BINS)
        self.kept = np.concatenate([self.kept, sample[sample > 0][:: self.every]])
        while self.kept.size > _KEPT:
            self.kept, self.every = self.kept[::_THIRD], self.every * _THIRD

    def spread(self) -> Spread:
        """How the values are distributed, compared with the range."""
        total = int(self.bins.sum()) + self.zeros
        if not total:
            return Spread(self.count, self.beyond, 0.0, 0.0, self.range, 0.0, 0.0, None, 1.0)
        reach = self.zeros + np.cumsum(self.bins)
        largest = max(abs(self.least), abs(self.most))
        bulk = min(largest, _edge(int(np.searchsorted(reach, BULK * total)))) if self.bins.any() else 0.0
        typical = float(np.median(self.kept)) if self.kept.size else 0.0
        near, share = self._below_gap(reach, total)
        low, high = min(self.least, 0.0), max(self.most, 0.0)
        range_ = self.range or Limits(low, high, (high - low) / 255 or 1.0, 256)
        return Spread(self.count, self.beyond, self.least, self.most, range_, bulk, typical, near, share)

    def _below_gap(self, reach: Array, total: int) -> tuple[float | None, float]:
        """The largest magnitude below the highest wide gap that has 10 % of the values below it, and their share."""
        used = np.flatnonzero(self.bins)
        gaps = np.diff(used)
        fits = (gaps > _GAP * _PER_OCTAVE) & (reach[used[:-1]] >= 0.1 * total) if used.size > 1 else np.zeros(0, bool)
        if not fits.any():
            return None, 1.0
        at = int(used[:-1][fits][-1])
        return _edge(at), float(reach[at]) / total


def _edge(bin_number: int) -> float:
    """The largest magnitude in a bin."""
    return float(2.0 ** ((min(bin_number, _BINS - 1) - _BINS // 2) / _PER_OCTAVE))
