"""``qrun check`` as a Code Quality report of GitLab: an array of issues, each with a fingerprint of its own."""

from __future__ import annotations

from qrun.checking.check import Report
from qrun.report.check import fingerprints, headline
from qrun.report.formats._format import Asked, check_format
from qrun.report.json import text
from qrun.report.text import safe

SEVERITY = {"error": "major", "warning": "minor", "note": "info"}


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
