"""The formats of ``qrun check``: which there are, which suffix means which, and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from qrun.checking.check import Report
from qrun.errors import CallError
from qrun.report.check import print_concise, print_full
from qrun.report.checkjson import check_json
from qrun.report.github import workflow_commands
from qrun.report.gitlab import gitlab
from qrun.report.junit import junit
from qrun.report.markdown import markdown
from qrun.report.sarif import sarif
from qrun.report.screen import Screen

FORMATS = ("full", "concise", "json", "github", "gitlab", "junit", "sarif", "markdown")
SUFFIXES = {".sarif": "sarif", ".xml": "junit", ".json": "json", ".md": "markdown", ".txt": "full"}


def target(spec: str) -> tuple[str, str]:
    """Format and file of ``FILE`` or ``FORMAT=FILE``. CallError if there is no such format."""
    name, sign, file = spec.partition("=")
    if sign and name in FORMATS and file:
        return name, file
    if spec.endswith(".sarif.json"):
        return "sarif", spec
    found = SUFFIXES.get(Path(spec).suffix.lower())
    if found is None:
        fix = f"-o sarif={spec} names the format"
        if sign and file:
            near = get_close_matches(name, FORMATS, 1, 0.6)
            fix = f"did you mean -o {near[0]}={file}?" if near else f"-o sarif={file}, or another format before ="
        raise CallError(
            "QR005",
            "bad-option",
            f"-o {spec}: the format is not known",
            facts=[("expected", f"a file with the suffix {' '.join(SUFFIXES)}, or FORMAT=FILE"),
                   ("formats", ", ".join(FORMATS))],
            fixes=[fix],
        )  # fmt: skip
    return found, spec


def print_report(screen: Screen, format: str, report: Report, argv: Sequence[str], notes: bool, quiet: bool = False) -> None:  # fmt: skip
    """The report in one format on a stream. quiet: of those for people the findings only."""
    if format in ("full", "github"):
        print_full(screen, report, notes, quiet)
        lines = workflow_commands(report, notes) if format == "github" else ""
        if lines:
            screen.commands(_encodable(lines, screen))
    elif format == "concise":
        print_concise(screen, report, notes, quiet)
    else:
        text = report_text(format, report, argv, notes).rstrip("\n")
        screen.write(_encodable(text, screen, "xmlcharrefreplace" if format == "junit" else "backslashreplace"))


def _encodable(text: str, screen: Screen, otherwise: str = "backslashreplace") -> str:
    return text.encode(screen.encoding, otherwise).decode(screen.encoding)


def report_text(format: str, report: Report, argv: Sequence[str], notes: bool) -> str:
    """The report as the text of a file."""
    if format == "json":
        return check_json(report, argv) + "\n"
    if format == "markdown":
        return markdown(report, notes)
    plain = {"gitlab": gitlab, "junit": junit, "sarif": sarif}
    if format in plain:
        return plain[format](report)
    from io import StringIO

    stream = StringIO()
    print_report(Screen(stream, terminal=False, width=None, color=False), format, report, argv, notes)
    return stream.getvalue()
