"""The best classes of each row of a run's outputs, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qrun.comparing.differences import class_axis
from qrun.documents.answers import NamedClass, OutputClasses
from qrun.errors import CallError
from qrun.ir import Array
from qrun.ir.types import describe
from qrun.report.grid import Column, Grid
from qrun.report.screen import Screen
from qrun.report.stats import ROWS, numeric
from qrun.report.text import number, percent, plural

TOP = 5
MOST_ROWS = 64
"""The most rows in JSON."""
_SUM = 0.02
"""How far from 1 probabilities may add up, also after quantization."""


def output_classes(outputs: Mapping[str, Array], names: Sequence[str], source: str) -> list[OutputClasses]:
    """The best classes of each output that has one score for each name. source: of the names, for messages.

    Raises CallError if there is no such output.
    """
    made, sizes = [], []
    for output, array in outputs.items():
        values, axis = numeric(array), class_axis(array.shape)
        if values is None or axis is None:
            continue
        sizes.append(f"{output} {describe(array)}")
        if array.shape[axis] == len(names):
            rows = np.moveaxis(values, axis, -1).reshape(-1, len(names)).astype(np.float64)
            made.append(OutputClasses(output, _kind(rows), tuple(_best(rows, names)), max(len(rows) - MOST_ROWS, 0)))
    if not made:
        raise CallError(
            "QR003",
            f"no output has a score for each of the {len(names)} classes of {source}",
            where=[source],
            facts=[("expected", f"an output with {len(names)} scores a row"), ("got", ", ".join(sizes) or "none")],
            fixes=["give a file with one name for each score, in the same order"],
        )
    return made


def _kind(rows: Array) -> str:
    """ "probability" if the scores of each row are 0 or more and add up to 1, else "score"."""
    sums = rows.sum(1)
    return "probability" if len(rows) and (rows >= 0).all() and (abs(sums - 1) <= _SUM).all() else "score"


def _best(rows: Array, names: Sequence[str]) -> Iterator[tuple[NamedClass, ...]]:
    """Yield the TOP best classes of each of the first rows, the best first; of equal scores the first; NaN is last."""
    for row in rows[:MOST_ROWS]:
        order = np.argsort(-row, kind="stable")[:TOP]
        yield tuple(NamedClass(int(place), names[place], float(row[place])) for place in order)


def print_classes(screen: Screen, found: Sequence[OutputClasses]) -> None:
    """Prints a table for each output: the best classes of its first rows."""
    for each in found:
        screen.line()
        screen.line((f"Best classes of {each.output}", "bold"))
        screen.grid(_grid(each))
        left = len(each.rows) + each.rows_left - ROWS
        if left > 0:
            screen.line(f"  {screen.ellipsis} {plural(left, 'more row')}   --json")


def _grid(found: OutputClasses) -> Grid:
    several = len(found.rows) > 1
    shown = [(at, rank, best) for at, row in enumerate(found.rows[:ROWS]) for rank, best in enumerate(row)]
    value = percent if found.kind == "probability" else number
    columns = [
        Column("row", right=True, cell=lambda row: "" if row[1] else str(row[0])) if several else None,
        Column("class", right=True, cell=lambda row: str(row[2].index)),
        Column("name", shrink=1, cell=lambda row: row[2].name),
        Column(found.kind, right=True, cell=lambda row: value(row[2].score)),
    ]
    return Grid.of(columns, shown)
