"""``qrun check`` as a Code Quality report of GitLab: an array of issues, each with a fingerprint of its own."""

from __future__ import annotations

import json

from qrun.checking import Report
from qrun.report.check import fingerprints, place
from qrun.report.json import strict

SEVERITY = {"error": "major", "warning": "minor", "note": "info"}


def gitlab(report: Report) -> str:
    issues = [
        {
            "description": ": ".join(part for part in (place(finding), finding.message) if part)
            + (f"; fix: {finding.fix}" if finding.fix else ""),
            "check_name": f"{finding.rule} {finding.name}",
            "fingerprint": fingerprint,
            "severity": SEVERITY[finding.level],
            "location": {"path": model.name, "lines": {"begin": 1}},
        }
        for (model, finding), fingerprint in zip(report.findings, fingerprints(report), strict=True)
    ]
    return json.dumps(strict(issues), ensure_ascii=True, indent=1) + "\n"
