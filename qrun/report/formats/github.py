"""``qrun check`` as workflow commands of GitHub Actions: annotations below the report.

A step shows 10 annotations of a level and drops the others, so the last one tells how many there are.
"""

from __future__ import annotations

from qrun.checking.check import Checked, Report
from qrun.checking.rules import Finding
from qrun.report.check import facts, place, title, visible
from qrun.report.formats._format import FORMATS, Asked, check_format
from qrun.report.screen import Screen
from qrun.report.text import no_command, plural, safe

MOST = 9
COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


@check_format("github")
def github(screen: Screen, report: Report, asked: Asked) -> None:
    FORMATS["full"].make(screen, report, asked)
    lines = workflow_commands(report, asked.notes)
    if lines:
        screen.commands(lines)


def workflow_commands(report: Report, notes: bool = False) -> str:
    """One line a finding, at most MOST of a level, then one that says how many more."""
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
    lines = [f"{where}: {safe(finding.message)}", *(f"  {label}: {text}" for label, text in facts(finding))]
    start = dict.fromkeys(("line", "col", "endLine", "endColumn"), "1")
    properties = {"title": f"qrun {title(finding)}", "file": model.name, **start}
    escaped = {key: _data(safe(value)).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    shown = ",".join(f"{key}={value}" for key, value in escaped.items())
    return f"::{command} {shown}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    return no_command(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
