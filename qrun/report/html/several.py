"""Several models, or several results of one, side by side:
facts, outputs, findings, scores and times, a column a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from qrun.declare.frozen import frozen
from qrun.memory import file_size, human
from qrun.report.evaluation import TITLES, limits_text, value_text
from qrun.report.html.cells import label_cell, real
from qrun.report.html.collect import MOST, PageContent
from qrun.report.html.findings import counts
from qrun.report.html.frame import section
from qrun.report.html.summary import WAYS, output_facts, way_of
from qrun.report.html.tags import Cell, HtmlColumn, Markup, table, tag
from qrun.report.html.timing import TimeUnit
from qrun.report.text import duration, short_names

ABOUT = (
    "Bold: not as in the first column; green is better, red is worse. Times are bold from a difference of 10 % on, "
    "those of whole runs where the spread of the runs decides."
)
SLACK = 0.1
"""Relative difference up to which two times count as the same."""


@frozen
class CellValue:
    """A cell. text: what is shown; value: the number that it shows, if any;
    whole: the full text to compare, where `text` is shortened.

    undecided: never marked as different, because the spread of the runs is too wide to decide.
    """

    text: str = "–"
    value: float | None = None
    whole: str = ""
    undecided: bool = False


NOTHING = CellValue()


@frozen
class Row:
    """A row of the table: one fact, with a cell for each model, in the models' order.

    better: 1 if a larger number is better, -1 if a smaller one is, 0 if neither.
    slack: relative difference up to which two numbers count as the same.
    """

    name: str
    cells: Sequence[CellValue]
    better: int = 0
    slack: float = 0.0

    @property
    def gap(self) -> float:
        """The largest difference from the first model's number; if that one has none, the largest absolute number."""
        values = [cell.value for cell in self.cells if cell.value is not None]
        first = self.cells[0].value
        return max((abs(value - (first or 0.0)) for value in values), default=0.0)

    def cell(self, place: int) -> str:
        """The text, marked where it is not that of the first model."""
        first, own = self.cells[0], self.cells[place]
        same = own.undecided or (own.text, own.whole) == (first.text, first.whole)
        if same or NOTHING.text in (own.text, first.text):
            return own.text
        style = None
        if self.better and own.value is not None and first.value is not None:
            if abs(own.value - first.value) <= self.slack * max(own.value, first.value):
                return own.text
            style = "good" if (own.value - first.value) * self.better > 0 else "error"
        return Cell(tag("td", tag("b", own.text, class_=style)))


def names_of(pages: Sequence[PageContent], sources: Sequence[str]) -> list[str]:
    """What tells the models apart: the ends of their paths, else with the file that each result is from."""
    paths = [(page.model.path or "model").replace("\\", "/") for page in pages]
    if len(set(paths)) == len(paths):
        return short_names(paths)
    files = short_names([source.replace("\\", "/") for source in sources])
    named = [f"{path.rpartition('/')[2]} ({file})" for path, file in zip(paths, files, strict=True)]
    return named if len(set(named)) == len(named) else [f"{place}: {name}" for place, name in enumerate(named, 1)]


def several_sections(pages: Sequence[PageContent], names: Sequence[str]) -> list[Markup]:
    """A section for each kind of thing that some of the models tell."""
    unit = TimeUnit.of(min((page.sum_ms for page in pages if page.nodes), default=0.0))
    return [
        _section("facts", "Side by side", ABOUT, "fact", names, _facts(pages)),
        _section("outputs", "Outputs", "Of the first run.", "output", names, _outputs(pages)),
        _section("evaluation", "Data set", "Intervals are 95 % confidence intervals.", "metric", names, _scores(pages)),
        _section("findings", "Findings", "How often each rule found something.", "rule", names, _findings(pages)),
        _section("costs", "What costs accuracy", "SQNR of the outputs with only this node quantized.", "node", names, _costs(pages)),
        _section("differing", "Tensors that differ", "Elements that differ from the other runtime's.", "tensor", names, _differing(pages)),
        _section("operators", "Time by operator", f"Medians of all its nodes, {unit.name}; in brackets, how many.", "operator", names, _operators(pages, unit)),
        _section("nodes", "Time by node", f"Medians, {unit.name}; what differs most comes first. A node is found by its name.", "node", names, _nodes(pages, unit)),
    ]  # fmt: skip


def _section(id: str, title: str, about: str, what: str, names: Sequence[str], rows: Iterable[Row]) -> Markup:
    """Empty without rows."""
    shown = [row for row in rows if any(cell.text != NOTHING.text for cell in row.cells)][:MOST]
    if not shown:
        return Markup()
    numbers = id != "facts"
    columns = [HtmlColumn(what, lambda row: row.name, name=numbers, short=not numbers)]
    for place, name in enumerate(names):
        columns.append(HtmlColumn(name, partial(Row.cell, place=place), number=numbers, wide=not numbers))
    made = table(title.lower(), columns, shown, sortable=numbers, box="tall side")
    return section(id, title, about, made)


def _facts(pages: Sequence[PageContent]) -> Iterator[Row]:
    def row(
        name: str, show: Callable[[PageContent], CellValue | str | None], better: int = 0, slack: float = 0.0
    ) -> Row:
        found = [show(page) for page in pages]
        cells = [cell if isinstance(cell, CellValue) else CellValue(cell or NOTHING.text) for cell in found]
        return Row(name, cells, better, slack)

    yield row("model", lambda p: p.model.path)
    yield row("sha256", lambda p: (p.model.sha256 or "")[:12])
    yield row("form", lambda p: p.model.form)
    yield row("opset", lambda p: ", ".join(f"{domain} {version}" for domain, version in p.model.opsets.items()))
    yield row("nodes", lambda p: None if p.model.nodes is None else str(p.model.nodes))
    yield row("size", lambda p: file_size(p.model.bytes) if p.model.bytes else None)
    for name, field in (("median of a run", "median_ms"), ("p90 of the runs", "p90_ms"), ("fastest run", "min_ms")):
        yield row(name, partial(_run_time, pages[0], field=field), -1, SLACK)
    yield row("runs", lambda p: str(len(p.time.samples_ms)) if p.time and p.time.samples_ms else None)
    yield row("multiply-adds", lambda p: f"{p.macs:,}" if p.macs else None)
    yield row("live tensors at most", lambda p: _amount(p.told.peak_bytes, human), -1)
    yield row("load", lambda p: _time(p.told.load_ms), -1, SLACK)
    yield row("SQNR of the outputs", _sqnr, 1)
    yield row("findings", lambda p: counts(p.checked) if p.checked else None)
    yield row(
        "inputs", lambda p: "; ".join(f"{i.name} {i.type} {list(i.shape)} {i.source}".rstrip() for i in p.told.inputs)
    )
    yield row(
        "run by",
        lambda p: " ".join(filter(None, (e.runtime, e.backend, e.arith))) if (e := p.told.environment) else None,
    )
    yield row("threads", lambda p: str(p.told.machine.threads) if p.told.machine else None)
    yield row("machine", lambda p: p.told.machine.cpu if p.told.machine else None)


def _time(milliseconds: float | None) -> CellValue:
    return _amount(milliseconds, lambda value: duration(value * 1e6))


def _run_time(first: PageContent, page: PageContent, field: str) -> CellValue:
    """A statistic of whole runs; no difference where the runs decide none."""
    shown = _time(getattr(page.time, field) if page.time else None)
    if first.time is None or page.time is None:
        return shown
    return replace(shown, undecided=way_of(first.time, page.time) not in WAYS)


def _amount(value: float | None, text: Callable[[Any], str]) -> CellValue:
    return NOTHING if value is None else CellValue(text(value), value)


def _sqnr(page: PageContent) -> CellValue:
    """That of the worst output; exact outputs have none."""
    found = [
        value
        for output in (page.comparison["outputs"] if page.comparison else ())
        if (value := real(output, "sqnr_db")) is not None
    ]
    return CellValue(f"{min(found):.1f} dB", min(found)) if found else NOTHING


NamedValue = tuple[str, CellValue]
"""The name of a row, and what one model tells there."""


def _joined(
    pages: Sequence[PageContent],
    told: Callable[[PageContent], Iterable[NamedValue]],
    better: int = 0,
    slack: float = 0.0,
) -> list[Row]:
    """A row for each name that one of the models tells; the first counts where one tells it twice."""
    found = [dict(reversed(list(told(page)))) for page in pages]
    order = dict.fromkeys(name for page in pages for name, _ in told(page))
    return [Row(name, [each.get(name, NOTHING) for each in found], better, slack) for name in order]


def _outputs(pages: Sequence[PageContent]) -> list[Row]:
    return _joined(
        pages,
        lambda page: (
            (f"{name} {fact}", CellValue(text, whole=whole))
            for output in page.outputs
            for name, fact, text, whole in output_facts(output)
        ),
    )


def _scores(pages: Sequence[PageContent]) -> list[Row]:
    def told(page: PageContent) -> Iterator[NamedValue]:
        models = page.evaluation.models if page.evaluation else ()
        own = (m for m in models if m.sha256 == (page.model.sha256 or None) or m.label == page.model.path)
        for score in next((m.scores for m in own), ()):
            limits = limits_text(score)
            title = " ".join(filter(None, (TITLES.get(score.metric, score.metric), score.output)))
            yield title, CellValue(value_text(score) + ("" if limits == "-" else f" ({limits})"))

    return _joined(pages, told)


def _findings(pages: Sequence[PageContent]) -> list[Row]:
    def told(page: PageContent) -> Iterator[NamedValue]:
        found = sorted(page.checked.findings if page.checked else (), key=lambda f: f.rule)
        for title, same in groupby(found, key=lambda f: f"{f.rule} {f.name} ({f.level})"):
            count = len(list(same))
            yield title, CellValue(str(count), count)

    rows = _joined(pages, told, -1)
    none = CellValue("0", 0)
    return [
        Row(row.name, [none if cell is NOTHING and page.checked else cell for cell, page in zip(row.cells, pages, strict=True)], -1)
        for row in rows
    ]  # fmt: skip


def _costs(pages: Sequence[PageContent]) -> list[Row]:
    def told(page: PageContent) -> Iterator[NamedValue]:
        for cost in (page.comparison.find("costs") if page.comparison else None) or ():
            yield label_cell(cost), _amount(real(cost, "output_sqnr_db"), lambda v: f"{v:.1f} dB")

    rows = _joined(pages, told, 1)
    return sorted(rows, key=lambda row: min((c.value for c in row.cells if c.value is not None), default=float("inf")))


def _differing(pages: Sequence[PageContent]) -> list[Row]:
    def told(page: PageContent) -> Iterator[NamedValue]:
        if page.comparison is not None and page.comparison["kind"].text == "runtimes":
            for tensor in page.comparison["tensors"]:
                count = tensor["differing"].size
                if count:
                    yield tensor["name"].text, CellValue(f"{count:,} of {tensor['elements'].size:,}", count)

    return _joined(pages, told, -1)


def _operators(pages: Sequence[PageContent], unit: TimeUnit) -> list[Row]:
    def told(page: PageContent) -> Iterator[NamedValue]:
        by_operator = sorted(page.nodes, key=lambda node: node.op)
        for op, same in groupby(by_operator, key=lambda node: node.op):
            times = [node.median_ms for node in same]
            yield op, CellValue(f"{unit(sum(times))} ({len(times)})", sum(times))

    return sorted(_joined(pages, told, -1, SLACK), key=lambda row: -max(cell.value or 0.0 for cell in row.cells))


def _nodes(pages: Sequence[PageContent], unit: TimeUnit) -> list[Row]:
    def told(page: PageContent) -> Iterator[NamedValue]:
        return ((node.label, CellValue(unit(node.median_ms), node.median_ms)) for node in page.nodes)

    return sorted(_joined(pages, told, -1, SLACK), key=lambda row: -row.gap)
