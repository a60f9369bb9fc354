"""Running sums over the tokens that a language model predicts: perplexity, agreement and KL divergence, with intervals
over sequences, and for each position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

import numpy as np

from qrun.declare.frozen import frozen
from qrun.documents.record import optional_field
from qrun.evaluating.job import Done
from qrun.evaluating.statistics import Blocks, Interval
from qrun.evaluating.tally import Apart, ClassScore, Confusion, PairedDifference, Score
from qrun.ir import Array

PERCENTILE = 99
"""The percentile of the divergences that is reported beside their mean."""


@frozen
class PositionScore:
    """The scores at one position of the sequences.

    position: of the token whose successor is predicted, from 0. tokens: the sequences that have it. nll: the mean
    negative log-likelihood in nats; its exponential is the perplexity. kl: the mean divergence in nats; agreement: the
    share of equal next tokens; both None without a reference.
    """

    position: int
    tokens: int
    nll: float
    kl: float | None = optional_field(None)
    agreement: float | None = optional_field(None)


class TokenTally:
    """The running sums of one model. output: the name of its logits.

    It has the methods of `Tally`; a language model has no classes and no list of worst samples.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._values: dict[str, list[Array]] = {}
        self._sums: dict[str, Array] = {}
        self._counts = np.zeros(0, np.int64)
        self.blocks: dict[str, Blocks] = {}
        self.worst: list[tuple[bool, float, int, Apart]] = []
        self.failed = self.tokens = 0

    def add(self, done: Done, columns: Mapping[str, Array], names: Mapping[int, str]) -> None:
        if not columns:
            return
        held = columns["held"].astype(np.int64)
        self.tokens += int(held.sum())
        self._counts = _wider(self._counts, max(held.tolist(), default=0))
        for length in held[held > 0].tolist():
            self._counts[:length] += 1
        for name, rows in columns.items():
            if name != "held":
                self._add_column(name, rows, held)

    def _add_column(self, name: str, rows: Array, held: Array) -> None:
        sums = self._sums[name] = _wider(self._sums.get(name, np.zeros(0)), len(self._counts))
        blocks = self.blocks.setdefault(name, Blocks((name, "held")))
        for row, length in zip(rows, held.tolist(), strict=True):
            if length:
                values = row[:length].copy()
                self._values.setdefault(name, []).append(values)
                sums[:length] += values
                blocks.add(np.array([[values.sum(), float(length)]]))

    def mean(self, name: str) -> float:
        """The mean of a column over all tokens."""
        return float(self._all(name).mean())

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log-likelihood."""
        with np.errstate(over="ignore"):
            return float(np.exp(self._all("nll").mean()))

    def shares(self) -> Iterator[Score]:
        """The agreement with the reference."""
        if "same_token" in self.blocks:
            found = self.blocks["same_token"].share("same_token", "held")
            yield Score("next_token", self._output, found.value, *found.known, self.tokens)

    def scores(self) -> Iterator[Score]:
        yield from self.shares()
        if "kl" in self.blocks:
            found = self.blocks["kl"].interval(lambda sums: np.divide(sums["kl"], sums["held"]))
            yield self._score("kl_mean", self.mean("kl"), found)
            yield Score(
                "kl_p99", self._output, float(np.percentile(self._all("kl"), PERCENTILE)), None, None, self.tokens
            )
        if "nll" in self.blocks:
            found = self.blocks["nll"].interval(lambda sums: np.exp(np.divide(sums["nll"], sums["held"])))
            yield self._score("perplexity", self.perplexity, found)

    def positions(self) -> tuple[PositionScore, ...]:
        """The scores at every position."""
        with np.errstate(invalid="ignore"):
            means = {name: (sums / self._counts).tolist() for name, sums in self._sums.items()}
        none = [None] * len(self._counts)
        rows = zip(means.get("nll", ()), means.get("kl", none), means.get("same_token", none), strict=False)
        return tuple(PositionScore(at, int(self._counts[at]), *row) for at, row in enumerate(rows))

    def classes(self, names: object) -> tuple[ClassScore, ...]:
        return ()

    def confused(self, names: object) -> tuple[Confusion, ...]:
        return ()

    def _all(self, name: str) -> Array:
        """The values of a column, float64 [tokens], in order."""
        values = self._values[name]
        if len(values) > 1:
            values[:] = [np.concatenate(values)]
        return values[0]

    def _score(self, metric: str, value: float, found: Interval) -> Score:
        limits = found.known if isfinite(value) else (None, None)
        return Score(metric, self._output, value, *limits, self.tokens)


class TokenPairs:
    """The difference in perplexity between two models on the same sequences. first, second: their tallies."""

    def __init__(self, first: TokenTally, second: TokenTally) -> None:
        self._first, self._second = first, second
        self._blocks = Blocks(("first", "second", "held"))

    def add(self, first: Mapping[str, Array], second: Mapping[str, Array]) -> None:
        """Add both models' columns for the same sequences."""
        if first and second:
            for one, other, held in zip(first["nll"], second["nll"], first["held"].astype(int).tolist(), strict=True):
                if held:
                    self._blocks.add(np.array([[one[:held].sum(), other[:held].sum(), float(held)]]))

    def differences(self, to: int) -> Iterator[PairedDifference]:
        """Yield the difference, second model minus first. to: the first model's place."""
        if self._blocks.count:
            found = self._blocks.interval(_difference)
            value = self._second.perplexity - self._first.perplexity
            yield PairedDifference(to, "perplexity", value, *(found.known if isfinite(value) else (None, None)))


def _difference(sums: Mapping[str, Array]) -> Array:
    first, second = (np.exp(np.divide(sums[name], sums["held"])) for name in ("first", "second"))
    return second - first


def _wider(array: Array, width: int) -> Array:
    """The array with zeros behind it, up to this width."""
    return np.pad(array, (0, max(width - len(array), 0)))
