"""Builds HTML from Python: every text is escaped, control characters become visible escapes. Renders sheets as parts of
a page, and the frame of every page: head, style, policy, script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain

from qrun.report.grid import Column, Grid
from qrun.report.sheet import NONE, Block, is_code, legends_of
from qrun.report.text import BRACKETS, safe


class Markup(str):
    """Text that already is HTML."""

    __slots__ = ()


NEWLINE = Markup("\n")
Child = str | Iterable[str]


def text(value: str) -> Markup:
    """The value on one line, with the characters that are special in HTML escaped."""
    return value if isinstance(value, Markup) else Markup(BRACKETS.sub("#&#35;", escape(safe(value))))


def join(parts: Iterable[str], between: str = "") -> Markup:
    return Markup(between.join(text(part) for part in parts))


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """``<name ...>children</name>``. Attributes: ``class_`` for ``class``, ``_`` for ``-``; None and False are left
    out."""
    inner = "".join(text(c) if isinstance(c, str) else join(c) for c in children)
    return Markup(f"<{name}{_attributes(attributes)}>{inner}</{name}>")


def void(name: str, /, **attributes: str | bool | None) -> Markup:
    """An HTML element without an end tag."""
    return Markup(f"<{name}{_attributes(attributes)}>")


def shape(name: str, /, **attributes: str | bool | None) -> Markup:
    """An SVG element without content."""
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


def table(
    label: str,
    grid: Grid,
    *,
    legends: Mapping[str, str] = NONE,
    sortable: bool = True,
    box: str = "",
    sorted: str = "",
    ids: Sequence[str | None] = (),
) -> Markup:
    """A grid as an HTML table in a box of its own, which scrolls if the page is too narrow; cells are text or markup.

    The look of a column is stated once, by a class: ``n3`` says that the third column has numbers, ``k`` names, ``m``
    other long cells, ``w`` sentences.

    legends: tooltips of headers. box: ``side`` for a first column that stays in place while the others scroll.
    sorted: the column in whose descending order the rows are. ids: of rows, for links to them.
    """
    longest = max((column.shrink for column in grid.columns), default=0)
    kinds = [_kind(column, longest) for column in grid.columns]
    heads = (
        tag(
            "th",
            c.header,
            scope="col",
            class_="n" if c.right else None,
            title=legends.get(c.header),
            aria_sort="descending" if sorted and c.header == sorted else None,
            data_first="descending" if sortable and c.right and c.header != "#" else None,
        )
        for c in grid.columns
    )
    bars = [_bars(row[at] for row in grid.rows) if c.header == "share" else [] for at, c in enumerate(grid.columns)]
    body = (
        tag(
            "tr",
            *(
                tag("td", _breakable(c, k), style=b[place] if b else None)
                for c, k, b in zip(row, kinds, bars, strict=True)
            ),
            NEWLINE,
            id=ids[place] if ids else None,
        )
        for place, row in enumerate(grid.rows)
    )
    classes = ["sortable"] * sortable + [f"{kind}{place}" for place, kind in enumerate(kinds, 1) if kind]
    made = tag("table", tag("thead", tag("tr", heads)), tag("tbody", body), class_=" ".join(classes) or None)
    narrow = "" if box or "w" in kinds or len(kinds) > NARROW else "narrow"
    box = " ".join(filter(None, ["scroll", box, narrow]))
    return tag("div", made, class_=box, tabindex="0", role="region", aria_label=label)


def _breakable(cell: str, kind: str) -> str:
    """The cell; a name may break after the signs between its words."""
    return cell if isinstance(cell, Markup) or kind not in ("k", "m") else Markup(WORDS.sub(r"\1<wbr>", text(cell)))


WORDS = re.compile(r"([/_.:]+)(?=\w)")
NARROW = 6
"""A table with at most this many columns need not be as wide as the page."""


def _kind(column: Column, longest: int) -> str:
    if column.right or column.wrap:
        return "n" if column.right else "w"
    return "" if not column.shrink else "k" if column.shrink == longest else "m"


def _bars(shares: Iterable[str]) -> list[str | None]:
    """Bars behind percentages; the bar of the largest is as wide as its cell."""
    parts = [float(share.rstrip("%")) if share.endswith("%") else 0.0 for share in shares]
    largest = max(parts, default=0.0)
    return [f"--part:{100 * part / largest:.0f}%" if part else None for part in parts]


def search(target: str, words: str, columns: str) -> Markup:
    """A box that hides the rows without its words in these columns, counted from 0; it is visible only with scripts."""
    box = tag("label", words, void("input", type="search", autocomplete="off", spellcheck="false"))
    return tag("p", box, tag("output"), class_="filter", data_table=target, data_columns=columns, hidden=True)


def pointed(told: Sequence[str], parts: Child, row: int | None, **attributes: str | None) -> Markup:
    """A part of a picture, with words that appear when it is pointed at or focused. told: these words. No line of the
    page begins with one, as a name could be a command to a CI runner that reads it. row: the node to whose row it is a
    link, None for no link."""
    title = tag("title", join(told, " · "))
    return tag("g", title, parts) if row is None else tag("a", title, parts, href=f"#n{row}", **attributes)


def picture(drawn: Sequence[Markup] | Markup, hint: str, *more: Markup | Iterable[Markup], **attributes: str) -> Markup:
    """A drawing with `pointed` parts, below it a line with the words of the part that is pointed at. hint: that line
    before, visible only with scripts; more: what comes after it."""
    line = tag("p", hint, class_="told", hidden=True)
    return tag("figure", drawn, line, *more, class_="picture", **attributes)


def html_page(title: str, body: Sequence[Markup]) -> str:
    """The HTML document; it loads nothing from any address, and only its own script may run."""
    from qrun import __version__

    script = Markup(_resource("script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = [
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=policy),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="generator", content=f"qrun {__version__}"),
        tag("title", title),
        tag("style", Markup(_resource("style.css"))),
    ]
    content = tag("body", join([*body, tag("script", script)], "\n"))
    return "<!DOCTYPE html>\n" + tag("html", tag("head", join(head, "\n")), content, lang="en") + "\n"


def _resource(name: str) -> str:
    return files("qrun.report.html").joinpath(name).read_text(encoding="utf-8")


def blocks(found: Iterable[Block]) -> Iterator[Markup]:
    """The blocks of a report for screens, one after the other."""
    told: set[str] = set()
    for block in found:
        yield tag("h3", block.title)
        if block.facts:
            yield facts(block.facts)
        legends = []
        if block.grid is not None:
            yield table(block.title, block.grid, legends=block.legends)
            legends = legends_of(block, block.grid, told)
        for line in (*legends, *block.lines, *filter(None, [block.more])):
            yield tag("pre", line) if is_code(line) else tag("p", line, class_="about")


def section(id: str, title: str, about: str, *parts: Markup | Iterable[Markup]) -> Markup:
    """A section with a heading that the page's links lead to, and a line about it if `about` is not ""."""
    told = [tag("p", about, class_="about")] if about else []
    return tag("section", tag("h2", title, id=id), told, *parts)


def facts(rows: Iterable[tuple[str, str]]) -> Markup:
    """Labels with their values; labels without a value are left out."""
    return tag("dl", chain.from_iterable((tag("dt", label), tag("dd", value)) for label, value in rows if value))
