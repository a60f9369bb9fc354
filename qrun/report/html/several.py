"""The page of several models, or of several results of one model, side by side: facts, outputs, findings, scores and
times, one column per model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from qrun.checking.rules import Finding
from qrun.comparing.saved import change
from qrun.declare.frozen import frozen
from qrun.documents.answers import SHORT, RanNode, Samples
from qrun.documents.record import decode
from qrun.evaluating.tally import TITLES
from qrun.memory import file_size, human
from qrun.report.accuracy import real
from qrun.report.evaluation import limits_text, value_text
from qrun.report.grid import Column, Grid
from qrun.report.html.collect import MOST, PageContent, items
from qrun.report.html.comparison import headline, is_of_runtimes, least
from qrun.report.html.findings import counts
from qrun.report.html.markup import Markup, section, table, tag
from qrun.report.html.page import about_page, document_of, html, outputs_grid
from qrun.report.profilerows import operator_rows
from qrun.report.text import decibel, duration, percent, short_names

ABOUT = (
    "Bold: differs from the first column; green is better, red is worse. Times of nodes are bold if they differ by more "
    "than 10 %, times of whole runs if the difference exceeds the spread of the runs."
)
SLACK = 0.1
"""Two times with at most this relative difference count as the same."""


@frozen
class CellValue:
    """One model's value of a fact. text: what is shown; value: the number that it shows, if any.

    better: 1 if a larger number is better, -1 if a smaller one is, 0 if neither.
    slack:  relative difference up to which two numbers count as the same.
    whole:  the full text to compare, if `text` is shortened.
    undecided: never marked as different, because the spread of the runs is too wide to decide.
    """

    text: str = "-"
    value: float | None = None
    better: int = 0
    slack: float = 0.0
    whole: str = ""
    undecided: bool = False


NOTHING = CellValue()


@frozen
class Row:
    """A row of the table: one fact, with a cell for each model, in the models' order."""

    name: str
    cells: Sequence[CellValue]

    @property
    def gap(self) -> float:
        """The largest difference from the first model's number; without that number, the largest absolute number."""
        values = [cell.value for cell in self.cells if cell.value is not None]
        first = self.cells[0].value
        return max((abs(value - (first or 0.0)) for value in values), default=0.0)

    @property
    def least(self) -> float:
        return min((cell.value for cell in self.cells if cell.value is not None), default=float("inf"))

    @property
    def most(self) -> float:
        return max(cell.value or 0.0 for cell in self.cells)

    def cell(self, place: int) -> str:
        """The text, marked if it differs from the first model's."""
        first, own = self.cells[0], self.cells[place]
        same = own.undecided or (own.text, own.whole) == (first.text, first.whole)
        if same or NOTHING.text in (own.text, first.text):
            return own.text
        style = None
        if own.better and own.value is not None and first.value is not None:
            if abs(own.value - first.value) <= own.slack * max(own.value, first.value):
                return own.text
            style = "good" if (own.value - first.value) * own.better > 0 else "error"
        return tag("b", own.text, class_=style)


def names_of(pages: Sequence[PageContent], sources: Sequence[str]) -> list[str]:
    """Names that distinguish the models: the ends of their paths, or else these with the file of each result."""
    paths = [(page.model.path or "model").replace("\\", "/") for page in pages]
    if len(set(paths)) == len(paths):
        return short_names(paths)
    files = short_names([source.replace("\\", "/") for source in sources])
    named = [f"{path.rpartition('/')[2]} ({file})" for path, file in zip(paths, files, strict=True)]
    return named if len(set(named)) == len(named) else [f"{place}: {name}" for place, name in enumerate(named, 1)]


def comparison_document(pages: Sequence[PageContent], sources: Sequence[str]) -> str:
    """The HTML document that compares models with the first one: a verdict on each, then tables with a column per
    model. One model alone gets its own page. sources: the files with their results, which tell models of one path
    apart."""
    if len(pages) == 1:
        return html(pages[0])
    names = names_of(pages, sources)
    call = tag("code", "qrun report FILE... -o ONE.html")
    whole = tag("p", "For the full page of one model: ", call)
    header = [tag("h1", " · ".join(names)), *_verdicts(pages, names), about_page(pages[0], [])]
    return document_of(" · ".join(names), header, Markup(), [*_sections(pages, names), whole], pages)


WAYS = {"faster": "good", "slower": "error"}
"""Decided differences of times, and their styles."""


def _verdicts(pages: Sequence[PageContent], names: Sequence[str]) -> Iterator[Markup]:
    """For each model but the first, a sentence that compares its time, outputs and findings with the first model's."""
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
    way = _way(first.time, page.time)
    if way in WAYS:
        word = tag("b", f"{name} is {way}", class_=WAYS[way])
        return [word, f" than {base}: {times} a run, {percent(page.time.median_ms / first.time.median_ms)} of its time"]
    if way == "few runs":
        return [tag("b", f"{name}: inconclusive"), f" against {base}: {times} a run; too few runs to tell"]
    return [tag("b", f"{name}: no measurable difference in speed"), f" to {base}: {times} a run"]


def _accuracy_told(page: PageContent) -> list[str]:
    found = page.comparison
    if found is None:
        return []
    big, small, _ = headline(found)
    return [f"; outputs at {big} SQNR" if not is_of_runtimes(found) and big.endswith("dB") else f"; {big} {small}"]


def _findings_told(first: PageContent, page: PageContent, base: str) -> list[str]:
    if first.checked is None or page.checked is None:
        return []
    return [f"; {counts(page.checked)} ({base}: {counts(first.checked)})"]


def _way(first: Samples, other: Samples) -> str:
    """Compares the times of whole runs with the first model's; the spread of both decides."""
    return change(first.samples_ms or (first.median_ms,), other.samples_ms or (other.median_ms,)).verdict


NamedValue = tuple[str, CellValue]
"""The name of a row, and one model's value there."""
Pages = Sequence[PageContent]


def _sections(pages: Pages, names: Sequence[str]) -> list[Markup]:
    """A section for each kind of facts that at least one model has."""
    several = partial(_section, pages, names)
    return [
        several("facts", "Side by side", ABOUT, "fact", _facts),
        several("outputs", "Outputs", "Of the first run.", "output", _outputs),
        several("evaluation", "Data set", "Intervals are 95 % confidence intervals.", "metric", _scores),
        several("findings", "Checks", "The number of findings of each rule.", "rule", _findings),
        several("costs", "What costs most, one node at a time", "SQNR of the outputs with only this node quantized.", "node", _costs, lambda row: row.least),
        several("differing", "Tensors that differ", "Elements that differ from the other runtime.", "tensor", _differing_section),
        several("operators", "By operator", "The sum of its nodes' median times; in brackets, the number of nodes.", "operator", _operators, lambda row: -row.most),
        several("nodes", "By node", "Median times of nodes with the same name; the largest difference first.", "node", _nodes, lambda row: -row.gap),
    ]  # fmt: skip


def _section(
    pages: Pages,
    names: Sequence[str],
    id: str,
    title: str,
    about: str,
    what: str,
    told: Callable[[PageContent, Pages], Iterable[NamedValue]],
    order: Callable[[Row], float] = lambda row: 0.0,
) -> Markup:
    """One row per name that any of the models has; if a model has a name twice, the first counts. Empty without
    rows."""
    found = [list(told(page, pages)) for page in pages]
    known, order_of = (
        [dict(reversed(each)) for each in found],
        dict.fromkeys(name for each in found for name, _ in each),
    )
    rows = [Row(name, [each.get(name, NOTHING) for each in known]) for name in order_of]
    shown = sorted((row for row in rows if any(cell.text != NOTHING.text for cell in row.cells)), key=order)[:MOST]
    if not shown:
        return Markup()
    numbers = id != "facts"
    columns = [Column(what, cell=lambda row: row.name, shrink=int(numbers))]
    for place, name in enumerate(names):
        columns.append(Column(name, right=numbers, wrap=not numbers, cell=partial(Row.cell, place=place)))
    made = table(title.lower(), Grid.of(columns, shown), sortable=numbers, box="side")
    return section(id, title, about, made)


def _facts(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    model, told, time = page.model, page.told, page.time
    env, machine = told.environment, told.machine
    yield "model", _text(model.path)
    yield "sha256", _text((model.sha256 or "")[:SHORT])
    yield "form", _text(model.form)
    yield "opset", _text(", ".join(f"{domain} {version}" for domain, version in model.opsets.items()))
    yield "nodes", _text(None if model.nodes is None else str(model.nodes))
    yield "size", _text(file_size(model.bytes) if model.bytes else None)
    undecided = bool(time and pages[0].time and _way(pages[0].time, time) not in WAYS)
    for name, field in (("median of a run", "median_ms"), ("p90 of the runs", "p90_ms"), ("fastest run", "min_ms")):
        yield name, replace(_time(getattr(time, field) if time else None), undecided=undecided)
    yield "runs", _text(str(len(time.samples_ms)) if time and time.samples_ms else None)
    yield "multiply-adds", _text(f"{page.macs:,}" if page.macs else None)
    yield "live tensors at most", _amount(told.peak_bytes, human, -1)
    yield "load", _time(told.load_ms)
    yield "SQNR of the outputs", _amount(least(page.comparison) if page.comparison else None, decibel, 1)
    yield "findings", _text(counts(page.checked) if page.checked else None)
    yield "inputs", _text("; ".join(f"{i.name} {i.type} {list(i.shape)} {i.source}".rstrip() for i in told.inputs))
    yield "run by", _text(" ".join(filter(None, (env.runtime, env.backend, env.arith))) if env else None)
    yield "threads", _text(str(machine.threads) if machine else None)
    yield "machine", _text(machine.cpu if machine else None)


def _text(text: str | None) -> CellValue:
    return CellValue(text or NOTHING.text)


def _amount(value: float | None, text: Callable[[Any], str], better: int) -> CellValue:
    return NOTHING if value is None else CellValue(text(value), value, better)


def _time(milliseconds: float | None) -> CellValue:
    return replace(_amount(milliseconds, lambda value: duration(value * 1e6), -1), slack=SLACK)


def _outputs(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    grid = outputs_grid(page.outputs)
    for output, (name, *cells) in zip(page.outputs, grid.rows, strict=True):
        for column, text in zip(grid.columns[1:], cells, strict=True):
            whole = str(output.argmax_rows) if output.argmax_rows and column.header == "argmax" else ""
            yield f"{name} {column.header}", CellValue(text, whole=whole)


def _scores(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    models = page.evaluation.models if page.evaluation else ()
    own = (m for m in models if m.sha256 == (page.model.sha256 or None) or m.label == page.model.path)
    for score in next((m.scores for m in own), ()):
        limits = limits_text(score)
        title = " ".join(filter(None, (TITLES.get(score.metric, score.metric), score.output)))
        yield title, CellValue(value_text(score) + ("" if limits == "-" else f" ({limits})"))


def _findings(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    """The count of every rule that found something in one of the models."""
    own, *others = (Counter(map(_rule, each.checked.findings if each.checked else ())) for each in (page, *pages))
    for title in sorted(set().union(*others)) if page.checked else ():
        yield title, CellValue(str(own[title]), own[title], -1)


def _rule(finding: Finding) -> str:
    return f"{finding.rule} {finding.name} ({finding.level})"


def _costs(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    for cost in items(page.comparison, "costs"):
        yield decode(RanNode, cost).label, _amount(real(cost, "output_sqnr_db"), decibel, 1)


def _differing_section(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    for tensor in page.comparison["tensors"] if page.comparison and is_of_runtimes(page.comparison) else ():
        count = tensor["differing"].size
        if count:
            yield tensor["name"].text, CellValue(f"{count:,} of {tensor['elements'].size:,}", count, -1)


def _operators(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    for row in operator_rows(page.nodes):
        time = _time(row.median_ms)
        yield row.op, replace(time, text=f"{time.text} ({row.nodes})")


def _nodes(page: PageContent, pages: Pages) -> Iterator[NamedValue]:
    return ((node.label, _time(node.median_ms)) for node in page.nodes)
