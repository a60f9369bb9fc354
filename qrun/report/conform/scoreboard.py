"""The scoreboard: saved results of `qrun conform` for several runtimes, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qrun.conform.results import VERDICTS, CaseResult, Judgement, RuntimeResult
from qrun.conform.suite import PROFILES
from qrun.report.conform.sheet import CAUSE_COLUMNS, FoundCause, describe_call, describe_setup, group_causes
from qrun.report.grid import Column, Grid
from qrun.report.html.markup import html_page, join, table, tag
from qrun.report.markdown import cell, code
from qrun.report.markdown import table as markdown_table
from qrun.report.screen import OPEN
from qrun.report.sheet import Block, Sheet
from qrun.report.text import percent, plural


def scoreboard_sheet(found: Sequence[Judgement]) -> Sheet:
    """The share of each verdict for each runtime, then the share of exact answers by profile."""
    runtimes = _runtimes(found)
    blocks = [Block(HEADLINE, totals(runtimes)), Block(BY_PROFILE, profiles(runtimes))]
    count = plural(sum(len(group_causes(each.cases)) for each in runtimes), "disagreement")
    return Sheet(blocks, f"{plural(len(runtimes), 'runtime')}: {count} (runtime, operator, verdict, cause)", OPEN)


HEADLINE = "Where the specification decides: share of the cases that the runtime supports"
BY_PROFILE = "Exact, of all cases that the runtime supports, by profile"


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
    """One row per runtime, one column per verdict, in shares of the supported cases that the specification decides."""
    columns = [
        Column("runtime", wrap=True, cell=lambda r: r.title),
        Column("cases", right=True, cell=lambda r: str(len(r.law_cases))),
        Column("supported", right=True, cell=lambda r: _share(_supported(r.law_cases), r.law_cases)),
    ]
    columns += [Column(v, right=True, cell=_verdict_share(v)) for v in VERDICTS if v not in OMITTED]
    return Grid.of(columns, runtimes)


OMITTED = ("accepts-invalid", "unsupported")
"""Verdicts without a column: the first cannot occur where an answer is due, the second is the share not supported."""


def _supported(cases: Sequence[CaseResult]) -> list[CaseResult]:
    return [case for case in cases if case.verdict != "unsupported"]


def _share(part: Sequence[CaseResult], whole: Sequence[CaseResult]) -> str:
    """``93.4 %``; a point if there is nothing."""
    return percent(len(part) / len(whole)) if part else "."


def _verdict_share(verdict: str) -> Callable[[RuntimeResult], str]:
    def share(each: RuntimeResult) -> str:
        supported = _supported(each.law_cases)
        return _share([case for case in supported if case.verdict == verdict], supported)

    return share


def profiles(runtimes: Sequence[RuntimeResult]) -> Grid:
    """The share of exact cases by profile."""
    names = [n for n in PROFILES if any(case.profile == n for each in runtimes for case in each.cases)]
    columns = [Column("runtime", wrap=True, cell=lambda r: r.title)] + [
        Column(n, right=True, cell=_exact_share(n)) for n in names
    ]
    return Grid.of(columns, runtimes)


def _exact_share(profile: str) -> Callable[[RuntimeResult], str]:
    def share(each: RuntimeResult) -> str:
        cases = _supported([case for case in each.cases if case.profile == profile])
        return _share([case for case in cases if case.verdict == "exact"], cases)

    return share


def _markdown(found: Sequence[Judgement]) -> str:
    runtimes = _runtimes(found)
    suites = ", ".join(dict.fromkeys(judgement.suite for judgement in found))
    lines = [
        "# Scoreboard",
        "",
        f"Suite {suites}, judged by `qrun conform`; written by `qrun conform scoreboard`. "
        "[conformance.md](conformance.md) explains the verdicts.",
        "",
        f"## {HEADLINE}",
        "",
        "Open questions, forms that the text excludes and forbidden models are not counted here.",
        "",
        *markdown_table(totals(runtimes)),
        "",
        f"## {BY_PROFILE}",
        "",
        *markdown_table(profiles(runtimes)),
        "",
        "How each was judged:",
        "",
        *markdown_table(setups(found)),
    ]
    for each in runtimes:
        lines += _defects(each)
    return "\n".join(lines) + "\n"


def _defects(each: RuntimeResult) -> list[str]:
    """A section of Markdown: what a runtime does otherwise, first where the specification decides."""
    lines = ["", f"## {cell(each.title)}"]
    for title, cases in (("Where the specification decides", each.law_cases), ("Open questions", each.other_cases)):
        causes = group_causes(cases)
        if causes:
            lines += ["", f"### {title}", "", *(_sentence(cause) for cause in causes)]
    return lines if len(lines) > 2 else []


def _sentence(found: FoundCause) -> str:
    """One disagreement as a line of Markdown; for a crash the cause says everything."""
    proved = f", {found.proved} proved" if found.proved else ""
    text = "" if found.verdict == "crashed" else f": {cell(found.example.text)}"
    cases = plural(len(found.cases), "case")
    return f"- **{found.verdict}** {cell(found.operator)}, {cell(found.cause)} ({cases}{proved}){text}. {code(found.example.id)}"


def _html(found: Sequence[Judgement]) -> str:
    runtimes = _runtimes(found)
    parts = [
        tag(
            "section",
            tag("h2", HEADLINE),
            table("verdicts", totals(runtimes)),
            tag("h2", BY_PROFILE),
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
