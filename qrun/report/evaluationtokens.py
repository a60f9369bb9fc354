"""What ``qrun eval`` says about language models: the verdict, and how scores change along the sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, inf

from qrun.declare.frozen import frozen
from qrun.evaluating.evaluation import Evaluation, ModelScores
from qrun.evaluating.tally import Score
from qrun.evaluating.tokentally import PositionScore
from qrun.report.grid import Column, Grid
from qrun.report.sheet import Block
from qrun.report.text import number, percent

RANGES = 6
"""The most ranges of positions that are shown for a model."""
_UNITS = "Perplexity: exp(mean negative log-likelihood). KL: nats, KL(reference || model). Intervals: over sequences."


@frozen
class _Range:
    """Neighbouring positions, with their scores over all tokens."""

    first: int
    last: int
    tokens: int
    perplexity: float
    kl: float | None
    agreement: float | None


def token_verdict(found: Evaluation, names: Sequence[str]) -> str:
    """The model with the lowest agreement, or without a reference the one with the largest perplexity."""
    places = range(len(found.models))
    compared = [(score.value, place) for place in places if (score := found.score(place, "next_token")) is not None]
    if not compared:
        scored = [(score.value, place) for place in places if (score := found.score(place, "perplexity")) is not None]
        value, place = max(scored)
        more = f", the largest of {len(scored)} models" if len(scored) > 1 else ""
        return f"perplexity: {names[place]} {number(value)}{more}"
    place = min(compared)[1]
    more = f", the lowest of {len(compared)} models" if len(compared) > 1 else ""
    parts = [f"next-token agreement with {names[-1]}: {names[place]} {percent(min(compared)[0], 2)}{more}"]
    for metric, title, after in (("kl_mean", "KL", " nats"), ("perplexity", "perplexity", _than(found, place))):
        if (score := found.score(place, metric)) is not None:
            parts.append(f"{title} {number(score.value)}{after}")
    return "; ".join(parts)


def _than(found: Evaluation, place: int) -> str:
    """`` instead of 8.41``, the perplexity of the reference."""
    other = next((d.to for d in found.models[place].differences if d.metric == "perplexity"), None)
    score = None if other is None else found.score(other, "perplexity")
    return "" if score is None else f" instead of {number(score.value)}"


def position_blocks(models: Sequence[ModelScores], names: Sequence[str]) -> list[Block]:
    """A table for each model but a reference: its scores in ranges of positions."""
    made = []
    compared = any(score.metric == "next_token" for model in models for score in model.scores)
    for name, model in zip(names, models, strict=False):
        if len(model.positions) < 2 or (compared and model.positions[0].kl is None):
            continue
        columns = [
            Column("positions", cell=lambda row: f"{row.first}-{row.last}" if row.last > row.first else f"{row.first}"),
            Column("tokens", right=True, optional=1, cell=lambda row: str(row.tokens)),
            Column("perplexity", right=True, cell=lambda row: number(row.perplexity)),
            Column("KL", right=True, cell=lambda row: number(row.kl)) if compared else None,
            Column("agreement", right=True, cell=lambda row: percent(row.agreement, 2)) if compared else None,
        ]
        grid = Grid.of(columns, list(_ranges(model.positions)))
        made.append(Block(f"{name} along the sequences", grid, more="each position   --json"))
    return made


def _ranges(positions: Sequence[PositionScore]) -> Iterator[_Range]:
    """Yield ranges, each as long as all before it together; the first has what is left."""
    ends = [len(positions)]
    while len(ends) < RANGES and ends[0] > 1:
        ends.insert(0, (ends[0] + 1) // 2)
    for first, end in zip([0, *ends], ends, strict=False):
        part = positions[first:end]
        tokens = sum(each.tokens for each in part)

        def mean(
            values: Sequence[float | None], part: Sequence[PositionScore] = part, tokens: int = tokens
        ) -> float | None:
            known = [(value, each.tokens) for value, each in zip(values, part, strict=True) if value is not None]
            return sum(value * count for value, count in known) / tokens if len(known) == len(part) else None

        nll = mean([each.nll for each in part]) or 0.0
        perplexity = exp(nll) if nll < 700 else inf
        yield _Range(first, end - 1, tokens, perplexity, mean([e.kl for e in part]), mean([e.agreement for e in part]))


def units(scores: Sequence[Score]) -> list[str]:
    """The line that says what the scores of language models are; none for other models."""
    return [_UNITS] if any(score.metric == "perplexity" for score in scores) else []
