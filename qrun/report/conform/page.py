"""The answer of ``qrun conform``, and the scoreboard, as one HTML page in the style of ``qrun report``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from qrun.conform.results import VERDICTS, Judgement, RuntimeResult
from qrun.report.conform.sheet import (
    CAUSE_COLUMNS,
    MESSAGE_COLUMNS,
    by_operator,
    conform_sheet,
    found_causes,
    found_messages,
    summary,
    verdict_grid,
)
from qrun.report.grid import Grid
from qrun.report.html.frame import facts, framed, grid_table
from qrun.report.html.tags import Markup, join, tag
from qrun.report.screen import GOOD


def conform_page(found: Judgement, argv: Sequence[str]) -> str:
    """The HTML document: no address outside of it is asked for anything."""
    sheet = conform_sheet(found)
    rows = [
        ("suite", f"{found.suite}, {found.selected} cases"),
        ("again", tag("code", shlex.join(["qrun", *argv]))),
    ]
    tiles = [tag("div", tag("b", f"{100 * each.counts['exact'] / max(len(each.cases), 1):.1f}%", class_="good" if sheet.style == GOOD else None),
                 tag("span", f"exact: {each.title}"), class_="tile") for each in found.runtimes]  # fmt: skip
    head = tag(
        "header", tag("h1", "Conformance"), facts(rows), tag("p", sheet.verdict), tag("div", tiles, class_="tiles")
    )
    return framed("qrun conform", [head, tag("main", join((_section(each) for each in found.runtimes), "\n"))])


def _section(each: RuntimeResult) -> Markup:
    shown = [v for v in VERDICTS if each.counts[v]]
    parts = [tag("h2", each.title), tag("p", summary(each), class_="about")]
    parts.append(grid_table("operators", verdict_grid("operator", by_operator(each.cases), shown)))
    causes, messages = found_causes(each.cases), found_messages(each.cases)
    if causes:
        parts += [tag("h3", "Causes"), grid_table("causes", Grid.of(CAUSE_COLUMNS, causes))]
    if messages:
        parts += [tag("h3", "Refused and unsupported"), grid_table("messages", Grid.of(MESSAGE_COLUMNS, messages))]
    return tag("section", parts)
