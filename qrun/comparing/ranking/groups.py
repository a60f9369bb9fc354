"""Rounding groups: one node of a quantized model with its weights and quantizers, to run inside the float model."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np

from qrun.comparing.differences import Columns, columns
from qrun.comparing.matching.graph import Path, Reals, Region, region
from qrun.comparing.matching.match import Matching, is_absorbed, kind
from qrun.comparing.matching.operators import moves
from qrun.comparing.sides import Values
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node

_STAYS = ("MaxPool", "GlobalMaxPool", "Relu", "Concat")
"""Operators that, like those that move elements, only return values that their inputs have, or 0."""


@frozen
class Limits:
    """The real numbers that codes can represent: from low to high in steps. codes: the number of codes."""

    low: float
    high: float
    step: float
    codes: int


@frozen
class RoundingGroup:
    """The operators and quantizers of the second model that compute one matched value from other matched values.

    value:   the value that the group computes; region: its operators. node: the node that names the group.
    target:  the matching tensor of the first model, after that model's own quantizers; raw: before them.
    before:  the range of these quantizers, see `limits`; None if there are none, or some has several scales.
    inputs:  maps each value that the group reads to the tensor of the first model.
    rounds:  quantizers of the result; own: quantizers in front of an operator's input, by (operator, input).
    weights: the places of the DequantizeLinear nodes of constants.
    there:   the first model's operators that correspond to the group; floats: their nodes.
    inside:  do the first model's operators read quantized weights or inputs?
    whole:   can the group be computed from its inputs? If not, only the rounding of its result is known.
    pairs:   maps places of the second model's operators to the corresponding ones of the first.
    """

    value: str
    target: str
    raw: str
    before: Limits | None
    node: Node
    region: Region
    inputs: Mapping[str, str]
    rounds: Path
    own: Mapping[tuple[int, int], Path]
    weights: tuple[int, ...]
    there: Region
    floats: tuple[Node, ...]
    inside: bool
    whole: bool
    pairs: Mapping[int, int]

    @property
    def quantizes(self) -> bool:
        """Does the group round anything?"""
        return bool(self.rounds or self.own or self.weights)


def groups(a: Reals, b: Reals, matching: Matching) -> list[RoundingGroup]:
    """The groups of `b` that quantize something, or that may compute something else than `a`, in order."""
    names = {m.value: m.other for m in matching.matches}
    theirs = {m.other for m in matching.matches}
    opaque = {index for index in b.operators if b.nodes[index] in b.opaque}
    found = []
    for value, other in names.items():
        inner = region(b, value, set(names))
        rounds = b.rounds.get(value, ())
        own, weights = dict(_own_quantizers(b, inner)), _weights(b, inner)
        if not weights and not own and _repeats(b, inner, rounds):
            rounds = ()
        there = region(a, other, theirs)
        shown = inner.operators and inner.whole and there.whole and opaque.isdisjoint(inner.operators)
        if not (rounds or own or weights or shown):
            continue
        floats = tuple(a.nodes[index] for index in there.operators)
        inside = bool(_weights(a, there)) or any(_own_quantizers(a, there))
        found.append(
            RoundingGroup(
                value,
                a.name_after_rounding(other),
                other,
                limits(a, a.rounds.get(other, ())),
                _naming_node(b, inner, rounds),
                inner,
                {v: a.name_after_rounding(names[v]) for v in inner.inputs},
                rounds,
                own,
                weights,
                there,
                floats,
                inside,
                inner.whole,
                _pairs(a, b, inner, there, matching.pairs),
            )
        )
    return found


def _pairs(a: Reals, b: Reals, inner: Region, there: Region, found: Mapping[int, int]) -> dict[int, int]:
    """Pairs of operators in both regions: the matched ones, then the remaining ones by kind, in order."""
    pairs = {p: found[p] for p in inner.operators if found.get(p) in there.operators}
    free = [q for q in there.operators if q not in pairs.values()]
    for index in inner.operators:
        if index not in pairs:
            other = next((q for q in free if kind(a.nodes[q]) == kind(b.nodes[index])), None)
            if other is not None:
                pairs[index] = other
                free.remove(other)
    return pairs


def _weights(b: Reals, inner: Region) -> tuple[int, ...]:
    """The places of the DequantizeLinear nodes from which the group's constants come."""
    fixed = (b.quantized_constant(name) for index in inner.operators for name in b.constant_inputs(index))
    return tuple(dict.fromkeys(index for index in fixed if index is not None))


def _own_quantizers(b: Reals, inner: Region) -> Iterator[tuple[tuple[int, int], Path]]:
    """Yield the quantizers in front of inputs of the group's operators that do not belong to another group's result."""
    for index in inner.operators:
        for at, source in b.inputs(index):
            path = source.path
            if source.value in inner.inputs:
                path = path[len(b.rounds.get(source.value, ())) :]
            if path:
                yield (index, at), path


def _repeats(b: Reals, inner: Region, rounds: Path) -> bool:
    """Does the group only move values and round them again with the parameters with which they are already rounded?"""
    if len(rounds) != 1 or not inner.operators or not inner.inputs:
        return False
    if not all(moves(b.nodes[p]) or b.nodes[p].op_type in _STAYS for p in inner.operators):
        return False
    read = [s.value for p in inner.operators for at, s in b.inputs(p) if not (at and moves(b.nodes[p]))]
    before = [b.rounds.get(value, ()) for value in read if value in inner.inputs]
    return bool(before) and all(path and b.same_parameters(path[-1], rounds[0]) for path in before)


def _naming_node(b: Reals, inner: Region, rounds: Path) -> Node:
    """The node that names a group: the first operator that is no bias or activation, else the first or a quantizer."""
    places = [p for p in inner.operators if not is_absorbed(b, p)] or list(inner.operators) or list(rounds)
    node = b.nodes[places[0]]
    return next((n for n in b.model.nodes if n.index == node.index), node)


Operation = Callable[[list["Array | None"]], tuple[Array, ...]]
"""A replacement for an operator: computes the results from the inputs."""
NO_PATHS: Mapping[tuple[int, int], Path] = {}


def simulate(
    b: Reals, group: RoundingGroup, values: Values, *, own: bool = True, instead: Mapping[int, Operation] = {}
) -> Array:
    """Compute the group on the first model's values (by tensor), without rounding its result.

    own: apply the quantizers in front of its operators. instead: replacements for operators, by place.
    """
    if not group.region.operators:
        return values[group.target]
    held = {value: values[name] for value, name in group.inputs.items()}
    return operate(b, group.region, held, group.own if own else NO_PATHS, instead)[group.value]


def operate(
    reals: Reals,
    inner: Region,
    held: dict[str, Array],
    paths: Mapping[tuple[int, int], Path],
    instead: Mapping[int, Operation] = {},
) -> dict[str, Array]:
    """Compute the operators of a region. Adds their results to `held`, the values that the region reads.

    paths: the quantizers in front of operators' inputs, by (operator, input). instead: as for `simulate`.
    """
    for index in inner.operators:
        args: list[Array | None] = []
        for at, name in enumerate(reals.nodes[index].inputs):
            source = reals.sources.get(name)
            path = paths.get((index, at), ())
            args.append(reals.constant(name) if source is None else reals.pass_through(held[source.value], path))
        made = instead[index](args) if index in instead else reals.compute(index, args)
        held.update((n, array) for n, array in zip(reals.nodes[index].outputs, made, strict=False) if n)
    return held


def limits(b: Reals, rounds: Path) -> Limits | None:
    """The narrowest range of some quantizers; None if there are none, or some has no known single scale."""
    found = [known for index in rounds if (known := _range(b, index))]
    return min(found, key=lambda r: r.high - r.low) if found and len(found) == len(rounds) else None


def _range(b: Reals, index: int) -> Limits | None:
    """The range of a quantizer's output; None if its scale is not one constant."""
    node = b.nodes[index]
    scale = b.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    zero = b.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    dtype = zero.dtype if zero is not None else np.dtype(np.uint8)
    if scale is None or scale.size != 1:
        return None
    try:
        info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    step = float(scale.reshape(-1)[0])
    first = float(zero.astype(np.float64).reshape(-1)[0]) if zero is not None else 0.0
    low, high = int(info.min), int(info.max)
    return Limits((low - first) * step, (high - first) * step, step, high - low + 1)


class Mixed:
    """Runs the first model with groups of the second in place of its operators. mixed: parts of outputs, by name."""

    def __init__(self, a: Reals, b: Reals) -> None:
        self.a, self.b = a, b
        self.outputs = [v.name for v in a.model.outputs]
        self.mixed: dict[str, tuple[Columns, ...]] = {}

    def clean(self, feeds: Values) -> dict[str, Array]:
        """Run the first model as it is and return all its tensors."""
        values = dict(feeds)
        for index in self.a.running:
            node = self.a.nodes[index]
            made = self._compute_node(index, values)
            for name, array in zip(node.outputs, made, strict=False):
                if name:
                    values[name] = array
                    self.a.budget.hold(array)
        for name in self.outputs:
            if name not in values:
                values[name] = self.a.constant(name)  # type: ignore[assignment]
            if name not in self.mixed:
                self.mixed[name] = columns(values[name])
        return values

    def parts(self, outputs: Sequence[Array]) -> list[Array]:
        """The outputs, with each output that mixes ranges split into its parts."""
        found = []
        for name, array in zip(self.outputs, outputs, strict=True):
            found += [part.of(array) for part in self.mixed[name]] or [array]
        return found

    def run(self, clean: Values, active: Sequence[RoundingGroup], known: Values | None = None) -> list[Array]:
        """Run with the groups `active` in place and return the outputs. known: known results of groups, by target."""
        at = {group.target: group for group in active}
        now: dict[str, Array] = {}
        for group in active:
            if group.target not in self.a.producers:
                now[group.target] = self.compute(group, clean, known)
        needed = self._needed_tensors(at)
        for index in self.a.running:
            node = self.a.nodes[index]
            group_here = next((at[name] for name in node.outputs if name in at), None)
            if group_here is not None and needed.isdisjoint(node.outputs):
                continue
            values = ChainMap(now, clean)  # type: ignore[arg-type]
            if group_here is not None:
                now[group_here.target] = self.compute(group_here, values, known)
            elif any(name in now for name in (*node.inputs, *node.captured)) and not needed.isdisjoint(node.outputs):
                made = self._compute_node(index, values)
                now.update((name, array) for name, array in zip(node.outputs, made, strict=False) if name)
        return [now.get(name, clean[name]) for name in self.outputs]

    def compute(self, group: RoundingGroup, values: Values, known: Values | None = None) -> Array:
        """The group's rounded result from these values; the target's rounded value if the group cannot be computed."""
        if known is not None and group.target in known:
            return known[group.target]
        like = values[group.target]
        made = simulate(self.b, group, values) if group.whole else like
        return self.b.pass_through(made, group.rounds).reshape(like.shape)

    def _needed_tensors(self, at: Mapping[str, RoundingGroup]) -> set[str]:
        """The tensors that the outputs need if groups compute the targets in `at`."""
        needed = set(self.outputs)
        for index in reversed(self.a.running):
            node = self.a.nodes[index]
            if needed.isdisjoint(node.outputs):
                continue
            group = next((at[name] for name in node.outputs if name in at), None)
            needed.update((*node.inputs, *node.captured) if group is None else group.inputs.values())
        return needed

    def _compute_node(self, index: int, values: Values) -> tuple[Array, ...]:
        """Compute a node of the first model from these values."""
        node = self.a.nodes[index]
        around = {name: array for name in node.captured if (array := self._value(name, values)) is not None}
        return self.a.compute(index, [self._value(name, values) for name in node.inputs], around)

    def _value(self, name: str, values: Values) -> Array | None:
        """The array of a tensor: computed, or a constant."""
        if not name:
            return None
        return values[name] if name in self.a.sources else self.a.constant(name)
