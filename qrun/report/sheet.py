"""A report before it becomes text or Markdown: the models, a verdict, blocks, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qrun.declare.frozen import frozen, replace
from qrun.documents.answers import SHORT
from qrun.report.answer import OPTIONS, Answer, commands
from qrun.report.grid import Column, Grid
from qrun.report.header import Headline, print_headline
from qrun.report.markdown import cell, code, escape, table
from qrun.report.nodes import fold_prefix
from qrun.report.screen import NAME, NEXT, OPEN, Out, Screen
from qrun.report.text import plural

if TYPE_CHECKING:
    from qrun.comparing.saved import Setting

Sources = Mapping[str, str]
"""The source of each input, by name."""
NONE: Sources = MappingProxyType({})


@frozen
class Block:
    """A heading, then labelled facts, a table, lines about the table, and a line about what was left out.

    legends: lines about columns, by header; each is printed once, below the first table that shows its column.
    folds: the table's names are names of nodes. more: what was left out, three spaces, and what shows it; or only the
    latter. style: of the title.
    """

    title: str
    grid: Grid | None = None
    facts: Sequence[tuple[str, str]] = ()
    legends: Mapping[str, str] = NONE
    lines: Sequence[str] = ()
    more: str = ""
    folds: bool = False
    style: str = "bold"


@frozen
class Sheet:
    """A report.

    models:  headlines of the models; about: what was done to them, one line each.
    verdict: the answer as a sentence, "" if there is none; style: GOOD, BAD or OPEN.
    title:   of Markdown, if there are no models.
    """

    blocks: Sequence[Block] = ()
    verdict: str = ""
    style: str = OPEN
    models: Sequence[Headline] = ()
    about: Sequence[str] = ()
    notes: Sequence[str] = ()
    title: str = "qrun compare"

    def answer(self, code: int) -> Answer:
        """The answer of a call with this report and exit code."""
        facts = [OPTIONS.match(text) for block in self.blocks for label, text in block.facts if label == "next"]
        lines = [line for block in self.blocks for line in block.lines]
        return Answer(code, self.verdict, [*commands([*lines, *self.notes]), *(found[0] for found in facts if found)])

    def with_about(self, *lines: object) -> Sheet:
        """The report with these lines below those of `about`; None is left out."""
        return replace(self, about=[*self.about, *(str(line) for line in lines if line is not None)])


def print_sheet(out: Out, sheet: Sheet, markdown: bool = False) -> None:
    """Prints text or GitHub Markdown. When quiet, the text is only the verdict, or the blocks if there is none."""
    if markdown:
        for line in markdown_lines(sheet):
            out.result.line(line)
        return
    screen, quiet = out.result, out.quiet
    blocks = () if quiet and sheet.verdict else sheet.blocks
    parts: list[Callable[[], None]] = [lambda: _print_verdict(screen, sheet)] if sheet.verdict else []
    parts += [lambda: _print_subject(screen, sheet)] if not quiet and (sheet.models or sheet.about) else []
    told: set[str] = set()
    parts += [partial(_print_block, screen, block, told) for block in blocks]
    parts += [lambda: _print_notes(screen, sheet)] if sheet.notes and not quiet else []
    for number, part in enumerate(parts):
        if number:
            screen.line()
        part()


def _print_verdict(screen: Screen, sheet: Sheet) -> None:
    word, colon, rest = sheet.verdict.partition(":")
    screen.wrapped("", "  ", (word + colon, sheet.style), rest)


def _print_subject(screen: Screen, sheet: Sheet) -> None:
    for model in sheet.models:
        print_headline(screen, model)
    for line in sheet.about:
        screen.wrapped("  " * bool(sheet.models), "  ", line)


def _print_notes(screen: Screen, sheet: Sheet) -> None:
    for note in sheet.notes:
        screen.wrapped("note: ", "      ", note)


def _print_block(screen: Screen, block: Block, told: set[str]) -> None:
    """told: the legends printed so far; this block's are added to it."""
    if block.title:
        screen.wrapped("", "  ", (block.title, block.style))
    screen.facts(block.facts)
    legends: list[str] = []
    if block.grid is not None:
        shown = screen.grid(fold_prefix(screen, block.grid) if block.folds else block.grid)
        legends = legends_of(block, shown, told)
    for line in legends:
        screen.wrapped("  ", "  ", (line, "dim"))
    for line in block.lines:
        style = NAME if is_code(line) else NEXT if line.startswith("qrun ") else ""
        screen.wrapped("  ", "    " if is_code(line) else "  ", (line, style))
    if block.more:
        left, gap, way = block.more.rpartition("   ")
        screen.wrapped(f"  {screen.ellipsis} " if left else "  ", "    ", left, (gap + way, NEXT))


def legends_of(block: Block, shown: Grid, told: set[str]) -> list[str]:
    """The legends of the columns shown, without those in `told`; adds them to `told`."""
    headers = {column.header for column in shown.columns}
    new = [line for header, line in block.legends.items() if header in headers and line not in told]
    told.update(new)
    return new


def is_code(line: str) -> bool:
    """Whether this line is Python to copy, ``name=[...]``."""
    return line.partition("=[")[0].isidentifier()


def markdown_lines(sheet: Sheet) -> Iterator[str]:
    """The report as GitHub Markdown: models, or the verdict, as its heading."""
    names = " and ".join(code(model.name) for model in sheet.models)
    yield f"### {names or f'{sheet.title}: {cell(sheet.verdict)}'}"
    yield from _paragraphs([*([cell(sheet.verdict)] if names and sheet.verdict else []), *map(escape, sheet.about)])
    told: set[str] = set()
    for block in sheet.blocks:
        yield from _paragraphs([f"**{cell(block.title)}**"])
        if block.facts:
            yield from ("", *(f"- {label}: {cell(value)}" for label, value in block.facts))
        if block.grid is not None:
            yield from ("", *table(block.grid))
            yield from _paragraphs(map(escape, legends_of(block, block.grid, told)))
        for line in block.lines:
            yield from ("", "```python", line, "```") if is_code(line) else ("", escape(line))
        yield from _paragraphs([cell(block.more)] if block.more else [])
    yield from _paragraphs(f"note: {escape(note)}" for note in sheet.notes)


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield ""
        yield text


def more(left: int, noun: str) -> str:
    """``3 more arrays   --top all, --json``; "" if nothing was left out."""
    return f"{plural(left, f'more {noun}')}   --top all, --json" if left > 0 else ""


def top_rows(
    title: str, columns: Sequence[Column | None], rows: Sequence[Any], top: int | None, noun: str, folds: bool = False
) -> list[Block]:
    """A table of the first `top` rows, None for all, and the number left out; [] without rows."""
    grid = Grid.of(columns, rows[:top])
    return [Block(title, grid, more=more(len(rows) - len(grid.rows), noun), folds=folds)] if rows else []


def settings_block(settings: Sequence[Setting], a: str, b: str) -> list[Block]:
    """The settings that differ; [] if none does."""
    if not settings:
        return []
    rows = [[s.name, *((v[:SHORT] if s.name.endswith("sha256") else v) for v in (s.a, s.b))] for s in settings]
    return [Block("Not the same", Grid([Column("what", shrink=1), Column(a, wrap=True), Column(b, wrap=True)], rows))]


def name_tables(groups: Sequence[tuple[str, Sequence[str]]], top: int | None) -> list[Block]:
    """Tables of the names that only one side has."""
    column = Column("name", shrink=1, style=NAME)
    return [block for title, names in groups for block in top_rows(title, [column], names, top, "name")]
