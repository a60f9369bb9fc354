"""What changed since an earlier check whose JSON was saved: only its new findings count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qrun.checking.check import Report, Since
from qrun.comparing.saved import Found, unmatched
from qrun.documents.record import decode, read_document

KIND = "check"
MAKE = "qrun check PATH --json > FILE.json saves one"
Baseline = Mapping[str, Sequence[Found]]
"""The findings of an earlier check, by the path of their model."""


def read_baseline(path: str) -> Baseline:
    """Reads the findings of a check saved with --json. Raises CallError if the file has none."""
    _, item = read_document(Path(path), (KIND,), MAKE)
    return {
        (name := model["path"].text): [decode(Found, finding, model=name) for finding in model["findings"]]
        for model in item["models"]
    }


def select_new(report: Report, before: Baseline) -> Report:
    """The report with only the findings that the baseline lacks. If each of both has one model, they count as the same
    model, whatever its path."""
    if len(before) == len(report.models) == 1:
        before = {report.models[0].name: next(iter(before.values()))}
    models, gone = [], 0
    for model in report.models:
        old = [replace(found, model=model.name) for found in before.get(model.name, ())]
        now = [Found(model.name, f.rule, f.name, f.level, f.node, f.tensor, f.message) for f in model.findings]
        new = {id(found) for found in unmatched(now, old)}
        kept = tuple(finding for finding, found in zip(model.findings, now, strict=True) if id(found) in new)
        models.append(replace(model, findings=kept))
        gone += len(unmatched(old, now))
    known = len(report.findings) - sum(len(model.findings) for model in models)
    return replace(report, models=tuple(models), since=Since(known, gone))
