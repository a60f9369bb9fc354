"""Tables: aligned columns, on a terminal fitted to its width and with a rule below the header."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Any

from qrun.declare.frozen import frozen, replace
from qrun.report.text import shorten, shorten_all, width_of, wrap

WRAPPED, FULL, LEAST = 24, 14, 8
"""Widths: of a wrapped column with long words, of names that still read well, and of the shortest names."""
TALL = 3
"""The most lines of a cell that still reads well; a cell that can move below its row gets one less."""
GAP, INDENT = "  ", "    "
"""What stands before each column, and the indentation of the lines below a row."""


@frozen
class Column:
    """A column of a Grid. If the table is too wide, columns give way in this order:

    wrap:     its cells go over several lines.
    below:    it moves below its row, across the table, instead of going over three lines or more.
    optional: it is left out, also if a cell would go over more than TALL lines; the higher number first. 0: never.
              `Grid.left_out` names it.
    shrink:   its cells are cut in the middle, equal ones only where they are equal; the higher number first, and among
              columns with the same number the widest. 0: never.

    right: numbers are aligned right. cell: makes a row's text; the row may be any record, see `Grid.of`.
    """

    header: str
    right: bool = False
    shrink: int = 0
    optional: int = 0
    style: str = ""
    wrap: bool = False
    below: bool = False
    cell: Callable[[Any], str] = str


@frozen
class Grid:
    """Columns and rows of text; a cell may have several lines.

    styles: of single cells, by (row, column). below: lines across the table below the header, and below each row.
    left_out: headers of the columns that `fit` has left out.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    styles: dict[tuple[int, int], str] = field(default_factory=dict)
    below: Sequence[Sequence[str]] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: Iterable[Column | None], rows: Iterable[Any]) -> Grid:
        """Makes a grid by applying each column's `cell` to each row; columns that are None are left out."""
        shown = [column for column in columns if column is not None]
        return cls(shown, [[column.cell(row) for column in shown] for row in rows])

    def and_rows(self, rows: Iterable[Mapping[str, str]]) -> Grid:
        """The grid with more rows at its end, of cells by header, such as sums; they have no style."""
        more = [[row.get(column.header, "") for column in self.columns] for row in rows]
        plain = {(len(self.rows) + at, place): "" for at in range(len(more)) for place in range(len(self.columns))}
        return replace(self, rows=[*self.rows, *more], styles={**self.styles, **plain})

    def widths(self) -> list[int]:
        return [
            max([width_of(column.header), *[width_of(line) for row in self.rows for line in row[place].split("\n")]])
            for place, column in enumerate(self.columns)
        ]

    def without(self, place: int) -> Grid:
        columns = [c for at, c in enumerate(self.columns) if at != place]
        rows = [[cell for at, cell in enumerate(row) if at != place] for row in self.rows]
        styles = {(r, c - (c > place)): s for (r, c), s in self.styles.items() if c != place}
        return replace(self, columns=columns, rows=rows, styles=styles)

    def fits(self, width: int) -> bool:
        """Whether the columns fit into `width`, with a GAP before each of them."""
        return sum(self.widths(), len(GAP) * len(self.columns)) <= width

    def fit(self, width: int, ellipsis: str) -> Grid:
        """Narrows the grid until it fits, or as far as possible."""
        grid: Grid = self
        while True:
            widths = grid.widths()
            room = width - len(GAP) * len(widths)
            if sum(widths) <= room:
                return grid
            wrapped = grid._wrap(widths, room)
            fits = sum(wrapped.widths()) <= room
            droppable = [at for at, c in enumerate(grid.columns) if c.optional]
            if low := [at for at, c in enumerate(grid.columns) if c.below]:
                if fits and not wrapped._is_tall(low, TALL - 1):
                    return wrapped
                grid = grid._lower_columns(low, width - len(GAP))
                continue
            if fits and not (droppable and wrapped._is_tall(range(len(widths)), TALL)):
                return wrapped
            if not droppable:
                return wrapped._shrink(wrapped.widths(), room, ellipsis)
            last = max(droppable, key=lambda at: grid.columns[at].optional)
            gone = {*grid.left_out, grid.columns[last].header} - {""}
            left_out = tuple(c.header for c in self.columns if c.header in gone)
            grid = replace(grid.without(last), left_out=left_out)

    def _is_tall(self, places: Sequence[int], most: int) -> bool:
        return any(row[at].count("\n") >= most for row in self.rows for at in places)

    def _lower_columns(self, places: Sequence[int], width: int) -> Grid:
        """Moves these columns into lines of at most `width` below their rows."""

        def lines(cells: Sequence[str]) -> list[str]:
            text = ": ".join(cells[at] for at in places if cells[at])
            return [INDENT + line for line in wrap(text, width - len(INDENT))] if text else []

        below = [lines([c.header for c in self.columns]), *map(lines, self.rows)]
        kept = self
        for at in reversed(places):
            kept = kept.without(at)
        return replace(kept, below=below)

    def _wrap(self, widths: list[int], room: int) -> Grid:
        """Wraps cells, starting with the widest column that may wrap; no column gets narrower than its longest word."""
        limits = list(widths)
        floors = {
            at: max(width_of(c.header), min(WRAPPED, max((_longest(row[at]) for row in self.rows), default=0)))
            for at, c in enumerate(self.columns)
            if c.wrap
        }
        while sum(limits) > room and (wide := [at for at in floors if limits[at] > floors[at]]):
            limits[max(wide, key=lambda at: limits[at])] -= 1
        rows = [["\n".join(wrap(c, limits[at])) if at in floors else c for at, c in enumerate(r)] for r in self.rows]
        return replace(self, rows=rows)

    def _shrink(self, widths: list[int], room: int, ellipsis: str) -> Grid:
        limits = list(widths)
        orders = sorted({c.shrink for c in self.columns if c.shrink}, reverse=True)
        for floor in (FULL, LEAST):
            for order in orders:
                alike = [at for at, c in enumerate(self.columns) if c.shrink == order]
                while sum(limits) > room and limits[widest := max(alike, key=lambda at: limits[at])] > floor:
                    limits[widest] -= 1
        columns = [replace(c, header=shorten(c.header, w, ellipsis)) for c, w in zip(self.columns, limits, strict=True)]
        cells = [[row[at] for row in self.rows] for at in range(len(self.columns))]
        for at, column in enumerate(self.columns):
            if column.shrink and limits[at] < widths[at]:
                lines = [cell.split("\n") for cell in cells[at]]
                sums = [self.styles.get((row, at)) == "" for row in range(len(lines))]
                names = [line for each, is_sum in zip(lines, sums, strict=True) if not is_sum for line in each]
                short = iter(shorten_all(names, limits[at], ellipsis))
                cells[at] = [
                    "\n".join(shorten(line, limits[at], ellipsis) if is_sum else next(short) for line in each)
                    for each, is_sum in zip(lines, sums, strict=True)
                ]
        return replace(self, columns=columns, rows=list(zip(*cells, strict=True)))


def _longest(cell: str) -> int:
    return max(map(width_of, cell.replace("::", ":: ").split()), default=0)


Line = list[tuple[str, str]]
"""Pieces of text with their styles."""


def grid_lines(grid: Grid, rule: str = "") -> Iterator[Line]:
    """One line per row, or as many as its tallest cell, below the header. rule: the character of the line between them;
    "": there is none."""
    widths = grid.widths()
    below = grid.below or [()] * (len(grid.rows) + 1)
    for number, row in enumerate([[c.header for c in grid.columns], *grid.rows], -1):
        for cells in zip_longest(*[cell.split("\n") for cell in row], fillvalue=""):
            pieces: Line = []
            for at, (cell, width, column) in enumerate(zip(cells, widths, grid.columns, strict=True)):
                space = (" " * (width - width_of(cell)), "")
                own = (cell, "bold" if number < 0 else grid.styles.get((number, at), column.style))
                pieces += [(GAP, ""), *((space, own) if column.right else (own, space))]
            yield pieces if grid.columns[-1].right else pieces[:-1]
        for line in below[number + 1]:
            yield [(GAP, ""), (line, "bold" if number < 0 else "")]
        if number < 0 and rule:
            yield [(GAP, ""), (rule * sum(widths, len(GAP) * (len(widths) - 1)), "dim")]
