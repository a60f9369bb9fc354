"""A table: on a terminal a rich table that fits its width, elsewhere the same columns at natural width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qrun.report.text import shorten, width_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Grid.

    right:    numbers stand right.
    shrink:   shortened where the width does not suffice; the higher number first. 0: never.
    optional: left out where shortening does not suffice; the higher number first. 0: never.
    """

    header: str
    right: bool = False
    shrink: int = 0
    optional: int = 0
    style: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns and rows of text. `styles` gives single cells a style, by (row, column)."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    styles: dict[tuple[int, int], str] = field(default_factory=dict)

    def widths(self) -> list[int]:
        return [
            max([width_of(column.header), *(width_of(row[place]) for row in self.rows)])
            for place, column in enumerate(self.columns)
        ]

    def without(self, place: int) -> Grid:
        columns = [c for at, c in enumerate(self.columns) if at != place]
        rows = [[cell for at, cell in enumerate(row) if at != place] for row in self.rows]
        styles = {(r, c - (c > place)): s for (r, c), s in self.styles.items() if c != place}
        return Grid(columns, rows, styles)

    def fitted(self, width: int, overhead: int, ellipsis: str) -> Grid:
        """A grid whose columns take `width` with `overhead` for each of them, if shortening and leaving out allow it."""
        grid = self
        while True:
            widths = grid.widths()
            excess = sum(widths) + overhead * len(widths) - width
            if excess <= 0:
                return grid
            spare = sum(max(w - 12, 0) for w, c in zip(widths, grid.columns, strict=True) if c.shrink)
            droppable = [at for at, c in enumerate(grid.columns) if c.optional]
            if spare >= excess or not droppable:
                return grid._shrunk(widths, excess, ellipsis)
            grid = grid.without(max(droppable, key=lambda at: grid.columns[at].optional))

    def _shrunk(self, widths: list[int], excess: int, ellipsis: str) -> Grid:
        limits = list(widths)
        for floor in (12, 4):
            for at in sorted(range(len(widths)), key=lambda at: -self.columns[at].shrink):
                if self.columns[at].shrink and excess > 0:
                    cut = min(excess, max(limits[at] - floor, 0))
                    limits[at] -= cut
                    excess -= cut
        columns = [replace(c, header=shorten(c.header, w, ellipsis)) for c, w in zip(self.columns, limits, strict=True)]
        rows = [[shorten(cell, w, ellipsis) for cell, w in zip(row, limits, strict=True)] for row in self.rows]
        return Grid(columns, rows, self.styles)


def plain_lines(grid: Grid, indent: str = "  ", gap: str = "  ") -> list[list[tuple[str, str]]]:
    """One line a record, columns aligned, nothing cut; as (text, style) pieces."""
    widths = grid.widths()
    lines = []
    for number, row in enumerate([[c.header for c in grid.columns], *grid.rows], -1):
        pieces = [(indent, "")]
        for at, (cell, width, column) in enumerate(zip(row, widths, grid.columns, strict=True)):
            space = " " * (width - width_of(cell))
            style = "dim" if number < 0 else grid.styles.get((number, at), column.style)
            last = at == len(widths) - 1
            if column.right:
                pieces += [(space, ""), (cell, style)]
            else:
                pieces += [(cell, style), ("" if last else space, "")]
            if not last:
                pieces.append((gap, ""))
        lines.append(pieces)
    return lines


def markdown_lines(grid: Grid) -> list[str]:
    """A GitHub table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"

    rule = ["---:" if c.right else "---" for c in grid.columns]
    return [line([c.header for c in grid.columns]), line(rule), *(line(_code(row, grid)) for row in grid.rows)]


def _code(row: Sequence[str], grid: Grid) -> list[str]:
    """Names as code, so that no character of theirs is markup."""
    return [
        f"`{c.replace('`', ' ')}`" if column.shrink and c else c for c, column in zip(row, grid.columns, strict=True)
    ]


def rich_table(grid: Grid) -> Table:
    """A rich table with light lines; every cell is a Text, never markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, border_style="dim", header_style="bold", padding=(0, 1))
    for column in grid.columns:
        table.add_column(
            Text(column.header), justify="right" if column.right else "left", no_wrap=True, style=column.style
        )
    for number, row in enumerate(grid.rows):
        table.add_row(*(Text(cell, style=grid.styles.get((number, at), "")) for at, cell in enumerate(row)))
    return table
