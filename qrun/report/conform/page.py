"""The answer of ``qrun conform``, and the scoreboard, as one HTML page in the style of ``qrun report``."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files

from qrun.conform.results import VERDICTS, CaseResult, Judgement, RuntimeResult
from qrun.report.conform.sheet import (
    CAUSE_COLUMNS,
    MESSAGE_COLUMNS,
    conform_sheet,
    found_causes,
    found_messages,
    summary,
    verdict_grid,
)
from qrun.report.grid import Column, Grid
from qrun.report.html.tags import NEWLINE, HtmlColumn, Markup, join, table, tag, void
from qrun.report.screen import GOOD


def conform_page(found: Judgement, argv: Sequence[str]) -> str:
    """The HTML document: no address outside of it is asked for anything."""
    sheet = conform_sheet(found)
    rows = [tag("dt", "suite"), tag("dd", f"{found.suite}, {found.selected} cases"), tag("dt", "again"),
            tag("dd", tag("code", shlex.join(["qrun", *argv])))]  # fmt: skip
    tiles = [tag("div", tag("b", _share(each), class_="good" if sheet.style == GOOD else None),
                 tag("span", f"exact: {each.title}"), class_="tile") for each in found.runtimes]  # fmt: skip
    head = tag(
        "header", tag("h1", "Conformance"), tag("dl", rows), tag("p", sheet.verdict), tag("div", tiles, class_="tiles")
    )
    return framed("qrun conform", [head, tag("main", join((_section(each) for each in found.runtimes), "\n"))])


def _share(each: RuntimeResult) -> str:
    return f"{100 * each.counts['exact'] / max(len(each.cases), 1):.1f}%"


def _section(each: RuntimeResult) -> Markup:
    shown = [v for v in VERDICTS if each.counts[v]]
    parts = [tag("h2", each.title), tag("p", summary(each), class_="about")]
    groups: dict[str, list[CaseResult]] = {}
    for case in sorted(each.cases, key=lambda case: ("::" in case.operator, case.operator)):
        groups.setdefault(case.operator, []).append(case)
    parts.append(grid_table("operators", verdict_grid("operator", groups, shown)))
    causes, messages = found_causes(each.cases), found_messages(each.cases)
    if causes:
        parts += [tag("h3", "Causes"), grid_table("causes", Grid.of(CAUSE_COLUMNS, causes))]
    if messages:
        parts += [tag("h3", "Refused and unsupported"), grid_table("messages", Grid.of(MESSAGE_COLUMNS, messages))]
    return tag("section", parts)


def grid_table(label: str, grid: Grid) -> Markup:
    """A Grid as a table of the page."""
    columns = [_column(column, place) for place, column in enumerate(grid.columns)]
    return table(label, columns, grid.rows, sortable=True)


def _column(column: Column, place: int) -> HtmlColumn:
    return HtmlColumn(
        column.header, lambda row: str(row[place]), number=column.right, name=bool(column.shrink), wide=column.wrap
    )


def framed(title: str, body: Sequence[Markup]) -> str:
    """A page with this body, in the style of `qrun report`, and its script, which sorts tables."""
    script = _resource("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = [
        void("meta", charset="utf-8"), NEWLINE, void("meta", http_equiv="Content-Security-Policy", content=policy), NEWLINE,
        void("meta", name="viewport", content="width=device-width, initial-scale=1"), NEWLINE, tag("title", title), NEWLINE,
        tag("style", Markup(_resource("style.css"))),
    ]  # fmt: skip
    content = tag("body", join(body, "\n"), NEWLINE, tag("script", Markup(script)))
    return "<!DOCTYPE html>\n" + tag("html", tag("head", head), NEWLINE, content, NEWLINE, lang="en") + "\n"


def _resource(name: str) -> str:
    return files("qrun.report.html").joinpath(name).read_text(encoding="utf-8")
