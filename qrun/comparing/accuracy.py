"""A quantized model against the model that it was made of: how accurate each tensor is, and which nodes cost most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qrun.comparing.accuracy_sums import Noise, Sums
from qrun.comparing.matching import Match, Matching, match
from qrun.comparing.matching_graph import Reals, Source
from qrun.comparing.ranking import Cost, Ranking, Suggestion
from qrun.comparing.ranking_groups import groups
from qrun.comparing.ranking_local import Local
from qrun.differences import Tolerance, difference
from qrun.errors import CallError
from qrun.feeds import check_feeds
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.types import shape_text
from qrun.memory import Budget, default_limit
from qrun.profiling import Progress
from qrun.session import Session

SECONDS = 60.0
"""Time for the measured effects of nodes, all runs together."""
_SHARE = 0.7
"""Of that time, for the single nodes; the rest is for the lists of nodes to keep in float."""


@dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """An output of the graph in both models.

    agreed, decided: of how many decisions (argmax along the last axis longer than 1) how many are the same; None for
                     outputs that decide nothing.
    equal:           within the tolerance in all runs.
    """

    name: str
    other: str
    noise: Noise
    agreed: int | None
    decided: int | None
    equal: bool


@dataclass(frozen=True, slots=True)
class TensorAccuracy:
    """A tensor of the quantized model and the float tensor that it stands for.

    node:      that makes it in the quantized model; None for a graph input.
    reference: the other model's tensor; how: how they were matched, see `Match`.
    cumulated: the quantized model's run against the other one's; local: its own quantization alone, None where it has
               none. A tensor that no run shows has no cumulated noise.
    """

    tensor: str
    node: Node | None
    reference: str
    how: str
    cumulated: Noise | None
    local: Local | None


@dataclass(frozen=True, slots=True)
class Left:
    """A tensor without a counterpart. side: ``reference`` or ``quantized``; index: of the node that makes it.

    inside: the other model's node that does this step with others; "" if nothing there stands for the tensor.
    """

    side: str
    tensor: str
    index: int
    inside: str

    @property
    def why(self) -> str:
        other = "quantized" if self.side == "reference" else "reference"
        if self.inside:
            return f"computed inside {self.inside}"
        return f"no operator of the {other} model makes it from what it is made of"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Everything known about two models and their runs.

    costs:    the ranking, dearest first; nodes without any effect are not in it.
    measured: quantized nodes whose effect at the outputs was measured alone, of `quantizing`.
    partly:   nodes of which only the rounding of their result is known, as they cannot be computed from tensors of the
              reference: what they read is not matched.
    """

    reference: Model
    quantized: Model
    runs: int
    feeds: Mapping[str, Array]
    outputs: tuple[OutputAccuracy, ...]
    tensors: tuple[TensorAccuracy, ...]
    left: tuple[Left, ...]
    costs: tuple[Cost, ...]
    measured: int
    quantizing: int
    partly: tuple[Node, ...]
    suggestion: Suggestion | None
    tolerance: Tolerance

    @property
    def equal(self) -> bool:
        """Are all outputs within the tolerance?"""
        return all(output.equal for output in self.outputs)


def accuracy(
    reference: Model,
    quantized: Model,
    feeds: Sequence[Mapping[str, Array]],
    *,
    tolerance: Tolerance = Tolerance(),  # noqa: B008
    max_memory: int | None = None,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> Accuracy:
    """Compare two models with the same inputs, over all feeds.

    feeds:      at least one set of arrays by input name; one at a time is in memory with all its tensors.
    max_memory: bytes that a run may hold; None: 80 % of what is free.
    seconds:    for measuring what nodes do to the outputs, all feeds together; see `Effects` for what is left out where
                that does not suffice.
    Raises CallError if the inputs differ or no feed is given, RunError if a run fails, UnsupportedError.
    """
    _check(reference, quantized, feeds)
    session = Session(quantized, fuse=False, max_memory=max_memory)
    for one in (Session(reference, fuse=False, max_memory=max_memory), session):
        one.run(feeds[0])
    a, b = (Reals(replace(model, defaults=_fed(model, feeds))) for model in (reference, quantized))
    found = match(a, b)
    ranking = Ranking(a, b, groups(a, b, found), len(feeds), seconds * _SHARE, progress)
    rows = _Rows(a, b, found, session, tolerance)
    for one in feeds:
        a.budget = b.budget = Budget(default_limit if max_memory is None else max_memory)
        clean = ranking.mixed.clean(check_feeds(reference, one))
        rows.add(one, clean)
        ranking.add(clean)
    costs = ranking.costs()
    suggestion = ranking.suggest(costs, feeds, seconds * (1 - _SHARE))
    locals_ = {watch.group.value: watch.local() for watch in ranking.watches}
    return Accuracy(reference, quantized, len(feeds), feeds[0], tuple(rows.outputs()), tuple(rows.tensors(locals_)),
                    tuple(_left(a, b, found)), tuple(costs), ranking.effects.measured, len(ranking.watches),
                    tuple(w.group.node for w in ranking.watches if not w.group.whole), suggestion,
                    tolerance)  # fmt: skip


def _check(reference: Model, quantized: Model, feeds: Sequence[Mapping[str, Array]]) -> None:
    if not feeds:
        raise CallError("QR001", "missing-input", "no inputs were given", fixes=["-i FILE, or --random"])
    mine, theirs = ({v.name: v for v in m.inputs} for m in (reference, quantized))
    where = [reference.label, quantized.label]
    if mine.keys() != theirs.keys():
        raise CallError("QR003", "input-mismatch", "the two models have inputs of different names", where=where,
                        facts=[("first", ", ".join(mine) or "none"), ("second", ", ".join(theirs) or "none")],
                        fixes=["compare a model with one that was made of it, or rename the inputs"])  # fmt: skip
    for name, one in mine.items():
        other = theirs[name]
        if one.dtype != other.dtype or not _fit(one.shape, other.shape):
            raise CallError("QR003", "input-mismatch", f"input {name!r} differs between the two models", where=where,
                            facts=[("first", str(one)), ("second", str(other))],
                            fixes=["compare models with inputs of one type and shape"])  # fmt: skip
    if len(reference.outputs) != len(quantized.outputs):
        raise CallError("QR003", "output-mismatch", "the two models have different numbers of outputs", where=where,
                        facts=[("first", ", ".join(v.name for v in reference.outputs)),
                               ("second", ", ".join(v.name for v in quantized.outputs))],
                        fixes=["compare a model with one that was made of it"])  # fmt: skip


def _fed(model: Model, feeds: Sequence[Mapping[str, Array]]) -> tuple[TensorType, ...]:
    """The inputs with a default that are fed; the others are constants."""
    return tuple(value for value in model.defaults if any(value.name in one for one in feeds))


def _fit(one: tuple[int | str | None, ...] | None, other: tuple[int | str | None, ...] | None) -> bool:
    if one is None or other is None:
        return True
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(x == y or not isinstance(x, int) or not isinstance(y, int) for x, y in pairs)


class _Rows:
    """Sums for each pair of tensors and each pair of outputs."""

    def __init__(self, a: Reals, b: Reals, found: Matching, session: Session, tolerance: Tolerance) -> None:
        self.a, self.b, self.session, self.tolerance = a, b, session, tolerance
        self.matches = found.matches
        self.sums = {m.value: Sums() for m in found.matches}
        self.shown = {m.value: shown for m in found.matches if (shown := self._shown(m.value))}
        mine, theirs = [v.name for v in a.model.outputs], [v.name for v in b.model.outputs]
        self.ends = [(n, n) for n in mine] if set(mine) == set(theirs) else list(zip(mine, theirs, strict=True))
        self.end_sums = [Sums() for _ in self.ends]
        self.agreed = [[0, 0] for _ in self.ends]
        self.equal = [True] * len(self.ends)

    def _shown(self, value: str) -> tuple[str, tuple[int, ...]] | None:
        """The tensor of the quantized model's run that tells the value, and the quantizer whose codes it holds."""
        own = {n for node in self.b.model.nodes for n in node.outputs} | {v.name for v in self.b.model.inputs}
        path = self.b.rounds.get(value, ())
        codes = self.b.codes.get(Source(value, path))
        if path and codes in own:
            return codes, path[-1:]
        name = self.b.settled(value)
        return (name, ()) if name in own else None

    def add(self, feeds: Mapping[str, Array], clean: Mapping[str, Array]) -> None:
        names = dict.fromkeys([*(name for name, _ in self.shown.values()), *(n for _, n in self.ends)])
        inputs = {v.name for v in (*self.b.model.inputs, *self.b.model.defaults)}
        got = {**feeds, **self.session.run(feeds, [n for n in names if n not in inputs])}
        for m in self.matches:
            want = clean[self.a.settled(m.other)]
            if m.value not in self.shown or want.dtype.kind not in "fiub":
                continue
            name, path = self.shown[m.value]
            array = self.b.meaning(got[name], path[0]) if path else got[name]
            if array.size != want.size:
                self.shown.pop(m.value)
            else:
                self.sums[m.value].add(array, want)
        for at, (mine, theirs) in enumerate(self.ends):
            self._end(at, got[theirs], clean[mine])

    def _end(self, at: int, got: Array, want: Array) -> None:
        if got.shape != want.shape:
            raise CallError("QR003", "output-mismatch", f"output {self.ends[at][0]!r} has another shape in the second model",
                            where=[self.a.model.label, self.b.model.label],
                            facts=[("first", shape_text(want.shape)), ("second", shape_text(got.shape))])  # fmt: skip
        self.equal[at] &= difference(got, want, self.tolerance).equal
        if want.dtype.kind not in "fiub":
            return
        self.end_sums[at].add(got, want)
        axes = [axis for axis, size in enumerate(want.shape) if size > 1]
        if want.dtype.kind == "f" and axes and want.size and len(axes) < 4:
            same = np.argmax(got, axes[-1]) == np.argmax(want, axes[-1])
            self.agreed[at][0] += int(np.count_nonzero(same))
            self.agreed[at][1] += int(np.size(same))

    def outputs(self) -> Iterator[OutputAccuracy]:
        for (mine, theirs), sums, (agreed, decided), equal in zip(
            self.ends, self.end_sums, self.agreed, self.equal, strict=True
        ):
            yield OutputAccuracy(mine, theirs, sums.result(), agreed if decided else None, decided or None, equal)

    def tensors(self, locals_: Mapping[str, Local]) -> Iterator[TensorAccuracy]:
        for m in self.matches:
            place = self.b.made.get(m.value)
            node = None if place is None else self.b.nodes[place]
            noise = self.sums[m.value].result() if m.value in self.shown else None
            yield TensorAccuracy(self._name(m), node, m.other, m.how, noise, locals_.get(m.value))

    def _name(self, m: Match) -> str:
        return self.shown[m.value][0] if m.value in self.shown else m.value


def _left(a: Reals, b: Reals, found: Matching) -> Iterator[Left]:
    for side, rest in (("reference", found.left), ("quantized", found.right)):
        yield from (Left(side, one.value, one.index, one.inside) for one in rest)
