"""Markup from Python: every text is escaped, control characters become visible escapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from qrun.declare.frozen import frozen
from qrun.report.text import BRACKETS, safe


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


NEWLINE = Markup("\n")
Child = str | Iterable[str]


def text(value: str) -> Markup:
    """The value as it is shown: on one line, with no sign that HTML reads as its own."""
    return value if isinstance(value, Markup) else Markup(BRACKETS.sub("#&#35;", escape(safe(value))))


def join(parts: Iterable[str], between: str = "") -> Markup:
    return Markup(between.join(text(part) for part in parts))


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """``<name ...>children</name>``. Attributes: ``class_`` for ``class``, ``_`` for ``-``;
    those None or False are left out."""
    inner = "".join(text(c) if isinstance(c, str) else join(c) for c in children)
    return Markup(f"<{name}{_attributes(attributes)}>{inner}</{name}>")


def void(name: str, /, **attributes: str | bool | None) -> Markup:
    """An element without an end tag."""
    return Markup(f"<{name}{_attributes(attributes)}>")


def shape(name: str, /, **attributes: str | bool | None) -> Markup:
    """An element of SVG without content."""
    return Markup(f"<{name}{_attributes(attributes)}/>")


def _attributes(attributes: dict[str, str | bool | None]) -> str:
    made = []
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            made.append(f" {name}")
        elif value is not None and value is not False:
            made.append(f' {name}="{text(value)}"')
    return "".join(made)


@frozen
class HtmlColumn:
    """A column of a table. cell: what it shows of a row, text, markup or a whole ``<td>``.

    number: aligned to the right and sorted by value, the largest first unless `rising`.
    name:   in a fixed-width font, broken anywhere; short: cells that are never broken; wide: sentences.
    sorted: how the rows are in order of it already, ``descending`` or ``ascending``.
    sorts:  a click on the header of a sortable table sorts by it.
    """

    header: str
    cell: Callable[[Any], str]
    number: bool = False
    rising: bool = False
    name: bool = False
    short: bool = False
    wide: bool = False
    sorts: bool = True
    sorted: str = ""
    about: str = ""

    @property
    def style(self) -> str | None:
        return "n" if self.number else "k" if self.name else "s" if self.short else "w" if self.wide else None


class Cell(Markup):
    """A whole ``<td>``."""

    __slots__ = ()


def table(
    label: str,
    columns: Iterable[HtmlColumn | None],
    rows: Iterable[Any],
    *,
    sortable: bool = False,
    box: str = "",
    id: Callable[[Any], str | None] = lambda row: None,
) -> Markup:
    """A table in a box of its own that scrolls where the page is too narrow, and is as `box` says.

    How a column looks is said once: the class ``n3`` is for numbers in the third column.

    columns: None is left out. id: of a row, for links to it.
    box: words: ``tall`` to scroll what is longer than a window, ``narrow`` for a table of few columns, ``side`` for a
         first column that stays where the others are scrolled.
    """
    shown = [column for column in columns if column is not None]
    heads = (
        tag(
            "th",
            c.header,
            scope="col",
            class_=c.style,
            title=c.about or None,
            aria_sort=c.sorted or None,
            data_fixed=sortable and not c.sorts,
            data_first="descending" if sortable and c.number and not c.rising else None,
        )
        for c in shown
    )
    body = (tag("tr", *(_cell(column.cell(row)) for column in shown), NEWLINE, id=id(row)) for row in rows)
    styles = [f"{c.style}{place}" for place, c in enumerate(shown, 1) if c.style]
    made = tag(
        "table",
        tag("thead", tag("tr", heads)),
        tag("tbody", body),
        class_=" ".join(["sortable"] * sortable + styles) or None,
    )
    return tag("div", made, class_=f"scroll {box}".rstrip(), tabindex="0", role="region", aria_label=label)


def _cell(shown: str) -> str:
    return shown if isinstance(shown, Cell) else tag("td", shown)
