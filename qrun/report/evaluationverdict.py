"""The verdict of ``qrun eval`` in a sentence: which model is better by how much, or how good one is."""

from __future__ import annotations

from qrun.evaluating.evaluation import Evaluation
from qrun.evaluating.tally import PairedDifference, Score
from qrun.report.screen import BAD, GOOD, OPEN
from qrun.report.text import plural, short_names

_SURE = 0.05
"""McNemar's p below which a difference is called one."""


def verdict_of(found: Evaluation) -> tuple[str, str]:
    """The answer in a sentence, and its style."""
    if found.failed >= found.samples:
        return f"failed: none of {plural(found.samples, 'sample')} could be run", BAD
    for place, model in enumerate(found.models):
        for difference in model.differences:
            if difference.metric == "top1":
                return sentence(found, place, difference), OPEN if difference.value >= 0 else BAD
    names = names_of(found)
    score = found.score(0, "top1") or found.agreement(0)
    if score is not None:
        label, against = names[0], names[-1]
        name = "accuracy" if score.metric == "top1" else f"agreement with {against}"
        whole = score.value == 1 and score.metric != "top1"
        return f"{name}: {label} {share(score)}", GOOD if whole else OPEN
    return f"evaluated: {plural(found.samples - found.failed, 'sample')}", OPEN


def sentence(found: Evaluation, place: int, d: PairedDifference) -> str:
    """``int8 is 0.6 points worse than float (0.2 to 1.0), 31 samples lost, 13 won``."""
    names = names_of(found)
    model, other = names[place], names[d.to]
    points, low, high = ((value or 0.0) * 100 for value in (d.value, d.low, d.high))
    if d.p is not None and d.p >= _SURE:
        return (
            f"no significant difference: {model} has {points:+.2f} points of {other}'s top-1 ({low:+.2f} to {high:+.2f}), "
            f"{d.lost} samples lost, {d.won} won"
        )
    word, ends = ("worse", (-high, -low)) if points < 0 else ("better", (low, high))
    return (
        f"{word}: {model} is {abs(points):.2f} points {word} than {other} ({ends[0]:.2f} to {ends[1]:.2f}), "
        f"{d.lost} samples lost, {d.won} won"
    )


def share(score: Score) -> str:
    """``96.1 % (95.1 to 96.9)``."""
    low, high = (100 * value if value is not None else 0.0 for value in (score.low, score.high))
    return f"{100 * score.value:.2f} % ({low:.2f} to {high:.2f})"


def names_of(found: Evaluation) -> list[str]:
    """The models' paths without the folders that they need not be told apart by;
    last, so, what they are held against."""
    return short_names([*(model.label for model in found.models), found.against])
