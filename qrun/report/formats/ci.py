"""``qrun check`` for CI services: workflow commands of GitHub Actions, which are annotations below the report; a Code
Quality report of GitLab, an array of issues with fingerprints; Markdown for job summaries and comments."""

from __future__ import annotations

from qrun.checking.check import Checked, Report
from qrun.checking.deploy import sentence_name
from qrun.checking.rules import LEVELS, Finding
from qrun.report.check import (
    facts,
    fingerprints,
    headline,
    outcome,
    place,
    summary,
    title,
    unexplained_vectors,
    visible,
)
from qrun.report.formats._format import FORMATS, Asked, check_format
from qrun.report.json import text
from qrun.report.markdown import cell, code
from qrun.report.screen import Screen
from qrun.report.targets import summary as target_summary
from qrun.report.text import no_command, plural, safe

MOST = 9
"""Annotations per level: a step shows 10 and drops the others, so the last one gives the number left."""
COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
SEVERITY = {"error": "major", "warning": "minor", "note": "info"}
"""GitLab's severity for each level."""
MOST_ROWS = 200
"""Findings in Markdown's table; GitHub accepts 1 MiB per step."""


@check_format("github")
def github(screen: Screen, report: Report, asked: Asked) -> None:
    FORMATS["full"].make(screen, report, asked)
    lines = workflow_commands(report, asked.notes)
    if lines:
        screen.commands(lines)


def workflow_commands(report: Report, notes: bool = False) -> str:
    """One line per finding, at most MOST of a level, then one with the number left."""
    lines = []
    for level, command in COMMANDS.items():
        found = [pair for pair in visible(report, notes) if pair[1].level == level]
        lines += [_annotation(command, model, finding) for model, finding in found[:MOST]]
        if len(found) > MOST:
            more = f"{plural(len(found) - MOST, f'more {level}')}: the log and the job summary have all of them"
            lines.append(f"::{command} title=qrun check::{_data(more)}")
    return "\n".join(lines)


def _annotation(command: str, model: Checked, finding: Finding) -> str:
    where = " ".join(part for part in (safe(model.name), safe(place(finding))) if part)
    lines = [f"{where}: {safe(finding.message)}", *(f"  {label}: {said}" for label, said in facts(finding))]
    start = dict.fromkeys(("line", "col", "endLine", "endColumn"), "1")
    properties = {"title": f"qrun {title(finding)}", "file": model.name, **start}
    escaped = {key: _data(safe(value)).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    shown = ",".join(f"{key}={value}" for key, value in escaped.items())
    return f"::{command} {shown}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    return no_command(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@check_format("gitlab")
def gitlab(report: Report, asked: Asked) -> str:
    issues = [
        {
            "description": headline(finding) + (f"; fix: {safe(finding.fix)}" if finding.fix else ""),
            "check_name": f"{finding.rule} {finding.name}",
            "fingerprint": fingerprint,
            "severity": SEVERITY[finding.level],
            "location": {"path": model.name, "lines": {"begin": 1}},
        }
        for (model, finding), fingerprint in zip(report.findings, fingerprints(report), strict=True)
    ]
    return text(issues, indent=1) + "\n"


@check_format("markdown", suffix=".md")
def markdown(report: Report, asked: Asked) -> str:
    """A heading with the summary, a table of the worst findings, and skipped vectors."""
    ordered = sorted(visible(report, asked.notes), key=lambda pair: LEVELS.index(pair[1].level))
    lines = [f"### qrun check {outcome(report)}: {summary(report)}", ""]
    results = [(model, result) for model in report.models for result in model.targets]
    lines += [
        f"- {code(m.name)} on {cell(sentence_name(r.target))}: {target_summary(r)}" for m, r in results[:MOST_ROWS]
    ]
    lines += [""] if results else []
    if ordered:
        lines += ["| | model | rule | where | what | fix |", "| --- | --- | --- | --- | --- | --- |"]
    for model, finding in ordered[:MOST_ROWS]:
        names = [finding.level, code(model.name), title(finding), code(place(finding))]
        lines.append(f"| {' | '.join([*names, cell(finding.message), cell(finding.fix)])} |")
    if len(ordered) > MOST_ROWS:
        left = plural(len(ordered) - MOST_ROWS, "more finding")
        lines += ["", f"{left}: the log and the other reports have all of them."]
    skipped = unexplained_vectors(report)
    if skipped:
        lines += ["", *(f"- {code(m.name)}: {cell(v.name)} skipped: {cell(v.reason)}" for m, v in skipped[:MOST_ROWS])]
    return "\n".join(lines).rstrip() + "\n"
