"""Helpers that the formats of ``qrun check`` share: which findings to show, and their texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice

from qrun.checking.check import Checked, Report
from qrun.checking.deploy import is_of_target
from qrun.checking.rules import LEVELS, Finding
from qrun.checking.targets import names
from qrun.checking.vectors import Vector
from qrun.report.catalog import entry
from qrun.report.message import count_levels
from qrun.report.text import plural, safe

LABELS = ("tensor", "expected", "got", "why", "fix")
"""The attributes of a finding that are shown in addition to its message."""


def visible(report: Report, notes: bool) -> list[tuple[Checked, Finding]]:
    """The findings with their models. Notes are left out unless they are requested or make the check fail."""
    return [(m, f) for m, f in report.findings if notes or f.level != "note" or report.is_failing(f)]


def summary(report: Report) -> str:
    """``2 errors, 1 warning in 3 models; 4 vectors: 3 passed, 1 failed``."""
    levels = count_levels(finding.level for _, finding in report.findings)
    text = f"{levels or 'nothing found'} in {plural(len(report.models), 'model')}"
    if report.vectors:
        states = {s: sum(v.status == s for v in report.vectors) for s in ("passed", "failed", "skipped")}
        text += f"; {plural(len(report.vectors), 'vector')}: {', '.join(f'{n} {s}' for s, n in states.items() if n)}"
    return text


Found = tuple[Checked, Finding]
"""A finding and its model."""


def of_rules(report: Report, notes: bool) -> list[Found]:
    """The findings that get a block. With targets, which have blocks of their own, only those of rules that make the
    check fail or that are errors, unless notes are requested."""
    found = [(m, f) for m, f in by_level(visible(report, notes)) if not is_of_target(f)]
    if not report.targets or notes:
        return found
    return [(m, f) for m, f in found if f.level == "error" or report.is_failing(f)]


def shown(report: Report, notes: bool) -> list[Found]:
    """The findings on the screen, those of targets first."""
    return [*((m, f) for m, f in by_level(report.findings) if is_of_target(f)), *of_rules(report, notes)]


def explain(found: Sequence[Found]) -> list[str]:
    """The command that explains the first of these findings; none if no command does."""
    known = (f.rule for _, f in found if not is_of_target(f) or f.rule.rpartition("/")[0] in names())
    return [f"qrun explain {rule}" for rule in islice(known, 1)]


def by_level(found: Sequence[Found]) -> list[Found]:
    return sorted(found, key=lambda place: LEVELS.index(place[1].level))


def verdict(report: Report) -> str:
    """``failed: 2 errors, 1 warning in 3 models``."""
    return f"{outcome(report)}: {summary(report)}"


def outcome(report: Report) -> str:
    """``failed`` if the exit code is 1, else ``passed``."""
    return "failed" if report.failed else "passed"


def unexplained_vectors(report: Report) -> list[tuple[Checked, Vector]]:
    """Skipped vectors without a finding in the report, because its code was not selected."""
    skipped = ((m, v) for m in report.models for v in m.vectors if v.status == "skipped")
    return [(m, v) for m, v in skipped if not any(f is t for f in v.findings for t in m.findings)]


def place(finding: Finding) -> str:
    """The node and its operator, or the tensor, on one line."""
    if finding.node:
        return f"{finding.node} ({finding.op})" if finding.op else finding.node
    return finding.tensor


def headline(finding: Finding) -> str:
    """The place and the message on one line."""
    return safe(": ".join(part for part in (place(finding), finding.message) if part))


def facts(finding: Finding) -> Iterable[tuple[str, str]]:
    """The labelled facts of a finding in addition to its message, each on one line."""
    return [(label, safe(text)) for label in LABELS if (text := getattr(finding, label))]


def fingerprints(report: Report) -> list[str]:
    """16 hex digits per finding, from rule, path, node and tensor; repeated ones are numbered before hashing."""

    seen: dict[tuple[str, ...], int] = {}
    made = []
    for model, f in report.findings:
        key = (f.rule, model.name, f.node, f.tensor)
        seen[key] = seen.get(key, 0) + 1
        number = (str(seen[key]),) if seen[key] > 1 else ()
        made.append(sha256("\0".join((*key, *number)).encode("utf-8", "surrogatepass")).hexdigest()[:16])
    return made


def title(finding: Finding) -> str:
    return f"{finding.rule} {finding.name or entry(finding.rule).name}"
