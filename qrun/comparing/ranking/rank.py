"""Ranks groups by the accuracy that they cost at the outputs: runs the first model with each group alone in place (or
with sets of groups, if that takes too long), and explains the cost by the group's values, range and weights."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from time import monotonic

import numpy as np

from qrun.comparing.differences import ErrorSums, decibels
from qrun.comparing.matching.graph import Reals
from qrun.comparing.ranking.faults import FINE, MISSING, Correction, Fault, scale_factor
from qrun.comparing.ranking.groups import Mixed, RoundingGroup
from qrun.comparing.ranking.local import BULK, GAIN, Fit, Local, Spread, Watch, fit_parameters
from qrun.comparing.sides import Values
from qrun.declare.frozen import frozen, keys, replace
from qrun.errors import percent
from qrun.ir import Array, Node
from qrun.ir.compound import is_compound
from qrun.running.profiling import Progress

LEAST = 16
"""The number of measurements that are made however long they take."""
_PARTIAL = 0.6
"""The mean share of a whole run that running only the nodes after one node takes."""


class Effects:
    """Measures the noise at the outputs if only some groups replace the first model's operators.

    The noise of groups quantized together is nearly the sum of the noise of each. So if there is no time to measure
    each alone, the first run measures all of them together, then repeatedly halves the noisiest set and measures both
    halves until the time is up: the costliest nodes end up alone, the others in sets that cost little.

    parts: error sums of disjoint sets of groups, by the groups' places.
    """

    def __init__(self, mixed: Mixed, watches: Sequence[Watch], runs: int, seconds: float, progress: Progress | None):
        self.mixed, self.watches, self.runs, self.seconds, self.progress = mixed, watches, runs, seconds, progress
        self.parts: dict[tuple[int, ...], list[ErrorSums]] = {}
        self._done = self._steps = 0

    def add(self, clean: Values, made: Sequence[Array]) -> None:
        """Add one run of the first model. made: each group's result on its values."""
        self._start, self._steps = monotonic(), 0
        if self._done:
            for members in self.parts:
                self._measure(members, clean, made, len(self.parts))
        elif made:
            self._explore(clean, made)
        self._done += 1

    def _explore(self, clean: Values, made: Sequence[Array]) -> None:
        """Choose the sets to measure, on the first run."""
        count, room = len(made), self.seconds / self.runs
        whole = tuple(range(count))
        ratio = self._measure(whole, clean, made, count)
        pending = [(-ratio, whole)]
        if (monotonic() - self._start) * count * _PARTIAL <= room:
            del self.parts[whole]
            pending = [(-self._measure((i,), clean, made, count), (i,)) for i in whole]
        heapq.heapify(pending)
        while any(len(members) > 1 for _, members in pending):
            if self._steps >= LEAST and monotonic() - self._start > room:
                break
            largest = min(part for part in pending if len(part[1]) > 1)
            pending.remove(largest)
            members = largest[1]
            del self.parts[members]
            for half in (members[: len(members) // 2], members[len(members) // 2 :]):
                pending.append((-self._measure(half, clean, made, count), half))

    def _measure(self, members: tuple[int, ...], clean: Values, made: Sequence[Array], total: int) -> float:
        """The error at the outputs with only these groups quantized."""
        if self.progress is not None:
            self._tell(total)
        self._steps += 1
        outputs = self.mixed.parts([clean[name] for name in self.mixed.outputs])
        groups = [self.watches[i].group for i in members if self.watches[i].sums.ratio]
        known = {groups[0].target: made[members[0]]} if len(members) == 1 and groups else None
        got = self.mixed.parts(self.mixed.run(clean, groups, known)) if groups else outputs
        sums = self.parts.setdefault(members, [ErrorSums() for _ in outputs])
        for one, x, want in zip(sums, got, outputs, strict=True):
            one.add(numbers_or_zeros(x), numbers_or_zeros(want))
        return mean_ratio(sums)

    def _tell(self, total: int) -> None:
        """Report progress: measurements made, all measurements, and the time left. total: measurements per run."""
        spent = monotonic() - self._start
        left = spent / max(self._steps, 1) * max(0, (self.runs - self._done) * total - self._steps)
        rest = self.seconds * (self.runs - self._done) / self.runs - spent
        assert self.progress is not None
        self.progress(self._done * total + self._steps, total * self.runs, max(0.0, min(left, rest)))

    @property
    def measured(self) -> int:
        """The number of groups that were measured alone."""
        return sum(len(members) == 1 for members in self.parts)

    def ratios(self) -> list[tuple[float, bool]]:
        """For each group, its noise to signal ratio at the outputs, and whether it was measured alone.

        If not, the ratio is its share of the set's ratio, in proportion to the noise of its own result.
        """
        found = [(0.0, False)] * len(self.watches)
        for members, sums in self.parts.items():
            ratio = mean_ratio(sums)
            own = [min(self.watches[i].sums.ratio, 1.0) for i in members]
            for i, noise in zip(members, own, strict=True):
                alone = len(members) == 1
                found[i] = (ratio if alone else ratio * noise / math.fsum(own) if noise else 0.0, alone)
        return found


def mean_ratio(sums: Sequence[ErrorSums]) -> float:
    """The mean noise to signal ratio of `outputs_to_average`; 0 without any."""
    counted = outputs_to_average(sums)
    return math.fsum(s.ratio for s in counted) / len(counted) if counted else 0.0


def outputs_to_average(sums: Sequence[ErrorSums]) -> Sequence[ErrorSums]:
    """The outputs whose noise counts: float outputs only, since labels and indices are exact until they jump; all if
    there is no float output."""
    return [s for s in sums if not s.whole] or sums


def numbers_or_zeros(array: Array) -> Array:
    """The array if it is numeric, else zeros of its shape."""
    return array if array.dtype.kind in "fiub" else np.zeros(array.shape, np.int8)


NOTHING = 1e-12
"""The noise to signal ratio (120 dB) up to which a difference comes from float32 arithmetic."""
_FLOAT = 1e-9
"""The same for groups without rounding, whose operators may be others in float32 (90 dB)."""


@frozen
class Cost:
    """A quantized node and what it alone costs.

    node:     the second model's node; tensor: its result; target, floats: the first model's tensor and nodes for it.
    ratio:    noise to signal ratio at the outputs if only this node is quantized (mean over the outputs). Not
              `measured`: its share of what a set of nodes costs, in proportion to the noise of its own result.
    sqnr:     the same in dB. share: its share of the sum over all nodes.
    reason:   ``clipped``, ``range-unused``, ``far-values``, ``outliers``, ``weights-per-tensor``, ``weights``,
              ``bias``, ``precision``, ``input``, ``operator``, ``both-round``, ``first-rounds`` or ``rounding``; or the
              kind of the first of the faults; why: an explanation with the observed numbers.
    fit:      the scale that the values need, if the stored one is far off.
    faults:   the faults of this group, the costliest first.
    """

    KEYS = keys(
        "index=node.index name=node.name domain=node.full_domain op=node.op_type tensor=target float_nodes=float_names "
        "measured output_sqnr_db=sqnr share reason why local values=spread fit range=spread.range"
    )

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
    faults: tuple[Fault, ...] = ()

    @property
    def sqnr(self) -> float:
        """The SQNR at the outputs."""
        return decibels(self.ratio)

    @property
    def float_names(self) -> tuple[str, ...]:
        """The nodes to keep in float."""
        return tuple(node.label for node in self.floats)


class Ranking:
    """Collects the costs over all runs. seconds: the time for measuring effects, all runs together."""

    def __init__(
        self, a: Reals, b: Reals, groups: Sequence[RoundingGroup], runs: int, seconds: float, progress: Progress | None
    ):
        self.mixed = Mixed(a, b)
        self.watches = [Watch(a, b, group) for group in groups]
        self.runs = 0
        self.effects = Effects(self.mixed, self.watches, runs, seconds, progress)

    def add(self, clean: Mapping[str, Array]) -> None:
        """Add one run of the first model. clean: all its tensors."""
        if not self.runs:  # text, sequences and maps have no noise
            self.watches[:] = [w for w in self.watches if _is_numeric(clean[w.group.target])]
        made = {watch: watch.add(clean) for watch in self.watches}
        if not self.runs:  # groups that neither round nor compute something else have no effects
            self.watches[:] = [w for w in self.watches if w.group.quantizes or w.sums.ratio > _FLOAT]
        self.runs += 1
        self.effects.add(clean, [made[watch] for watch in self.watches])

    def costs(self) -> list[Cost]:
        """What each node costs, with its share of the sum, its faults and the reason. Nodes with faults come first,
        then the costliest; nodes without an effect are left out."""
        ratios = self.effects.ratios()
        whole = math.fsum(ratio for ratio, _ in ratios if math.isfinite(ratio))
        found = []
        for watch, (ratio, measured) in zip(self.watches, ratios, strict=True):
            if ratio <= NOTHING:
                continue
            share = ratio / whole if math.isfinite(ratio) else 1.0
            group, local, spread = watch.group, watch.local(), watch.values.spread()
            made = group.node, group.value, group.target, group.floats
            faults = faults_of(watch, local)
            fit = _fit_zero_point(watch, spread) if any(fault.kind == MISSING for fault in faults) else None
            if fit is not None:
                faults = tuple(fault for fault in faults if fault.kind != MISSING)
            told = explain(watch, local, spread, faults)
            if fit is not None and not faults:
                told = "clipped", f"{fit.text}; {_clipping_text(spread)}", fit
            found.append(Cost(*made, ratio, share, measured, local, spread, *told, faults))
        return _order([self._of_scales(cost, found) for cost in found])

    def _of_scales(self, cost: Cost, costs: Sequence[Cost]) -> Cost:
        """The cost with the fault of a bias that is too large replaced by one of the input's scale, if that scale is
        wider than the values need: an operator without a bias scale multiplies its bias by the input's scale."""
        known = {part.name for each in costs for part in _corrections(each)}
        faults = []
        for fault in cost.faults:
            wide = [n for n in fault.follows if fault.factor > 1 and self._is_wider(n, fault.factor)]
            scale = self.mixed.b.constant(wide[0]) if len(wide) == 1 and known.isdisjoint(fault.follows) else None
            faults.append(fault if scale is None else scale_factor(wide[0], scale, fault.factor))
        if all(mine is other for mine, other in zip(faults, cost.faults, strict=True)):
            return cost
        text = "; ".join(dict.fromkeys(fault.text for fault in faults))
        return replace(cost, faults=tuple(faults), reason=faults[0].kind, why=text)

    def _is_wider(self, name: str, factor: float) -> bool:
        """Do all values that were observed with a scale fit into a range that is `factor` times smaller?"""
        seen = [one for watch in self.watches for one in watch.ranges() if one[0].names[0] == name]
        return bool(seen) and all(one.can_narrow(factor, low, high) for one, low, high in seen)


_WIDE, _FEW, _CHANNELS = 2.0, 4.0, 8.0
"""Factors: fewer codes used than exist, fewer than other values use, and the unevenness of channels."""
_LOST = 0.001
"""The share of an input's values outside the range above which clipping is the cause."""
_SEEN = 0.01
"""The magnitude in steps that small values must reach to count: rounding smaller ones away is no loss."""
_OFF = 4.0
"""The factor by which a scale must be too small or too large to be called wrong: calibration deviates by less."""

_BOTH = 1.5
"""A range more than this many times as wide as the values is one for both signs."""
_PART = 0.01
"""A fault below this share of a group's noise is not reported as its reason."""

_BOUNDED = {
    "Softmax": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0),
}  # fmt: skip
"""Operators whose codes by convention cover all their possible results, whatever the values are."""


def _order(costs: Sequence[Cost]) -> list[Cost]:
    """Sort the costs: nodes with faults first; a fault that follows from another node's scale comes after that node."""
    parts = [(part.name, cost) for cost in costs for part in _corrections(cost)]
    sources = {name: cost.ratio for name, cost in reversed(parts)}
    found: list[tuple[float, Cost]] = []
    for cost in costs:
        follow = [fault for fault in cost.faults if not sources.keys().isdisjoint(fault.follows)]
        faults = tuple(fault for fault in cost.faults if fault not in follow)
        names = [name for fault in follow for name in fault.follows if name in sources]
        ratio = min([cost.ratio, *(sources[name] * (1 - _PART) for name in names)])
        why = f"{cost.why}; this follows from {names[0]}" if names and not faults else cost.why
        found.append((ratio, replace(cost, faults=faults, why=why) if follow else cost))
    order = sorted(found, key=lambda each: (not each[1].faults, -each[0], -each[1].local.noise.ratio))
    return [cost for _, cost in order]


def _corrections(cost: Cost) -> list[Correction]:
    """The corrections that a cost suggests."""
    found = [part for fault in cost.faults for part in fault.corrections]
    return [*found, *(cost.fit.corrections if cost.fit else ())]


def faults_of(watch: Watch, local: Local) -> tuple[Fault, ...]:
    """The faults of a group that make up a notable share of its noise, the costliest first."""
    least = _PART * local.noise.ratio * watch.sums.signal
    found = [(energy, one.fault) for energy, one in zip(watch.of_constants, watch.verdicts, strict=True)]
    found.append((watch.energy["structure"], watch.structure[1] if watch.structure else None))
    wrong = [(energy, fault) for energy, fault in found if fault is not None and energy >= least]
    return tuple(fault for _, fault in sorted(wrong, key=lambda each: -each[0]))


def explain(watch: Watch, local: Local, spread: Spread, faults: Sequence[Fault] = ()) -> tuple[str, str, Fit | None]:
    """Explain a group's noise. Returns the reason (a fault or the largest part of the noise), its text, and the scale
    that the values need, if that is the reason, else None.
    """
    if faults:
        return faults[0].kind, _faults_text(watch, faults), None
    inputs = watch.input_spread()
    reason, why = _reason(watch, local, spread, inputs)
    inside = max(local.clipped, local.rounding, local.weights, local.bias, local.structure) < local.input
    fit = _fit(watch, local, spread, inside) if reason in ("clipped", "range-unused", "rounding", "input") else None
    return reason, f"{fit.text}; {why}" if fit else why, fit


def _fit(watch: Watch, local: Local, spread: Spread, inside: bool) -> Fit | None:
    """The scale or zero point that would make much less noise; None if none is known."""
    key = watch.noisiest() if inside else None
    seen = watch.inputs[key].spread() if key is not None else spread
    path = watch.group.own[key] if key is not None else watch.group.rounds
    lossy = seen.beyond > 0 and (key is not None or local.clipped > local.rounding)
    low, high = min(seen.least, 0.0), max(seen.most, 0.0)
    bounds = [_BOUNDED[node.op_type] for node in watch.group.floats if node.op_type in _BOUNDED]
    if bounds and not inside:
        low, high = min(low, bounds[0][0]), max(high, bounds[0][1])
    found = fit_parameters(watch.b, path, low, high, lossy, inside)
    if found is None:
        return None
    noise = watch.noise[key] if key is not None else watch.energy["clipped"] + watch.energy["rounding"]
    return found if noise > GAIN * seen.count * found.wanted**2 / 12 else None


def _is_numeric(array: Array) -> bool:
    """Whether an array holds numbers."""
    return array.dtype.kind not in "OUS" and not is_compound(array)


def _fit_zero_point(watch: Watch, spread: Spread) -> Fit | None:
    """The zero point that fits, if the stored one clips values that a Relu keeps and keeps values that it removes.

    A quantizer folds a Relu into a range that begins at 0, so a wrong zero point looks like a missing Relu. If the
    Relu is really missing, the range covers both signs, and its steps are twice as large.
    """
    low, high = min(spread.least, 0.0), max(spread.most, 0.0)
    if not spread.beyond or spread.range is None or spread.range.step * (spread.range.codes - 1) > _BOTH * (high - low):
        return None
    found = fit_parameters(watch.b, watch.group.rounds, low, high, True, False)
    return found if found is not None and found.wanted == found.now else None


def _reason(watch: Watch, local: Local, spread: Spread, inputs: Spread | None) -> tuple[str, str]:
    """The largest part of a group's error: its cause, and a sentence."""
    names = ("clipped", "rounding", "weights", "bias", "structure", "input")
    parts = {name: getattr(local, name) for name in names}
    largest = max(parts, key=lambda part: parts[part])
    if local.before > parts[largest] and not watch.group.rounds:
        steps = f", in steps of {before.step:.3g}" if (before := watch.group.before) is not None else ""
        return "first-rounds", f"only the first model rounds here{steps}"
    if _is_shared_rounding(watch, local, largest):
        return "both-round", _both_round_text(watch)
    if largest == "clipped" and spread.range is not None:
        return "clipped", _clipping_text(spread)
    if largest == "weights" and watch.group.inside:
        return "operator", _quantized_before_text(watch, local)
    if largest == "structure" or (largest == "weights" and watch.constants is None):
        return "operator", _unlike(watch, local)
    if largest in ("weights", "bias"):
        return _rounded_constants(watch, local, largest)
    if largest == "input" and inputs is not None:
        reason, why = ("clipped", _clipping_text(inputs)) if inputs.beyond > _LOST * inputs.count else _rounding(inputs)
        return (
            "input" if reason == "rounding" else reason,
            f"its input {why}" if reason == "clipped" else f"its input: {why}",
        )
    return _rounding(spread)


def _quantized_before_text(watch: Watch, local: Local) -> str:
    """The text for a node whose weights or inputs the first model quantizes as well."""
    apart = f"{decibels(local.weights):.1f} dB apart before rounding"
    return f"{watch.a.model.label} quantizes weights or inputs of this node; the results are {apart}"


def _faults_text(watch: Watch, faults: Sequence[Fault]) -> str:
    """The text of the faults; adds that the weights are fine if they are."""
    weights = [v.sqnr for v in watch.verdicts if v.constant.role == "weights" and v.fault is None]
    fine = f" (weights {weights[0]:.1f} dB, fine)" if weights and weights[0] >= FINE else ""
    return "; ".join(dict.fromkeys(fault.text for fault in faults)) + fine


def _unlike(watch: Watch, local: Local) -> str:
    """The text for operators that compute something else for an unknown reason."""
    if watch.constants is None or not watch.constants.found:
        apart = decibels(local.structure or local.weights)
        return f"computes something else: the results are {apart:.1f} dB apart before rounding"
    label = watch.a.model.label
    return (
        f"differs from {label} even with the same constants: the results are {decibels(local.structure):.1f} dB apart"
    )


def _rounded_constants(watch: Watch, local: Local, largest: str) -> tuple[str, str]:
    """The reason and text for noise from rounding weights or biases."""
    roles = ("bias",) if largest == "bias" else ("weights", "constant")
    verdict = min((v for v in watch.verdicts if v.constant.role in roles), key=lambda v: v.sqnr)
    ratio = watch.channel_ratio() if largest == "weights" else 1.0
    if ratio >= _CHANNELS:
        return "weights-per-tensor", f"one scale for weights whose channels differ {ratio:.3g}-fold in size"
    if verdict.sqnr >= FINE:
        rounding = local.rounding + local.clipped + local.input
        others = f", rounding {decibels(rounding):.1f} dB" if rounding else ""
        return "precision", f"nothing is wrong: {verdict.what} {verdict.sqnr:.1f} dB{others}"
    bits = watch.group.node.attributes.get("bits")
    kind = f"{bits} bits" if isinstance(bits, int) else verdict.rounded
    return largest, f"{verdict.what} rounded to {kind}, {verdict.sqnr:.1f} dB"


def _is_shared_rounding(watch: Watch, local: Local, largest: str) -> bool:
    """Is rounding the largest part of the noise, and does the first model itself round as much?"""
    if largest not in ("clipped", "rounding") or not local.before:
        return False
    if watch.range is not None and watch.range == watch.group.before:
        return True
    return largest == "rounding" and local.rounding <= _OFF**2 * local.before


def _both_round_text(watch: Watch) -> str:
    """The text for values that both models round, each in its own way."""
    own, before, codes = watch.range, watch.group.before, f"{watch.moved} of {watch.sums.count} elements"
    if own is not None and before is not None and own != before:
        return f"both models round here, with different steps ({own.step:.3g}, in the first model {before.step:.3g}); {codes} differ"
    return f"both models round here; {codes} get different codes from values at most {watch.apart:.2g} apart"


def _clipping_text(spread: Spread) -> str:
    """The sentence about a range that clips."""
    assert spread.range is not None
    past = spread.most - spread.range.high >= spread.range.low - spread.least
    value, end = (spread.most, spread.range.high) if past else (spread.least, spread.range.low)
    return f"clips {percent(spread.beyond / spread.count, 2)} of the values: they reach {value:.4g}, the range ends at {end:.4g}"


def _rounding(spread: Spread) -> tuple[str, str]:
    """The cause and the sentence about rounding errors."""
    known = spread.range
    if known is None:
        return "rounding", f"rounding; values up to {max(abs(spread.least), abs(spread.most)):.4g}"
    used = spread.codes(math.inf)
    far = spread.most if abs(spread.most) > abs(spread.least) else spread.least
    if (
        spread.near is not None
        and spread.near >= _SEEN * known.step
        and (few := spread.codes(spread.near)) * _FEW <= min(used, known.codes)
    ):
        where = f"{few} of {known.codes} codes; others reach {far:.4g}"
        return "far-values", f"{percent(spread.nearby)} of the values share {where}"
    steps = f"step {known.step:.3g}, typical value {spread.typical:.3g}"
    if used * _WIDE <= known.codes:
        return "range-unused", f"values use {used} of {known.codes} codes: {steps}"
    few = spread.codes(spread.bulk)
    if few * _FEW <= used:
        return "outliers", f"{percent(BULK)} of the values share {few} of {known.codes} codes; outliers reach {far:.4g}"
    return "rounding", f"rounding to {used} codes: {steps}"
