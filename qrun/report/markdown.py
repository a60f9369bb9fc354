"""Markdown: tables for any command, and text with every special character escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from qrun.report.grid import Grid
from qrun.report.text import safe

LONG = 300


def table(grid: Grid) -> list[str]:
    """A GitHub table: names as code, other cells as escaped text."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def shown(number: int, row: Sequence[str]) -> Iterator[str]:
        for at, (text, column) in enumerate(zip(row, grid.columns, strict=True)):
            name = column.shrink and grid.styles.get((number, at)) != ""  # no sum, see `Grid.and_rows`
            yield code(text) if name else cell(text)

    rows = [shown(number, row) for number, row in enumerate(grid.rows)]
    heads = [cell(column.header) for column in grid.columns]
    return [line(heads), line("---:" if column.right else "---" for column in grid.columns), *map(line, rows)]


def cell(text: str) -> str:
    """Text on one line that Markdown, HTML and the table show unchanged."""
    shown = escape(_cut(safe(text)))
    return f"\\{shown}" if _FORMULA.match(shown) else shown


_FORMULA = re.compile(r"[=+-](?=.)(?![\d.]+%?$|inf$)")
"""The start of a formula in a spreadsheet, or of a list: a sign before anything but a number."""


def escape(text: str) -> str:
    """Text in which no character is special to Markdown or HTML."""
    return text.translate(_MEANS)


_MEANS = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", **{sign: f"\\{sign}" for sign in "\\`*_[]|~#"}}
)
"""The escapes of characters that are special to Markdown or HTML."""


def code(text: str) -> str:
    """A name as code, whatever characters it contains."""
    shown = _cut(safe(text)).replace("|", "\\|")
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _cut(text: str) -> str:
    return text if len(text) <= LONG else text[: LONG - 3] + "..."
