"""``qrun check`` as Markdown, for job summaries and comments on pull requests."""

from __future__ import annotations

from qrun.checking.check import Report
from qrun.checking.rules import LEVELS
from qrun.report.check import outcome, place, summary, title, unexplained, visible
from qrun.report.formats._format import Asked, check_format
from qrun.report.markdown import cell, code
from qrun.report.text import plural

MOST = 200
"""Findings in the table; GitHub takes 1 MiB for each step."""


@check_format("markdown", suffix=".md")
def markdown(report: Report, asked: Asked) -> str:
    """A heading that sums up, a table of the worst findings, and the models."""
    ordered = sorted(visible(report, asked.notes), key=lambda pair: LEVELS.index(pair[1].level))
    lines = [f"### qrun check {outcome(report)}: {summary(report)}", ""]
    if ordered:
        lines += ["| | model | rule | where | what | fix |", "| --- | --- | --- | --- | --- | --- |"]
    for model, finding in ordered[:MOST]:
        names = [finding.level, code(model.name), title(finding), code(place(finding))]
        lines.append(f"| {' | '.join([*names, cell(finding.message), cell(finding.fix)])} |")
    if len(ordered) > MOST:
        left = plural(len(ordered) - MOST, "more finding")
        lines += ["", f"{left}: the log and the other reports have all of them."]
    skipped = unexplained(report)
    if skipped:
        lines += ["", *(f"- {code(m.name)}: {cell(v.name)} skipped: {cell(v.reason)}" for m, v in skipped[:MOST])]
    return "\n".join(lines).rstrip() + "\n"
