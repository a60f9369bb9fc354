"""What every page has around its own content: head, style, policy, script;
and the blocks of a report as parts of a page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import chain
from operator import itemgetter

from qrun.report.grid import Grid
from qrun.report.html.tags import HtmlColumn, Markup, join, table, tag, void
from qrun.report.sheet import Block


def framed(title: str, body: Sequence[Markup]) -> str:
    """The HTML document; it asks no address for anything, and only its own script may run."""
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
    for block in found:
        yield tag("h3", block.title)
        if block.facts:
            yield facts(block.facts)
        if block.grid is not None:
            yield grid_table(block.title, block.grid)
        for line in (*block.lines, *filter(None, [block.more])):
            yield tag("p", line, class_="about")


def section(id: str, title: str, about: str, *parts: Markup | Iterable[Markup]) -> Markup:
    """A section with its heading, which the page's links lead to, and a line about it, where there is one."""
    told = [tag("p", about, class_="about")] if about else []
    return tag("section", tag("h2", title, id=id), told, *parts)


def facts(rows: Iterable[tuple[str, str]]) -> Markup:
    """Labels with their values; those without a value are left out."""
    return tag("dl", chain.from_iterable((tag("dt", label), tag("dd", value)) for label, value in rows if value))


def grid_table(label: str, grid: Grid) -> Markup:
    """A table for screens as a table of the page."""
    columns = [
        HtmlColumn(c.header, itemgetter(at), number=c.right, name=bool(c.shrink), wide=c.wrap)
        for at, c in enumerate(grid.columns)
    ]
    return table(label, columns, grid.rows, sortable=True)
