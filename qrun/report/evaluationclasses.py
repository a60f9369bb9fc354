"""The blocks of ``qrun eval`` about classes: the weakest ones, and those that are confused."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.evaluating.evaluation import ModelScores
from qrun.evaluating.tally import Confusion
from qrun.report.grid import Column, Grid
from qrun.report.sheet import Block
from qrun.report.text import plural

TOP = 5
"""Classes and pairs of each model that are shown."""


def class_blocks(models: Sequence[ModelScores], names: Sequence[str]) -> list[Block]:
    """For each model: the classes with the lowest accuracy, and the pairs that it confuses most often."""
    made = []
    for name, model in zip(names, models, strict=False):
        weak = sorted((each for each in model.classes if each.top1 < 1), key=lambda each: (each.top1, each.label))
        if not weak:
            continue
        columns = [
            Column("class", shrink=1, cell=lambda each: _called(each.label, each.name)),
            Column("samples", right=True, optional=1, cell=lambda each: str(each.samples)),
            Column("top-1", right=True, cell=lambda each: f"{100 * each.top1:.2f} %"),
            Column("most often predicted as", shrink=1, cell=lambda each: _taken(each.taken_for)),
        ]
        pairs = [f"{_pair(each)} ({each.samples})" for each in model.confused[:TOP]]
        lines = [f"Most frequent mistakes: {', '.join(pairs)}."] if pairs else []
        left = len(weak) - TOP
        more = f"{left} more class{'es' * (left > 1)}   --json" if left > 0 else ""
        made.append(Block(f"Weakest classes of {name}", Grid.of(columns, weak[:TOP]), lines=lines, more=more))
    return made


def _called(label: int, name: str) -> str:
    return f"{label} {name}".rstrip()


def _taken(pair: Confusion | None) -> str:
    return f"{_called(pair.predicted, pair.predicted_name)} ({plural(pair.samples, 'sample')})" if pair else "-"


def _pair(pair: Confusion) -> str:
    return f"{pair.name or pair.label} predicted as {pair.predicted_name or pair.predicted}"
