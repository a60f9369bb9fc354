"""Markdown: tables of any command, and text in which no sign means anything."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qrun.report.grid import Column, Grid
from qrun.report.text import safe

LONG = 300


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
    return text.translate(_MEANS)


_MEANS = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", **{sign: f"\\{sign}" for sign in "\\`*_[]|~#"}}
)
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
