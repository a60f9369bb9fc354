"""A table: on a terminal a rich table that fits its width, elsewhere the same columns at natural width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from qrun.declare.frozen import frozen
from qrun.report.text import shorten, shorten_all, width_of, wrap

if TYPE_CHECKING:
    from rich.table import Table

WRAPPED, FULL, LEAST = 24, 14, 8
"""Widths: of a wrapped column whose words are long, of names that are still comfortable, and of the shortest names."""
TALL = 3
"""Lines of a cell that are still comfortable."""


@frozen
class Column:
    """A column of a Grid. Where the width does not suffice, it gives way in this order:

    wrap:     its cells go over several lines.
    optional: left out, also where a cell would go over more than TALL lines; the higher number first. 0: never.
    shrink:   its cells are cut in the middle, equal ones only where they are equal; the higher number first. 0: never.

    right: numbers stand right. cell: the text of a row, which may be any record; see `Grid.of`.
    """

    header: str
    right: bool = False
    shrink: int = 0
    optional: int = 0
    style: str = ""
    wrap: bool = False
    cell: Callable[[Any], str] = str


@frozen
class Grid:
    """Columns and rows of text; a cell may have several lines. `styles` gives single cells a style, by (row, column)."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    styles: dict[tuple[int, int], str] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Iterable[Column | None], rows: Iterable[Any]) -> Grid:
        """What the columns say of the rows; None is left out."""
        shown = [column for column in columns if column is not None]
        return cls(shown, [[column.cell(row) for column in shown] for row in rows])

    def widths(self) -> list[int]:
        return [
            max([width_of(column.header), *[_width(row[place]) for row in self.rows]])
            for place, column in enumerate(self.columns)
        ]

    def without(self, place: int) -> Grid:
        columns = [c for at, c in enumerate(self.columns) if at != place]
        rows = [[cell for at, cell in enumerate(row) if at != place] for row in self.rows]
        styles = {(r, c - (c > place)): s for (r, c), s in self.styles.items() if c != place}
        return Grid(columns, rows, styles)

    def fits(self, width: int, overhead: int) -> bool:
        """Do the columns, with `overhead` for each of them, take no more than `width`?"""
        return sum(self.widths()) + overhead * len(self.columns) <= width

    def fitted(self, width: int, overhead: int, ellipsis: str) -> Grid:
        """The grid made as narrow as it takes to fit, or as narrow as it gets."""
        grid: Grid = self
        while True:
            widths = grid.widths()
            room = width - overhead * len(widths)
            if sum(widths) <= room:
                return grid
            wrapped = grid._wrapped(widths, room)
            droppable = [at for at, c in enumerate(grid.columns) if c.optional]
            if sum(wrapped.widths()) <= room and not (droppable and wrapped._is_tall()):
                return wrapped
            if not droppable:
                return wrapped._shrunk(wrapped.widths(), room, ellipsis)
            grid = grid.without(max(droppable, key=lambda at: grid.columns[at].optional))

    def _is_tall(self) -> bool:
        return any(cell.count("\n") >= TALL for row in self.rows for cell in row)

    def _wrapped(self, widths: list[int], room: int) -> Grid:
        """The widest wrapping column gives way first, none below its longest word."""
        limits = list(widths)
        floors = {
            at: max(width_of(c.header), min(WRAPPED, max((_longest(row[at]) for row in self.rows), default=0)))
            for at, c in enumerate(self.columns)
            if c.wrap
        }
        while sum(limits) > room and (wide := [at for at in floors if limits[at] > floors[at]]):
            limits[max(wide, key=lambda at: limits[at])] -= 1
        rows = [["\n".join(wrap(c, limits[at])) if at in floors else c for at, c in enumerate(r)] for r in self.rows]
        return Grid(self.columns, rows, self.styles)

    def _shrunk(self, widths: list[int], room: int, ellipsis: str) -> Grid:
        limits = list(widths)
        for floor in (FULL, LEAST):
            for at in sorted(range(len(widths)), key=lambda at: -self.columns[at].shrink):
                if self.columns[at].shrink:
                    limits[at] -= min(max(sum(limits) - room, 0), max(limits[at] - floor, 0))
        columns = [replace(c, header=shorten(c.header, w, ellipsis)) for c, w in zip(self.columns, limits, strict=True)]
        cells = [[row[at] for row in self.rows] for at in range(len(self.columns))]
        for at, column in enumerate(self.columns):
            if column.shrink and limits[at] < widths[at]:
                cells[at] = shorten_all(cells[at], limits[at], ellipsis)
        return Grid(columns, list(zip(*cells, strict=True)), self.styles)


def _width(cell: str) -> int:
    return max(map(width_of, cell.split("\n"))) if "\n" in cell else width_of(cell)


def _longest(cell: str) -> int:
    return max(map(width_of, cell.split()), default=0)


def plain_lines(grid: Grid, indent: str = "  ", gap: str = "  ") -> Iterator[list[tuple[str, str]]]:
    """One line a record, or as many as its tallest cell, columns aligned, nothing cut; as (text, style) pieces."""
    widths, rights = grid.widths(), [column.right for column in grid.columns]
    styles, usual = ["dim"] * len(widths), [column.style for column in grid.columns]
    for number, row in enumerate([[c.header for c in grid.columns], *grid.rows], -1):
        for cells in zip_longest(*[cell.split("\n") for cell in row], fillvalue=""):
            pieces, before = [], indent
            for at, (cell, width, right, style) in enumerate(zip(cells, widths, rights, styles, strict=True)):
                space = " " * (width - width_of(cell))
                own = grid.styles.get((number, at), style) if grid.styles and number >= 0 else style
                pieces += [(before + space if right else before, ""), (cell, own)]
                before = gap if right else space + gap
            yield pieces
        styles = usual


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
