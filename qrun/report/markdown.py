"""Markdown for job summaries and pull request comments: tables of any command, and the report of ``qrun check``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qrun.checking.check import Report
from qrun.report.check import place, summary, title, unexplained, visible
from qrun.report.grid import Column, Grid
from qrun.report.text import plural, safe

MOST = 200
"""Findings in the table; GitHub takes 1 MiB for each step."""
LONG = 300


def markdown(report: Report, notes: bool = False) -> str:
    """A heading that sums up, a table of the worst findings, and the models."""
    ordered = sorted(visible(report, notes), key=lambda pair: ("error", "warning", "note").index(pair[1].level))
    lines = [f"### qrun check: {summary(report)}", ""]
    if ordered:
        lines += ["| | model | rule | where | what | fix |", "| --- | --- | --- | --- | --- | --- |"]
    for model, finding in ordered[:MOST]:
        cells = [
            finding.level,
            code(model.name),
            title(finding),
            code(place(finding)),
            cell(finding.message),
            cell(finding.fix),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(ordered) > MOST:
        lines += ["", f"{plural(len(ordered) - MOST, 'finding')} more: the log and the other reports have all of them."]
    skipped = unexplained(report)
    if skipped:
        lines += ["", *(f"- {code(m.name)}: {cell(v.name)} skipped: {cell(v.reason)}" for m, v in skipped[:MOST])]
    return "\n".join(lines).rstrip() + "\n"


def table(grid: Grid) -> list[str]:
    """A GitHub table: names as code, other cells as text in which no sign means anything."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def shown(text: str, column: Column) -> str:
        return code(text) if column.shrink else cell(text)

    rows = [map(shown, row, grid.columns) for row in grid.rows]
    heads = [cell(column.header) for column in grid.columns]
    return [line(heads), line("---:" if column.right else "---" for column in grid.columns), *map(line, rows)]


def cell(text: str) -> str:
    """Text on one line that Markdown, HTML and the table leave as it is."""
    shown = escape(_cut(safe(text)))
    return f"\\{shown}" if _FORMULA.match(shown) else shown


_FORMULA = re.compile(r"[=+-](?=.)(?![\d.]+%?$|inf$)")
"""What begins a formula in a spreadsheet, or a list: signs before anything but a number."""


def escape(text: str) -> str:
    """Text in which no sign means anything to Markdown or HTML."""
    return "".join(_MEANS.get(sign, sign) for sign in text)


_MEANS = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", **{sign: f"\\{sign}" for sign in "\\`*_[]|~#"}}
"""Signs that mean something to Markdown or HTML, and how they are written."""


def code(text: str) -> str:
    """A name as code, whatever signs it has."""
    shown = _cut(safe(text)).replace("|", "\\|")
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _cut(text: str) -> str:
    return text if len(text) <= LONG else text[: LONG - 3] + "..."
