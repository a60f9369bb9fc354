"""The scoreboard: saved results of `qrun conform` for several runtimes, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qrun.conform.results import VERDICTS, Judgement, RuntimeResult
from qrun.report.conform.sheet import CAUSE_COLUMNS, FoundCause, describe_call, describe_setup, group_causes
from qrun.report.grid import Column, Grid
from qrun.report.html.markup import html_page, join, table, tag
from qrun.report.markdown import cell, code
from qrun.report.markdown import table as markdown_table
from qrun.report.screen import OPEN
from qrun.report.sheet import Block, Sheet
from qrun.report.text import plural


def scoreboard_sheet(found: Sequence[Judgement]) -> Sheet:
    """The totals of each runtime, then its causes."""
    runtimes = _runtimes(found)
    blocks = [Block("Verdicts", totals(runtimes)), Block("Exact, by profile", profiles(runtimes))]
    count = plural(sum(len(group_causes(each.cases)) for each in runtimes), "disagreement")
    return Sheet(blocks, f"{plural(len(runtimes), 'runtime')}: {count} (runtime, operator, verdict, cause)", OPEN)


def _runtimes(found: Sequence[Judgement]) -> list[RuntimeResult]:
    return [each for judgement in found for each in judgement.runtimes]


def setups(found: Sequence[Judgement]) -> Grid:
    """How each runtime was judged: date, machine, versions, options."""
    columns = [
        Column("runtime", wrap=True, cell=lambda row: row[1].title),
        Column("judged", wrap=True, cell=lambda row: describe_call(row[0])),
        Column("setup", wrap=True, cell=lambda row: describe_setup(row[1])),
    ]
    return Grid.of(columns, [(judgement, each) for judgement in found for each in judgement.runtimes])


def totals(runtimes: Sequence[RuntimeResult]) -> Grid:
    """One row per runtime, one column per verdict."""
    columns = [
        Column("runtime", wrap=True, cell=lambda r: r.title),
        Column("cases", right=True, cell=lambda r: str(len(r.cases))),
    ]
    columns += [Column(v, right=True, cell=_count(v)) for v in VERDICTS]
    return Grid.of(columns, runtimes)


def _count(verdict: str) -> Callable[[RuntimeResult], str]:
    return lambda each: str(each.counts[verdict])


def profiles(runtimes: Sequence[RuntimeResult]) -> Grid:
    """The number of exact cases by profile."""
    names = list(dict.fromkeys(case.profile for each in runtimes for case in each.cases))
    columns = [Column("runtime", wrap=True, cell=lambda r: r.title)] + [
        Column(n, right=True, cell=_exact(n)) for n in names
    ]
    return Grid.of(columns, runtimes)


def _exact(profile: str) -> Callable[[RuntimeResult], str]:
    def told(each: RuntimeResult) -> str:
        cases = [case for case in each.cases if case.profile == profile]
        return f"{sum(case.verdict == 'exact' for case in cases)} of {len(cases)}"

    return told


def _markdown(found: Sequence[Judgement]) -> str:
    runtimes = _runtimes(found)
    suites = ", ".join(dict.fromkeys(judgement.suite for judgement in found))
    lines = [
        "# Scoreboard",
        "",
        f"Suite {suites}, judged by `qrun conform`; written by `qrun conform scoreboard`. "
        "[conformance.md](conformance.md) explains the verdicts.",
        "",
    ]
    lines += [
        *markdown_table(totals(runtimes)),
        "",
        "Exact cases, by profile:",
        "",
        *markdown_table(profiles(runtimes)),
        "",
        "How each was judged:",
        "",
        *markdown_table(setups(found)),
    ]
    for each in runtimes:
        causes = group_causes(each.cases)
        if causes:
            lines += ["", f"## {cell(each.title)}", "", *(_sentence(cause) for cause in causes)]
    return "\n".join(lines) + "\n"


def _sentence(found: FoundCause) -> str:
    """One disagreement as a line of Markdown; for a crash the cause says everything."""
    proved = f", {found.proved} proved" if found.proved else ""
    told = "" if found.verdict == "crashed" else f": {cell(found.example.text)}"
    cases = plural(len(found.cases), "case")
    return f"- **{found.verdict}** {cell(found.operator)}, {cell(found.cause)} ({cases}{proved}){told}. {code(found.example.id)}"


def _html(found: Sequence[Judgement]) -> str:
    runtimes = _runtimes(found)
    parts = [
        tag(
            "section",
            tag("h2", "Verdicts"),
            table("verdicts", totals(runtimes)),
            tag("h2", "Exact, by profile"),
            table("profiles", profiles(runtimes)),
            tag("h2", "How each was judged"),
            table("setups", setups(found)),
        )
    ]
    for each in runtimes:
        causes = group_causes(each.cases)
        if causes:
            parts.append(tag("section", tag("h2", each.title), table(each.name, Grid.of(CAUSE_COLUMNS, causes))))
    head = tag("header", tag("h1", "Scoreboard"))
    return html_page("qrun conform scoreboard", [head, tag("main", join(parts, "\n"))])


SCOREBOARDS: Mapping[str, tuple[str, Callable[[Sequence[Judgement]], str]]] = {
    "markdown": (".md", _markdown),
    "html": (".html", _html),
}
"""Suffix and function of each format."""
