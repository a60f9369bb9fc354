"""What a page says first: the answer in a sentence or two, or how each of several models stands to the first one; and
the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qrun.comparing.saved import change
from qrun.documents.answers import RunOutput, Samples
from qrun.report.evaluationverdict import verdict_of
from qrun.report.html.collect import PageContent
from qrun.report.html.comparison import headline, told
from qrun.report.html.findings import counts
from qrun.report.html.frame import section
from qrun.report.html.tags import HtmlColumn, Markup, table, tag
from qrun.report.text import duration, number, percent, plural

VALUES = 3
"""Places of the largest elements that are shown."""


def verdict(page: PageContent) -> Markup:
    """The answer in a sentence or two; empty where a page has none."""
    sentences = list(_sentences(page))
    return tag("p", *(part for pair in sentences for part in (*pair, " ")), class_="verdict") if sentences else Markup()


def _sentences(page: PageContent) -> Iterator[tuple[str, str]]:
    """(what is strong, the rest)."""
    if page.comparison is not None:
        big, rest, equal = told(page.comparison)
        yield tag("b", big, class_="good" if equal else "error"), rest
    if page.evaluation is not None:
        word, _, rest = verdict_of(page.evaluation)[0].partition(":")
        yield tag("b", word[:1].upper() + word[1:]), f":{rest}."
    checked = page.checked
    if checked is not None:
        worst = next((f for f in checked.findings), None)
        judged = f" by {plural(checked.rules, 'rule')}" if checked.rules else ""
        if worst is None:
            yield tag("b", "Nothing found", class_="good"), f"{judged}."
        else:
            yield tag("b", counts(checked), class_=worst.level), f", first {worst.rule} {worst.name}."
    if page.time is not None:
        slowest = max(page.nodes, key=lambda n: n.median_ms, default=None)
        most = f"; {100 * slowest.share:.0f}% of it in {slowest.label}" if slowest and slowest.share else ""
        yield tag("b", duration(page.time.median_ms * 1e6)), f" a run{most}."


def outputs_section(outputs: Sequence[RunOutput]) -> Markup:
    """Statistics of the outputs of a run."""
    if not outputs:
        return Markup()
    about = "Of the first run. argmax: the place of the largest element, or of the largest in each row."
    return section("outputs", "Outputs", about, table("outputs of the run", COLUMNS, outputs))


def output_facts(output: RunOutput) -> Iterator[tuple[str, str, str, str]]:
    """(the output's name, a statistic, what is shown of it, all of it) for each statistic of the table of outputs."""
    for column in COLUMNS[1:]:
        whole = str(list(output.argmax_rows)) if output.argmax_rows is not None and column.header == "argmax" else ""
        yield output.name, column.header, column.cell(output), whole


def _real(value: float | None) -> str:
    return "–" if value is None else number(float(value))


def _argmax(output: RunOutput) -> str:
    if rows := output.argmax_rows:
        return ",".join(map(str, rows[:VALUES])) + (",…" if len(rows) > VALUES else "") + " per row"
    return "–" if output.argmax is None else str(list(output.argmax)).replace(" ", "")


COLUMNS = [
    HtmlColumn("output", lambda o: o.name, name=True),
    HtmlColumn("type", lambda o: str(o.form), short=True),
    HtmlColumn("min", lambda o: _real(o.min), number=True),
    HtmlColumn("max", lambda o: _real(o.max), number=True),
    HtmlColumn("mean", lambda o: _real(o.mean), number=True),
    HtmlColumn("argmax", _argmax, short=True),
    HtmlColumn("NaN/Inf", lambda o: str((o.nan or 0) + (o.inf or 0)), number=True),
]


WAYS = {"faster": "good", "slower": "error"}
"""Decided differences of times, and how they are shown."""


def verdicts(pages: Sequence[PageContent], names: Sequence[str]) -> Iterator[Markup]:
    """Of each model but the first a sentence: how its time, outputs and findings stand to those of the first."""
    for page, name in zip(pages[1:], names[1:], strict=True):
        parts = [
            *_time_told(pages[0], page, names[0], name),
            *_accuracy_told(page),
            *_findings_told(pages[0], page, names[0]),
        ]
        if parts:
            yield tag("p", *parts, ".", class_="verdict")


def _time_told(first: PageContent, page: PageContent, base: str, name: str) -> list[str]:
    if first.time is None or page.time is None or not first.time.median_ms:
        return [tag("b", name)]
    times = f"{duration(page.time.median_ms * 1e6)} against {duration(first.time.median_ms * 1e6)}"
    way = way_of(first.time, page.time)
    if way in WAYS:
        word = tag("b", f"{name} is {way}", class_=WAYS[way])
        return [word, f" than {base}: {times} a run, {percent(page.time.median_ms / first.time.median_ms)} of its time"]
    why = "there are too few runs to tell" if way == "few runs" else "the difference is within the spread of the runs"
    return [tag("b", f"{name} is neither faster nor slower"), f" than {base}: {times} a run; {why}"]


def _accuracy_told(page: PageContent) -> list[str]:
    found = page.comparison
    if found is None:
        return []
    big, small, _ = headline(found)
    return [f"; outputs at {big} SQNR" if found["kind"].text == "models" and big.endswith("dB") else f"; {big} {small}"]


def _findings_told(first: PageContent, page: PageContent, base: str) -> list[str]:
    if first.checked is None or page.checked is None:
        return []
    return [f"; {counts(page.checked)} ({base}: {counts(first.checked)})"]


def way_of(first: Samples, other: Samples) -> str:
    """How the times of whole runs stand to those of the first model, as the spread of both tells."""
    return change(first.samples_ms or (first.median_ms,), other.samples_ms or (other.median_ms,)).verdict
