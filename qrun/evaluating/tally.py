"""Running sums over a model's samples, from which its scores can be computed at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappush, heapreplace
from math import isfinite

import numpy as np

from qrun.declare.frozen import frozen
from qrun.documents.record import optional_field
from qrun.evaluating.job import Done
from qrun.evaluating.statistics import Blocks, Interval, Pairs, decibels_of, mean_of, wilson
from qrun.ir import Array

WORST = 5
"""The number of samples to name on which a model and its reference differ most."""
_SHARES = {"same": ("rows", "argmax"), "equal": ("elements", "equal")}
"""Columns that count agreements in a sample: the column of the total, and the metric."""
CONFUSED = 20
"""The most pairs of confused classes that are listed."""
_OF_OUTPUTS = (*_SHARES, "mean_abs")


TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "argmax": "argmax agreement",
    "equal": "equal elements",
    "mean_abs": "mean abs error",
    "max_abs": "max abs error",
    "cosine": "cosine",
    "sqnr_db": "SQNR",
    "next_token": "next-token agreement",
    "kl_mean": "KL divergence, mean",
    "kl_p99": "KL divergence, p99",
    "perplexity": "perplexity",
}
"""The name of each metric in tables."""


@frozen
class Score:
    """A metric of one model with the limits of its 95 % interval.

    metric: ``top1``, ``top5``, ``argmax``, ``equal`` (for strings), ``mean_abs``, ``max_abs`` (over all samples,
            without limits), ``cosine``, ``sqnr_db`` or a custom metric; for language models ``next_token``, ``kl_mean``
            and ``kl_p99`` (in nats, without limits) and ``perplexity``. output: "" for labels and custom metrics.
    low, high: None if the samples do not determine limits: if there is only one, or if all are alike.
    count:  the number of samples; for language models, of tokens that are predicted.
    """

    metric: str
    output: str
    value: float
    low: float | None
    high: float | None
    count: int


@frozen
class PairedDifference:
    """The difference between a model and another on the same samples.

    to: the other model's place. metric: ``top1``, ``perplexity`` or a custom metric; value: this model's minus the
    other's, with its limits, None as in `Score`. won, lost: samples that only this model, or only the other, has right;
    p: McNemar's p. These are None for other metrics.
    """

    to: int
    metric: str
    value: float
    low: float | None
    high: float | None
    won: int | None = None
    lost: int | None = None
    p: float | None = None


@frozen
class Confusion:
    """The number of samples of one class that a model takes for another one, with the names of both if known."""

    label: int
    predicted: int
    samples: int
    name: str = optional_field("")
    predicted_name: str = optional_field("")


@frozen
class ClassScore:
    """How many samples a class has, and the share of them that a model has right. name: "" if it is not known.
    taken_for: the class that it is confused with most often, None if it never is."""

    label: int
    samples: int
    top1: float
    name: str = optional_field("")
    taken_for: Confusion | None = optional_field(None)


@frozen
class Apart:
    """A sample on which a model and its reference differ. sqnr_db: over all outputs; None if not finite.
    inputs: the SPECs that pass the sample to other commands; () if there are none."""

    place: int
    sample: str
    same_argmax: bool | None
    max_abs: float
    sqnr_db: float | None
    inputs: tuple[str, ...] = optional_field(())


class Tally:
    """The running sums of one model."""

    def __init__(self, outputs: Sequence[str]) -> None:
        self.outputs = outputs
        self.blocks: dict[str, Blocks] = {}
        self.largest: dict[str, float] = {}
        self.worst: list[tuple[bool, float, int, Apart]] = []
        self.answers: Counter[tuple[int, int | None]] = Counter()
        self.failed = 0

    def add(self, done: Done, columns: Mapping[str, Array], names: Mapping[int, str]) -> None:
        for group, columns_of_group in _groups(columns).items():
            if group not in self.blocks:
                self.blocks[group] = Blocks(columns_of_group)
            rows = np.stack([columns[name] for name in columns_of_group], axis=1)
            self.blocks[group].add(rows)
        for name, values in columns.items():
            kind, _, _ = name.partition("#")
            if kind == "max_abs":
                seen = values[~np.isnan(values)]
                self.largest[name] = max([self.largest.get(name, 0.0), *seen.tolist()])
        self._part(done, columns, names)
        if "label#0" in columns:
            for label, predicted in zip(columns["label#0"], columns["predicted#0"], strict=True):
                if label == label:
                    self.answers[int(label), None if predicted != predicted else int(predicted)] += 1

    def classes(self, names: Sequence[str]) -> tuple[ClassScore, ...]:
        """The score of every class that samples have, in order. names: of the classes, as far as known."""
        totals: Counter[int] = Counter()
        for (label, _), count in self.answers.items():
            totals[label] += count
        taken: dict[int, Confusion] = {}
        for pair in self.confused(names):
            taken.setdefault(pair.label, pair)
        return tuple(
            ClassScore(
                label, totals[label], self.answers[label, label] / totals[label], _name(names, label), taken.get(label)
            )
            for label in sorted(totals)
        )

    def confused(self, names: Sequence[str]) -> tuple[Confusion, ...]:
        """All pairs of classes that are confused, the most frequent first."""
        pairs = [(label, got, count) for (label, got), count in self.answers.items() if got not in (label, None)]
        return tuple(
            Confusion(label, got or 0, count, _name(names, label), _name(names, got or 0))
            for label, got, count in sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1] or 0))
        )

    def _part(self, done: Done, columns: Mapping[str, Array], names: Mapping[int, str]) -> None:
        signals = [name for name in columns if name.startswith("signal#")]
        if not signals:
            return
        places = range(done.first, done.first + done.count)
        for at, place in enumerate(places):
            ends = [name.partition("#")[2] for name in signals if not np.isnan(columns[name][at])]
            noise = sum(columns[f"noise#{end}"][at] for end in ends)
            if noise != noise or not noise:
                continue
            signal = sum(columns[f"signal#{end}"][at] for end in ends)
            first = f"same#{ends[0]}"
            same = bool(columns[first][at] == columns[f"rows#{ends[0]}"][at]) if first in columns else None
            ratio = noise / signal if signal else float("inf")
            apart = Apart(
                place,
                names.get(place, f"sample {place}"),
                same,
                max(float(columns[f"max_abs#{end}"][at]) for end in ends),
                float(-10 * np.log10(ratio)) if isfinite(ratio) else None,
            )
            entry = (same is False, ratio, -place, apart)
            if len(self.worst) < WORST:
                heappush(self.worst, entry)
            elif entry > self.worst[0]:
                heapreplace(self.worst, entry)

    def shares(self) -> Iterator[Score]:
        """The scores that are shares, which are fast to compute."""
        return (score for group in self.blocks if (score := self._share(group)) is not None)

    def scores(self) -> Iterator[Score]:
        for group, blocks in self.blocks.items():
            name, end = self._output(group), group.partition("#")[2]
            count, share = blocks.count, self._share(group)
            if share is not None:
                yield share
            elif group.startswith("mean_abs#"):
                yield _score("mean_abs", name, blocks.interval(mean_of(group)), count)
                yield Score("max_abs", name, self.largest.get(f"max_abs#{end}", 0.0), None, None, count)
                yield _score("cosine", name, blocks.interval(mean_of(f"cosine#{end}")), count)
                yield _score("sqnr_db", name, blocks.interval(decibels_of(f"signal#{end}", f"noise#{end}")), count)
            else:
                yield _score(group, "", blocks.interval(mean_of(group)), count)

    def _share(self, group: str) -> Score | None:
        """The score of a group of columns that counts right answers; None for other groups."""
        kind, _, end = group.partition("#")
        blocks, name = self.blocks[group], self._output(group)
        if kind in _SHARES:
            of, metric = _SHARES[kind]
            return _score(metric, name, blocks.share(group, f"{of}#{end}"), blocks.count)
        if kind in ("top1", "top5"):
            return _score(kind, name, wilson(round(blocks.totals()[group]), blocks.count), blocks.count)
        return None

    def _output(self, group: str) -> str:
        """The name of the output that a group belongs to; "" for custom metrics and labels."""
        kind, _, end = group.partition("#")
        return self.outputs[int(end)] if end.isdigit() and kind in _OF_OUTPUTS else ""


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if label < len(names) else ""


def _score(metric: str, output: str, found: Interval, count: int) -> Score:
    return Score(metric, output, found.value, *found.known, count)


def _groups(columns: Mapping[str, Array]) -> dict[str, tuple[str, ...]]:
    """Groups of columns that make one score and are summed together, by their first column."""
    made: dict[str, tuple[str, ...]] = {}
    for name in columns:
        kind, _, end = name.partition("#")
        if kind in _SHARES:
            made[name] = (name, f"{_SHARES[kind][0]}#{end}")
        elif kind == "mean_abs":
            made[name] = tuple(f"{each}#{end}" for each in ("mean_abs", "cosine", "signal", "noise"))
        elif kind not in ("rows", "elements", "max_abs", "cosine", "signal", "noise", "label", "predicted"):
            made[name] = (name,)
    return made


class Paired:
    """Counts of two models on the same samples: which had the label right, and sums of custom metrics."""

    def __init__(self) -> None:
        self._counts = [[0, 0], [0, 0]]
        self._own: dict[str, Blocks] = {}

    def add(self, first: Mapping[str, Array], second: Mapping[str, Array]) -> None:
        """Add both models' columns for the same samples."""
        for name in first.keys() & second.keys():
            a, b = first[name], second[name]
            if name == "top1":
                known = ~(np.isnan(a) | np.isnan(b))
                for right in (0, 1):
                    for other in (0, 1):
                        self._counts[right][other] += int(((a == right) & (b == other) & known).sum())
            elif "#" not in name and name != "top5":
                self._own.setdefault(name, Blocks(("a", "b"))).add(np.stack([a, b], axis=1))

    def differences(self, to: int) -> Iterator[PairedDifference]:
        """Yield the differences, second model minus first. to: the first model's place."""
        (neither, second), (first, both) = self._counts
        pairs = Pairs(both, first, second, neither)
        if pairs.count:
            found = pairs.difference()
            yield PairedDifference(to, "top1", found.value, found.low, found.high, second, first, pairs.p_value())
        for name, blocks in sorted(self._own.items()):
            found = blocks.interval(lambda sums: np.divide(sums["b"] - sums["a"], sums["count"]))
            yield PairedDifference(to, name, found.value, *found.known)
