"""Matches the tensors of two models, such as a float model and its quantized version, by walking both graphs in step.

The walk ignores quantizers and reads quantized operators as float ones. Operators that a quantization tool absorbs (an
activation into the output's range, a normalization into the weights, a bias added by its own node) may be missing on
either side. Two operators pair if they are of one kind, read paired tensors, and have the same constants up to
quantization. Where that finds nothing more, the walk starts again from weights and from the graph's outputs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from qrun.comparing.matching.graph import Reals, region
from qrun.declare.frozen import frozen, keys
from qrun.ir import Array, Node

ALIKE = 0.9
"""The smallest cosine at which two constants count as the same, up to quantization."""
_KINDS = {"Gemm": "MatMul", "Flatten": "Reshape", "Squeeze": "Reshape", "Unsqueeze": "Reshape"}
_ABSORBED = ("Relu", "Clip", "BatchNormalization", "Add", "Sub", "Mul", "Div", "Reshape", "Pad")
COMMUTATIVE = ("Add", "Mul")
_ACTIVATIONS = {
    "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu", "Sigmoid",
    "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
}  # fmt: skip
_ENOUGH = 16
"""The fewest weights whose count must be equal in both models."""
_FEW = 4
"""The fewest numbers per channel whose direction is meaningful."""


def kind(node: Node) -> str:
    """The kind of a node: its operator, with one name for operators that do the same, such as MatMul for Gemm."""
    name = _KINDS.get(node.op_type, node.op_type)
    return f"{node.domain}::{name}" if node.domain else name


def is_absorbed(reals: Reals, index: int) -> bool:
    """May another model have merged this operator into the one before: into its range, its weights or its bias?"""
    node = reals.nodes[index]
    return not node.domain and kind(node) in _ABSORBED and len(list(reals.inputs(index))) == 1


def likeness(a: Reals, first: int, b: Reals, second: int) -> float | None:
    """The mean absolute cosine between the output channels of two operators' largest constants.

    It ignores the scales of channels, since a folded BatchNormalization changes them. None if neither operator has a
    constant of several numbers, 0 if only one has or if the sizes differ.
    """
    one, other = _weights(a, first), _weights(b, second)
    if one is None and other is None:
        return None
    if one is None or other is None or one.size != other.size:
        return 0.0
    if one.shape != other.shape or one[0].size < _FEW:
        one, other = one.reshape(1, -1), other.reshape(1, -1)
    one, other = (x.reshape(len(x), -1).astype(np.float64) for x in (one, other))
    with np.errstate(all="ignore"):
        size = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        cosines = np.abs((one * other).sum(1)) / size
    known = cosines[np.isfinite(cosines)]
    return float(known.mean()) if known.size else 0.0


def are_activations(one: Node, other: Node) -> bool:
    """Are both activation functions, so that one may have replaced the other by mistake?"""
    return not (one.domain or other.domain) and {one.op_type, other.op_type} <= _ACTIVATIONS


def can_be(a: Reals, first: int, b: Reals, second: int) -> bool:
    """May the operators correspond, by the number of their weights? Yes if it is equal, small, or none on a side."""
    one, other = _weights(a, first), _weights(b, second)
    return one is None or other is None or one.size == other.size or min(one.size, other.size) < _ENOUGH


def agreement(a: Reals, first: int, b: Reals, second: int) -> float:
    """The share of attributes and integer constants that are equal."""
    one, other = a.nodes[first].attributes, b.nodes[second].attributes
    equal = [str(one.get(name)) == str(other.get(name)) for name in {*one, *other}]
    indices = [
        [c for n in r.constant_inputs(p) if (c := r.constant(n)) is not None and c.dtype.kind in "iu"]
        for r, p in ((a, first), (b, second))
    ]
    equal += [np.array_equal(x, y) for x, y in zip(*indices, strict=False)]
    return sum(equal) / len(equal) if equal else 1.0


def _weights(reals: Reals, index: int) -> Array | None:
    """The largest float constant of the operator at `index`: of products and convolutions with output channels first,
    else [1, n]. None if it has at most one number."""
    node = reals.nodes[index]
    constants = ((reals.constant(name), at) for at, name in enumerate(node.inputs))
    found = [(value, at) for value, at in constants if value is not None and value.dtype.kind == "f"]
    if not found:
        return None
    weights, at = max(found, key=lambda pair: pair[0].size)
    if weights.size < 2:
        return None
    if kind(node) == "MatMul" and weights.ndim > 1 and at < 2:
        transposed = node.op_type == "Gemm" and node.attributes.get("transA" if at == 0 else "transB", 0)
        return weights if bool(transposed) == (at == 1) else np.moveaxis(weights, -1, 0)
    if node.op_type == "ConvTranspose" and weights.ndim > 1 and weights.size:
        group = node.attributes.get("group", 1)  # stored as [input channels, output channels / group, ...]
        groups = group if isinstance(group, int) and group > 0 and len(weights) % group == 0 else 1
        each = weights.reshape(groups, -1, *weights.shape[1:])
        return each.swapaxes(1, 2).reshape(-1, each.shape[1], *weights.shape[2:])
    return weights if kind(node) in ("Conv", "ConvTranspose") else weights.reshape(1, -1)


_FAR = 6
"""The most operators in a row that may be missing."""
_MANY = 4
"""The number of inputs from which a commutative operator's inputs are only matched in order."""
_ENOUGH, _CLEAR = 16, 0.05
"""The fewest weights that identify an operator by themselves, and their least lead in likeness over all others."""


@frozen
class Match:
    """A value of the second model and its counterpart in the first, `other`.

    how: ``input``, ``output``, ``weights`` (same constants), ``operator`` (same kind, same inputs), ``reader`` (read by
         matched operators).
    """

    value: str
    other: str
    how: str


@frozen
class Left:
    """A tensor without a counterpart. side: ``reference`` or ``quantized``; index: index of the node that makes it.

    inside: the other model's node that includes this step; "" if no node there does.
    """

    KEYS = keys("side tensor node=index inside=holder why")

    side: str
    tensor: str
    index: int
    inside: str

    @property
    def holder(self) -> str | None:
        """The operator that the unmatched node is computed inside of; None if there is none."""
        return self.inside or None

    @property
    def why(self) -> str:
        """Why the node has no counterpart."""
        other = "quantized" if self.side == "reference" else "reference"
        if self.inside:
            return f"computed inside {self.inside}"
        return f"no operator of the {other} model computes it from the same tensors"


@frozen
class Matching:
    """All matches in the second model's order, and the tensors of the first and of the second model without a match.

    pairs: maps places of operators of the second model to their counterparts in the first.
    """

    matches: tuple[Match, ...]
    left: tuple[Left, ...]
    pairs: Mapping[int, int]


def match(first: Reals, second: Reals) -> Matching:
    """Match the values of two models with the same inputs."""
    return _Matcher(first, second).run()


class _Matcher:
    """Matches two models. starts: for each value of the second model, the earliest value of the first that it may
    match; operators that the second model absorbed may lie between that and the final match."""

    def __init__(self, first: Reals, second: Reals) -> None:
        self.a, self.b = first, second
        names = {v.name for v in first.model.inputs}
        self.starts = {v.name: v.name for v in second.model.inputs if v.name in names}
        self.how = dict.fromkeys(self.starts, "input")
        self.pairs: dict[int, int] = {}
        self.taken: set[int] = set()
        self.skipped: set[int] = set()

    def run(self) -> Matching:
        """Match until nothing changes."""
        done = -1
        while done != len(self.starts) + len(self.pairs):
            done = len(self.starts) + len(self.pairs)
            self._forward()
            if len(self.pairs) + len(self.skipped) < len(self.b.operators) and not self._anchor():
                self._backward()
        return self._settle()

    # Pairing operators

    def _forward(self) -> None:
        """Match operators of the second model whose inputs are all matched."""
        for index in self.b.operators:
            if index in self.pairs or index in self.skipped:
                continue
            inputs = [source.value for _, source in self.b.inputs(index)]
            if not inputs or any(value not in self.starts for value in inputs):
                continue
            found = self._best(index, inputs)
            if found is not None:
                self._pair(index, found[0], "weights" if found[1] >= ALIKE else "operator")
            elif (other := self._replacement(index, inputs)) is not None:
                self._pair(index, other, "operator")
            elif is_absorbed(self.b, index):
                self.skipped.add(index)
                self._start(self.b.nodes[index].outputs[0], self.starts[inputs[0]], self.how[inputs[0]])

    def _pair(self, index: int, other: int, how: str) -> None:
        """Match operator `index` of the second model with `other` of the first, and their outputs."""
        self.pairs[index] = other
        self.taken.add(other)
        for mine, theirs in zip(self.b.nodes[index].outputs, self.a.nodes[other].outputs, strict=False):
            if mine and theirs:
                self._start(mine, theirs, how)

    def _start(self, value: str, other: str, how: str) -> None:
        """Match a tensor of the second model with one of the first; `how`: by what."""
        if value not in self.starts:
            self.starts[value], self.how[value] = other, how

    def _may_be(self, value: str) -> dict[str, int]:
        """The values of the first model that `value` may match, with the number of absorbed operators each implies."""
        first = self.starts[value]
        found, pending = {first: 0}, deque([first])
        while pending:
            at = pending.popleft()
            for read in self.a.readers.get(at, ()):
                if found[at] < _FAR and self._is_free(read.operator):
                    output = self.a.nodes[read.operator].outputs[0]
                    if output not in found:
                        found[output] = found[at] + 1
                        pending.append(output)
        return found

    def _best(self, index: int, inputs: Sequence[str]) -> tuple[int, float] | None:
        """The operator of the first model that best matches this one, and the likeness of their constants; or None."""
        able = [self._may_be(value) for value in inputs]
        swap = kind(self.b.nodes[index]) in COMMUTATIVE
        choices = [other for choice in (able if swap else able[:1]) for other in choice]
        reads = {read.operator: None for other in choices for read in self.a.readers.get(other, ())}
        ranked = []
        for other in reads:
            if other < 0 or other in self.taken or kind(self.a.nodes[other]) != kind(self.b.nodes[index]):
                continue
            if not can_be(self.a, other, self.b, index):
                continue
            depth = self._depth(other, able, swap)
            if depth is None:
                continue
            alike = likeness(self.a, other, self.b, index)
            if alike is not None and alike < ALIKE and is_absorbed(self.b, index):
                continue
            hint = self.a.nodes[other].outputs[0] in self.b.nodes[index].outputs[0]
            likely = round(0.5 if alike is None else alike, 2)
            ranked.append(((likely, -depth, agreement(self.a, other, self.b, index), hint), -other, alike or 0.0))
        if not ranked:
            return None
        _, other, alike = max(ranked)
        return -other, alike

    def _replacement(self, index: int, inputs: Sequence[str]) -> int | None:
        """Another activation function in place of this one, if each is the only reader of the matched value."""
        reads = [self.b.readers[inputs[0]], self.a.readers.get(self.starts[inputs[0]], [])]
        if len(inputs) != 1 or any(len(found) != 1 for found in reads):
            return None
        other = reads[1][0].operator
        free = other >= 0 and other not in self.taken
        return other if free and are_activations(self.a.nodes[other], self.b.nodes[index]) else None

    def _depth(self, other: int, able: Sequence[dict[str, int]], swap: bool) -> int | None:
        """The number of absorbed operators that these inputs imply if they are those of `other`; None if impossible."""
        values = tuple(source.value for _, source in self.a.inputs(other))
        if len(values) != len(able):
            return None
        orders = list(permutations(values)) if swap and len(values) < _MANY else [values]
        fits = [
            sum(choice[value] for choice, value in zip(able, order, strict=True))
            for order in orders
            if all(value in choice for choice, value in zip(able, order, strict=True))
        ]
        return min(fits, default=None)

    # Starting anew

    def _anchor(self) -> bool:
        """Pair the first operator whose weights match exactly one free operator. Returns whether there was one."""
        free = [o for o in self.a.operators if o not in self.taken]
        for index in self.b.operators:
            if index in self.pairs or index in self.skipped or not self._is_weighty(index):
                continue
            node = self.b.nodes[index]
            able = [o for o in free if kind(self.a.nodes[o]) == kind(node)]
            alike = sorted(((likeness(self.a, o, self.b, index) or 0.0, o) for o in able), reverse=True)
            if alike and alike[0][0] >= ALIKE and (len(alike) < 2 or alike[1][0] < alike[0][0] - _CLEAR):
                self._pair(index, alike[0][1], "weights")
                self._pair_inputs(index, alike[0][1])
                return True
        return False

    def _is_weighty(self, index: int) -> bool:
        """Whether an operator has a large constant."""
        return any((c := self.b.constant(n)) is not None and c.size >= _ENOUGH for n in self.b.constant_inputs(index))

    def _pair_inputs(self, index: int, other: int) -> None:
        """Match the inputs of two matched operators."""
        mine, theirs = ([s.value for _, s in r.inputs(p)] for r, p in ((self.b, index), (self.a, other)))
        if len(mine) == len(theirs):
            for value, counterpart in zip(mine, theirs, strict=True):
                self._take_back(value, counterpart)
                self._start(value, counterpart, "reader")

    def _take_back(self, value: str, counterpart: str) -> None:
        """Pair a skipped operator after all, if a reader shows that it corresponds to the maker of `counterpart`."""
        index, other = self.b.made.get(value), self.a.made.get(counterpart)
        if index not in self.skipped or other is None or other in self.taken or self.starts[value] == counterpart:
            return
        if kind(self.b.nodes[index]) == kind(self.a.nodes[other]):
            self.skipped.remove(index)
            del self.starts[value]
            self._pair(index, other, "reader")

    def _backward(self) -> None:
        """Pair operators backwards, from the graph's outputs and from values matched by their readers, through the
        makers of each pair's inputs.
        """
        ends = [(v, o) for v, o in self._outputs() if v not in self.starts]
        pending = ends + [(v, o) for v, o in self.starts.items() if self.how[v] == "reader"]
        seen = set()
        while pending:
            value, other = pending.pop()
            index, counterpart = self.b.made.get(value), self.a.made.get(other)
            if index is None or counterpart is None or (value, other) in seen or index in self.pairs:
                continue
            seen.add((value, other))
            if kind(self.b.nodes[index]) == kind(self.a.nodes[counterpart]) and counterpart not in self.taken:
                self._pair(index, counterpart, "reader")
                self._pair_inputs(index, counterpart)
                pending += [(s.value, self.starts[s.value]) for _, s in self.b.inputs(index) if s.value in self.starts]
            elif is_absorbed(self.a, counterpart):
                pending.append((value, next(s.value for _, s in self.a.inputs(counterpart))))
        for value, other in ends:
            self._start(value, other, "output")

    def _outputs(self) -> Iterator[tuple[str, str]]:
        """Pairs of output values with the same name, or, if the names differ, at the same position."""
        mine, theirs = self.b.model.outputs, self.a.model.outputs
        by_name = {v.name for v in mine} == {v.name for v in theirs}
        for index, output in enumerate(mine):
            name = output.name if by_name else theirs[index].name if index < len(theirs) else ""
            if name in self.a.sources and output.name in self.b.sources:
                yield self.b.sources[output.name].value, self.a.sources[name].value

    # Settling

    def _settle(self) -> Matching:
        """The final matches: of several candidates for a value, its paired readers choose the one that they read."""
        outputs = dict(self._outputs())
        found: dict[str, Match] = {}
        for value in [*(v.name for v in self.b.model.inputs), *self.b.made]:
            if value not in self.starts:
                continue
            other = self._choose(value, outputs)
            how = "output" if value in outputs and outputs[value] == other else self.how[value]
            if other not in found or how != "reader":
                found[other] = Match(value, other, how)
        matches = tuple(sorted(found.values(), key=lambda m: self.b.made.get(m.value, -1)))
        left = (*self._unmatched(matches, "reference"), *self._unmatched(matches, "quantized"))
        return Matching(matches, left, self.pairs)

    def _choose(self, value: str, outputs: dict[str, str]) -> str:
        """The tensor of the first model that fits a tensor best: the one that readers agree on."""
        able = self._may_be(value)
        votes: Counter[str] = Counter()
        if outputs.get(value) in able:
            votes[outputs[value]] += 1
        for read in self.b.readers.get(value, ()):
            if read.operator in self.pairs:
                theirs = {s.value for _, s in self.a.inputs(self.pairs[read.operator])}
                votes.update(other for other in able if other in theirs)
        if votes:
            return max(votes, key=lambda other: (votes[other], able[other]))
        at = self.starts[value]
        while len(reads := self.a.readers.get(at, [])) == 1 and self._is_free(reads[0].operator):
            at = self.a.nodes[reads[0].operator].outputs[0]
        return at

    def _is_free(self, operator: int) -> bool:
        """Whether an operator may be absorbed by another."""
        return operator >= 0 and operator not in self.taken and is_absorbed(self.a, operator)

    def _unmatched(self, matches: Sequence[Match], side: str) -> Iterator[Left]:
        """Yield the tensors of one side without a match: steps inside a matched node, or without any counterpart."""
        reals, other = (self.a, self.b) if side == "reference" else (self.b, self.a)
        known = {m.other if side == "reference" else m.value: m for m in matches}
        inside: dict[int, Match] = {}
        for value, found in known.items():
            places = region(reals, value, set(known)).operators
            if sum(not is_absorbed(reals, index) for index in places) < 2:
                inside |= {index: found for index in places if index not in inside}
        for value, index in reals.made.items():
            if value in known or not reals.readers.get(value):
                continue
            yield Left(side, value, reals.nodes[index].index, _label(other, inside.get(index), side))


def _label(reals: Reals, holder: Match | None, side: str) -> str:
    """The label of the node of `reals` that makes the matched value; "" for no match."""
    if holder is None:
        return ""
    index = reals.made.get(holder.value if side == "reference" else holder.other)
    return "the graph input" if index is None else reals.nodes[index].label
