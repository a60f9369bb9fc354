"""The report of ``qrun check`` as one JSON document; its schema is qrun/schemas/check-1.0.json."""

from __future__ import annotations

from qrun.checking.check import Report
from qrun.checking.rules import LEVELS
from qrun.documents.record import encode
from qrun.report.answer import Answer
from qrun.report.check import explain, fingerprints, shown, verdict
from qrun.report.formats._format import Asked, check_format
from qrun.report.json import document


@check_format("json", suffix=".json")
def check_json(report: Report, asked: Asked) -> str:
    prints = iter(fingerprints(report))
    states = [vector.status for vector in report.vectors]
    fields = {
        "backend": report.backend,
        "arith": report.arith,
        "fail_on": report.fail_on,
        "tolerance": {name: getattr(report.tolerance, name) for name in ("lsb", "rtol", "atol")},
        "summary": {
            "models": len(report.models),
            **{f"{level}s": report.count(level) for level in LEVELS},
            "vectors": {"total": len(states), **{s: states.count(s) for s in ("passed", "failed", "skipped")}},
        },
        "models": [
            {**encode(m), "findings": [{**encode(f), "fingerprint": next(prints)} for f in m.findings]}
            for m in report.models
        ],
    }
    answer = Answer(int(report.failed), verdict(report), explain(shown(report, asked.notes)))
    return document("check", asked.argv, fields, answer) + "\n"
