"""The verdict of ``qrun eval`` in a sentence: which model is better by how much, or how good one is."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.evaluating.evaluation import Evaluation
from qrun.evaluating.tally import PairedDifference, Score
from qrun.report.screen import BAD, GOOD, OPEN
from qrun.report.text import decibel, plural, short_names

_SURE = 0.05
"""McNemar's p below which a difference is called one."""


def verdict_of(found: Evaluation) -> tuple[str, str]:
    """The answer in a sentence, and its style."""
    if found.failed >= found.samples:
        return f"failed: none of {plural(found.samples, 'sample')} could be run", BAD
    apart = [
        (d.value, place, d) for place, model in enumerate(found.models) for d in model.differences if d.metric == "top1"
    ]
    if apart:
        _, place, worst = min(apart, key=lambda item: item[:2])
        return sentence(found, place, worst) + _others([value for value, _, d in apart if d is not worst]), OPEN
    names = names_of(found)
    scored = [
        (found.score(place, "top1") or found.agreement(place), name)
        for place, name in enumerate(names[: len(found.models)])
    ]
    known = [(score, name) for score, name in scored if score is not None]
    if known:
        score, label = min(known, key=lambda item: item[0].value)
        name = "accuracy" if score.metric == "top1" else f"agreement with {names[-1]}"
        whole = score.value == 1 and score.metric != "top1"
        more = f", the lowest of {len(known)} models" if len(known) > 1 else ""
        return f"{name}: {label} {share(score)}{more}", GOOD if whole else OPEN
    noise = [(s.value, n) for n, m in zip(names, found.models, strict=False) for s in m.scores if s.metric == "sqnr_db"]
    if noise:
        value, label = min(noise)
        more = f", the lowest of {len(found.models)} models" if len(found.models) > 1 else ""
        if value == float("inf"):
            return f"equal: {label} and {names[-1]} in every element", GOOD
        return f"{label}: {decibel(value)} SQNR against {names[-1]}{more}", OPEN
    return f"evaluated: {plural(found.samples - found.failed, 'sample')}", OPEN


def _others(values: Sequence[float]) -> str:
    """The other models' differences in top-1, behind the sentence about the worst model."""
    if not values:
        return ""
    low, high = (f"{100 * value:+.2f}" for value in (min(values), max(values)))
    span = low if low == high else f"{low} to {high}"
    return f"; {plural(len(values), 'other model')}: {span} points"


def sentence(found: Evaluation, place: int, d: PairedDifference) -> str:
    """``int8's top-1 is 0.60 points below float's (0.20 to 1.00); 31 samples lost, 13 gained``."""
    names = names_of(found)
    points, low, high = ((value or 0.0) * 100 for value in (d.value, d.low, d.high))
    word = "below" if points < 0 else "above"
    changed = f"{plural(d.lost or 0, 'sample')} lost, {d.won or 0} gained"
    if d.p is not None and d.p >= _SURE:
        size = f"{abs(points):.2f} points {word} {names[d.to]}'s" if points else f"the same as {names[d.to]}'s"
        gap = f"{names[place]}'s top-1 is {size} ({low:+.2f} to {high:+.2f})"
        return f"no significant difference: {gap}; {changed}"
    ends = (-high, -low) if points < 0 else (low, high)
    gap = f"{names[place]}'s top-1 is {abs(points):.2f} points {word} {names[d.to]}'s"
    return f"{'worse' if points < 0 else 'better'}: {gap} ({ends[0]:.2f} to {ends[1]:.2f}); {changed}"


def share(score: Score) -> str:
    """``96.1 % (95.1 to 96.9)``."""
    low, high = (100 * value if value is not None else 0.0 for value in (score.low, score.high))
    return f"{100 * score.value:.2f} % ({low:.2f} to {high:.2f})"


def names_of(found: Evaluation) -> list[str]:
    """The models' paths without the folders that they need not be told apart by;
    last, so, what they are held against."""
    return short_names([*(model.label for model in found.models), found.against])
