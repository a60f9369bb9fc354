"""What models scored on a data set, what differs between them, and the samples where most does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qrun.evaluating.evaluation import Evaluation
from qrun.report.evaluation import TITLES, limits_text, names_of, points_text, value_text
from qrun.report.html.tags import HtmlColumn, Markup, table, tag
from qrun.report.text import decibel, number, plural


def evaluation_section(found: Evaluation) -> Markup:
    """A table of scores; one of paired differences, and one of the worst samples, where there are any."""
    against = f", against {found.against}" if found.against else ""
    failed = f"; {found.failed} could not be run" if found.failed else ""
    about = f"{plural(found.samples, 'sample')} of {found.source}{against}{failed}. Intervals are 95 % confidence intervals."
    head = tag("h2", "Data set", id="evaluation"), tag("p", about, class_="about")
    return tag("section", *head, *_tables(found))


def _tables(found: Evaluation) -> Iterator[Markup]:
    names = names_of(found)
    models = list(zip(names, found.models, strict=False))
    yield table(
        "scores of models", _SCORES, [(name, score) for name, model in models for score in model.scores], sortable=True
    )
    pairs: list[Any] = [(name, names[d.to], d) for name, model in models for d in model.differences]
    if pairs:
        yield tag("h3", "Differences on the same samples")
        yield table("differences of models on the same samples", _DIFFERENCES, pairs)
    worst = [(name, apart) for name, model in models for apart in model.worst]
    if worst:
        yield tag("h3", f"Samples that differ most from {names[-1]}")
        yield table("samples that differ most", _WORST, worst)


_SCORES = [
    HtmlColumn("model", lambda row: row[0], name=True),
    HtmlColumn("metric", lambda row: TITLES.get(row[1].metric, row[1].metric), short=True),
    HtmlColumn("output", lambda row: row[1].output, name=True),
    HtmlColumn("value", lambda row: value_text(row[1]), number=True),
    HtmlColumn("95 % interval", lambda row: limits_text(row[1]), number=True),
    HtmlColumn("samples", lambda row: str(row[1].count), number=True),
]
_DIFFERENCES = [
    HtmlColumn("model", lambda row: row[0], name=True),
    HtmlColumn("than", lambda row: row[1], name=True),
    HtmlColumn("metric", lambda row: TITLES.get(row[2].metric, row[2].metric), short=True),
    HtmlColumn("difference", lambda row: points_text(row[2], row[2].value), number=True),
    HtmlColumn(
        "95 % interval",
        lambda row: f"{points_text(row[2], row[2].low)} to {points_text(row[2], row[2].high)}",
        number=True,
    ),
    HtmlColumn("lost", lambda row: number(row[2].lost), number=True),
    HtmlColumn("won", lambda row: number(row[2].won), number=True),
]
_WORST = [
    HtmlColumn("model", lambda row: row[0], name=True),
    HtmlColumn("sample", lambda row: row[1].sample, name=True),
    HtmlColumn("argmax", lambda row: {True: "same", False: "differs", None: "–"}[row[1].same_argmax], short=True),
    HtmlColumn("SQNR", lambda row: "–" if row[1].sqnr_db is None else decibel(row[1].sqnr_db), number=True),
    HtmlColumn("max abs", lambda row: number(row[1].max_abs), number=True),
]
