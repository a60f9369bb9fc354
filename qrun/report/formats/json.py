"""The report of ``qrun check`` as one JSON document; qrun/schemas/check-1.0.json is its schema."""

from __future__ import annotations

from typing import Any

from qrun.checking.check import Checked, Report
from qrun.checking.recorded import ComparedOutput
from qrun.checking.rules import LEVELS
from qrun.checking.vectors import Vector
from qrun.documents.record import encode
from qrun.report.check import fingerprints
from qrun.report.formats._format import Asked, check_format
from qrun.report.json import document


@check_format("json", suffix=".json")
def check_json(report: Report, asked: Asked) -> str:
    prints = iter(fingerprints(report))
    states = [vector.status for vector in report.vectors]
    fields = {
        "exit_code": int(report.failed),
        "backend": report.backend,
        "arith": report.arith,
        "fail_on": report.fail_on,
        "tolerance": {
            "lsb": report.tolerance.lsb,
            "rtol": report.tolerance.rtol,
            "atol": report.tolerance.atol,
        },
        "summary": {
            "models": len(report.models),
            **{f"{level}s": report.count(level) for level in LEVELS},
            "vectors": {"total": len(states), **{s: states.count(s) for s in ("passed", "failed", "skipped")}},
        },
        "models": [_model_fields(model, prints) for model in report.models],
    }
    return document("check", asked.argv, fields) + "\n"


def _model_fields(model: Checked, prints: Any) -> dict[str, Any]:
    return {
        "path": model.name,
        "sha256": model.sha256 or None,
        "nodes": model.nodes,
        "rules": list(model.rules),
        "time_ms": model.duration_ns / 1e6,
        "findings": [{**encode(finding), "fingerprint": next(prints)} for finding in model.findings],
        "vectors": [_vector_fields(vector) for vector in model.vectors],
    }


def _vector_fields(vector: Vector) -> dict[str, Any]:
    return {
        "name": vector.name,
        "path": vector.folder.as_posix(),
        "status": vector.status,
        "reason": vector.reason,
        "time_ms": vector.duration_ns / 1e6,
        "outputs": [_output_fields(output) for output in vector.outputs],
    }


def _output_fields(output: ComparedOutput) -> dict[str, Any]:
    return {
        "name": output.name,
        "file": output.file,
        "verdict": output.verdict,
        "total": output.total,
        "differing": output.differing,
        "largest": output.largest,
        "first": list(output.first) if output.differing else None,
        "got": output.got,
        "recorded": output.recorded,
        "exact": output.exact,
    }
