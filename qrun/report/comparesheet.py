"""What a report of a comparison is made of, before it is text or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from qrun.comparing.settings import Setting
from qrun.declare.frozen import frozen
from qrun.report.grid import Column, Grid
from qrun.report.markdown import cell, table
from qrun.report.nodes import fold_prefix
from qrun.report.screen import Out
from qrun.report.text import SHORT, plural

Sources = Mapping[str, str]
"""Where each input came from, by name."""
NONE: Sources = MappingProxyType({})


@frozen
class Block:
    """A heading, and below it labelled facts, a table, and what was left out. folds: the table's names are of nodes."""

    title: str
    grid: Grid | None = None
    facts: Sequence[tuple[str, str]] = ()
    more: str = ""
    folds: bool = False


@frozen
class Sheet:
    """A report: what was compared, the blocks, and the verdict."""

    title: str
    blocks: Sequence[Block]
    verdict: str


def print_sheet(out: Out, sheet: Sheet, markdown: bool = False) -> None:
    """The text report, of which only the verdict when quiet; or the report as GitHub Markdown."""
    if markdown:
        _print_markdown(out, sheet)
        return
    screen = out.result
    if not out.quiet:
        screen.wrapped("", "  ", sheet.title)
        for block in sheet.blocks:
            screen.line()
            screen.line((block.title, "bold"))
            width = max((len(label) for label, _ in block.facts), default=0)
            for label, value in block.facts:
                first = f"  {label:<{width}}  "
                screen.wrapped(first, " " * len(first), value)
            if block.grid is not None:
                screen.grid(fold_prefix(screen, block.grid) if block.folds else block.grid)
            if block.more:
                screen.wrapped(f"  {screen.ellipsis} ", "    ", block.more)
        screen.line()
    screen.wrapped("", "  ", sheet.verdict)


def _print_markdown(out: Out, sheet: Sheet) -> None:
    lines = [f"### qrun compare: {cell(sheet.verdict)}", "", cell(sheet.title)]
    for block in sheet.blocks:
        lines += ["", f"**{cell(block.title)}**"]
        if block.facts:
            lines += ["", *(f"- {label}: {cell(value)}" for label, value in block.facts)]
        if block.grid is not None:
            lines += ["", *table(block.grid)]
        if block.more:
            lines += ["", cell(block.more)]
    for line in lines:
        out.result.line(line)


def more(left: int, noun: str) -> str:
    """``3 more arrays   --top all, --json``; "" if nothing was left out."""
    return f"{plural(left, f'more {noun}')}   --top all, --json" if left > 0 else ""


def settings_block(settings: Sequence[Setting], a: str, b: str) -> list[Block]:
    """What was not the same; nothing if all was."""
    if not settings:
        return []
    rows = [[s.name, *((v[:SHORT] if s.name.endswith("sha256") else v) for v in (s.a, s.b))] for s in settings]
    return [Block("Not the same", Grid([Column("what", shrink=1), Column(a, wrap=True), Column(b, wrap=True)], rows))]


def listed(groups: Sequence[tuple[str, Sequence[str]]], top: int | None) -> list[Block]:
    """Names that only one side has."""
    made = []
    for title, names in groups:
        if names:
            grid = Grid([Column("name", shrink=1)], [[name] for name in names[:top]])
            made.append(Block(title, grid, more=more(len(names) - len(grid.rows), "name")))
    return made
