"""The tensors and outputs of two models, pair by pair, over all runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qrun.comparing.columns import Columns, PartAccuracy, PartSums
from qrun.comparing.differences import ErrorSums, Noise, Tolerance, class_axis, difference, integral
from qrun.comparing.matching.graph import Reals, Source
from qrun.comparing.matching.match import Match, Matching
from qrun.comparing.meanings import Meaning, TensorScales, meaning
from qrun.comparing.ranking.effects import mean_ratio
from qrun.comparing.ranking.local import Local
from qrun.comparing.sides import Values
from qrun.declare.frozen import frozen, keys, through
from qrun.errors import CallError
from qrun.ir import Array, Node
from qrun.ir.compound import form_difference, numbers
from qrun.ir.types import shape_text
from qrun.running.session import Session


@frozen
class OutputAccuracy:
    """An output of the graph in both models.

    agreed, decided: of how many samples how many get the same class; None of outputs that are no scores of classes.
    equal:           within the tolerance in all runs.
    counted:         does the tolerance count in steps: is it an integer tensor, or dequantized in the second model?
    parts:           where it mixes ranges, each part by itself.
    codes:           does one model give codes of unknown scale, and the other real numbers? Then it has no noise and is
                     not equal.
    """

    KEYS = {
        **keys("name other"),
        **through("noise", Noise.KEYS),
        **keys("argmax_agreed=agreed argmax_total=decided codes equal parts"),
    }

    name: str
    other: str
    noise: Noise
    agreed: int | None
    decided: int | None
    equal: bool
    counted: bool
    codes: bool
    parts: tuple[PartAccuracy, ...] = ()


@frozen
class TensorAccuracy:
    """A tensor of the quantized model and the float tensor that it stands for.

    node:      that makes it in the quantized model; None for a graph input.
    reference: the other model's tensor; how: how they were matched, see `Match`.
    cumulated: the quantized model's run against the other one's; local: its own quantization alone, None where it has
               none. A tensor that no run shows has no cumulated noise.
    codes:     is it a tensor of codes whose scale is unknown? Then it has no cumulated noise either.
    """

    KEYS = keys("tensor node=node.index reference matched=how codes cumulated local=local.noise")

    tensor: str
    node: Node | None
    reference: str
    how: str
    cumulated: Noise | None
    local: Local | None
    codes: bool = False


class Rows:
    """Sums for each pair of tensors and each pair of outputs.

    mixed:   the parts of outputs that mix ranges, by name of the first model's.
    reached: noise to signal ratio at the outputs and parts (their mean) after each run.
    """

    def __init__(
        self,
        a: Reals,
        b: Reals,
        found: Matching,
        session: Session,
        tolerance: Tolerance,
        mixed: Mapping[str, Sequence[Columns]],
    ) -> None:
        self.a, self.b, self.session, self.tolerance = a, b, session, tolerance
        self.matches = found.matches
        self.sums = {m.value: ErrorSums() for m in found.matches}
        self.unknown: set[str] = set()
        self.shown = {m.value: shown for m in found.matches if (shown := _telling(b, m.value))}
        mine, theirs = [v.name for v in a.model.outputs], [v.name for v in b.model.outputs]
        self.ends = [(n, n) for n in mine] if set(mine) == set(theirs) else list(zip(mine, theirs, strict=True))
        self.end_sums = [ErrorSums() for _ in self.ends]
        self.mixed = mixed
        self.parts: list[list[PartSums]] = [[] for _ in self.ends]
        self.agreed = [[0, 0] for _ in self.ends]
        self.equal = [True] * len(self.ends)
        self.counted = [False] * len(self.ends)
        self.coded = [False] * len(self.ends)
        self.meanings = [(meaning(a.model, one), meaning(b.model, other)) for one, other in self.ends]
        self.reached: list[float] = []

    def run(self, feeds: Values) -> dict[str, Array]:
        """The quantized model's own run."""
        scales = [name for _, told in self.meanings if told is not None for name in told.names]
        names = dict.fromkeys([*(name for name, _ in self.shown.values()), *(n for _, n in self.ends), *scales])
        there = {v.name for v in (*self.b.model.inputs, *self.b.model.defaults)} | set(self.b.model.constants)
        return {**feeds, **self.session.values(feeds, [n for n in names if n not in there])}

    def pairs(self, got: Values, clean: Values) -> Iterator[tuple[Match, Array, Array]]:
        """For each match that runs of both models show: the quantized model's value and the reference's."""
        for m in self.matches:
            want = clean[self.a.settled(m.other)]
            if m.value not in self.shown or want.dtype.kind not in "fiub":
                continue
            name, path = self.shown[m.value]
            array = self.b.meaning(got[name], path[0]) if path else got[name]
            if integral(array.dtype) and not integral(want.dtype):
                real = _real(array, meaning(self.b.model, name), {**self.b.model.constants, **got})
                if real is None:
                    self.shown.pop(m.value)
                    self.unknown.add(m.value)
                    continue
                array = real
            if array.size != want.size:
                self.shown.pop(m.value)
            else:
                yield m, array, want

    def add(self, feeds: Values, clean: Values) -> None:
        got = self.run(feeds)
        for m, array, want in self.pairs(got, clean):
            self.sums[m.value].add(array, want)
        first, second = ({**side.model.constants, **run} for side, run in ((self.a, clean), (self.b, got)))
        for at, (mine, theirs) in enumerate(self.ends):
            self._end(at, got[theirs], clean[mine], second, first, feeds)
        self.reached.append(mean_ratio(self.judged_sums))

    @property
    def judged_sums(self) -> list[ErrorSums]:
        """Sums of each output, or of its parts."""
        pairs = zip(self.end_sums, self.parts, strict=True)
        return [sums for whole, parts in pairs for sums in ([part.sums for part in parts] or [whole])]

    def _end(self, at: int, got: Array, want: Array, theirs: Values, mine: Values, feeds: Values) -> None:
        form = form_difference(got, want)
        got, want = numbers(got), numbers(want)
        if form or got.shape != want.shape:
            ends = form[::-1] if form else (shape_text(want.shape), shape_text(got.shape))
            where = [self.a.model.label, self.b.model.label]
            message = f"output {self.ends[at][0]!r} has another shape in the second model"
            raise mismatch(message, where, *ends, name="output-mismatch")
        whole = integral(got.dtype)
        got, want, step = self._comparable(at, got, want, theirs, mine)
        self.counted[at] |= whole or step is not None
        if self.coded[at]:
            self.equal[at] = False
            return
        self.equal[at] &= difference(got, want, self.tolerance, step).equal
        if want.dtype.kind not in "fiub":
            return
        self.end_sums[at].add(got, want)
        if not self.parts[at]:
            self.parts[at] = [PartSums(part, self.ends[at][0]) for part in self.mixed.get(self.ends[at][0], ())]
        for one in self.parts[at]:
            one.add(got, want)
        samples = next((feed.shape[0] for feed in feeds.values() if feed.ndim), None)
        axis = class_axis(want.shape, samples) if want.dtype.kind == "f" and not self.parts[at] else None
        if axis is not None and want.size:
            same = np.argmax(got, axis) == np.argmax(want, axis)
            self.agreed[at][0] += int(np.count_nonzero(same))
            self.agreed[at][1] += int(np.size(same))

    def _comparable(
        self, at: int, got: Array, want: Array, theirs: Values, mine: Values
    ) -> tuple[Array, Array, Array | None]:
        """Both arrays, as real numbers if one of them holds real numbers or if their codes differ in scale or zero
        point; and the steps of `got`, if known."""
        spoken, told = self.meanings[at]
        if integral(got.dtype) and integral(want.dtype) and not _apart(told, theirs, spoken, mine):
            return got, want, None
        first, second = _real(got, told, theirs), _real(want, spoken, mine)
        if first is None or second is None:
            self.coded[at] = True
            return got, want, None
        kind = got.dtype if not integral(got.dtype) else want.dtype if not integral(want.dtype) else np.float32
        own = told.step(got, theirs) if told is not None and integral(got.dtype) else None
        step = TensorScales(self.b.model, theirs).step(self.ends[at][1], got) if own is None else own
        return first.astype(kind), second.astype(kind), step

    def outputs(self) -> Iterator[OutputAccuracy]:
        for at, (mine, theirs) in enumerate(self.ends):
            agreed, decided = self.agreed[at]
            told = (
                self.equal[at],
                self.counted[at],
                self.coded[at],
                tuple(one.result() for one in self.parts[at]),
            )
            yield OutputAccuracy(
                mine, theirs, self.end_sums[at].result(), agreed if decided else None, decided or None, *told
            )

    def tensors(self, locals_: Mapping[str, Local]) -> Iterator[TensorAccuracy]:
        for m in self.matches:
            place = self.b.made.get(m.value)
            node = None if place is None else self.b.nodes[place]
            noise = self.sums[m.value].result() if m.value in self.shown else None
            telling = _telling(self.b, m.value)
            name = telling[0] if telling is not None else m.value
            yield TensorAccuracy(
                name, node, self._reference(m.other), m.how, noise, locals_.get(m.value), m.value in self.unknown
            )

    def _reference(self, value: str) -> str:
        """The name of the reference's own tensor for a value: the value's name, or that of the codes that hold it."""
        telling = _telling(self.a, value)
        return value if telling is None or value in _own(self.a) else telling[0]


def mismatch(message: str, where: Sequence[str], first: str, second: str, *fixes: str, name: str = "") -> CallError:
    """Two models that cannot be compared. where: their labels; first, second: what each has."""
    facts = [("first", first), ("second", second)]
    return CallError("QR003", message, where=where, facts=facts, fixes=fixes, name=name)


def _real(array: Array, told: Meaning | None, values: Values) -> Array | None:
    """Real numbers as they are, codes as what they stand for; None if nothing tells that."""
    if not integral(array.dtype):
        return array
    return told.real(array, values) if told is not None else None


def _apart(a: Meaning | None, a_values: Values, b: Meaning | None, b_values: Values) -> bool:
    """Are the scales and zero points of both sides known, and different?"""
    one, other = (m.parameters(v) if m is not None else None for m, v in ((a, a_values), (b, b_values)))
    if one is None or other is None:
        return False
    return any(not np.array_equal(x.reshape(-1), y.reshape(-1)) for x, y in zip(one, other, strict=True))


def _own(reals: Reals) -> set[str]:
    """The tensors of a model itself, without those of unfolded nodes."""
    return {n for node in reals.model.nodes for n in node.outputs} | {v.name for v in reals.model.inputs}


def _telling(reals: Reals, value: str) -> tuple[str, tuple[int, ...]] | None:
    """The tensor of a model's run that holds a value, if any, and the quantizer of its codes, () if it has none."""
    own, path = _own(reals), reals.rounds.get(value, ())
    codes = reals.codes.get(Source(value, path))
    if path and codes in own:
        return codes, path[-1:]
    name = reals.settled(value)
    return (name, ()) if name in own else None
