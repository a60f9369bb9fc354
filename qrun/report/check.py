"""The report of ``qrun check`` for people: blocks or lines, a table of the models, and one line that sums it up."""

from __future__ import annotations

from collections.abc import Iterable

from qrun.checking.check import LEVELS, Checked, Report
from qrun.checking.rules import Finding
from qrun.checking.vectors import Vector
from qrun.report.catalog import entry
from qrun.report.grid import Column, Grid
from qrun.report.message import print_finding
from qrun.report.screen import STYLES, Screen
from qrun.report.text import duration, plural, safe

TABLE = 100
"""Models that the table shows; with more, those without findings and skipped or failed vectors are left out."""


def visible(report: Report, notes: bool) -> list[tuple[Checked, Finding]]:
    """The findings with their models, without notes unless they are asked for, or make the check fail."""
    return [(m, f) for m, f in report.findings if notes or f.level != "note" or report.failing(f)]


def print_full(screen: Screen, report: Report, notes: bool, quiet: bool = False) -> None:
    """Every finding as a block. quiet: nothing else."""
    for model, finding in visible(report, notes):
        print_finding(screen, finding, model.name)
        screen.line()
    if not quiet:
        _table(screen, report)
        print_summary(screen, report, notes)


def print_concise(screen: Screen, report: Report, notes: bool, quiet: bool = False) -> None:
    """``path: node: LEVEL CODE name: message``, one line a finding whatever the width. quiet: nothing else."""
    for model, finding in visible(report, notes):
        place = f"{finding.node}: " if finding.node else ""
        title = f"{finding.rule} {finding.name}: "
        screen.line(
            f"{model.name}: {place}", (finding.level, STYLES[finding.level]), " ", (title, "bold"), finding.message
        )
    if not quiet:
        print_summary(screen, report, notes)


def print_summary(screen: Screen, report: Report, notes: bool) -> None:
    text = summary(report)
    hidden = len(report.findings) - len(visible(report, notes))
    if hidden:
        text += f"; -v shows {plural(hidden, 'note')}"
    codes = list(dict.fromkeys(f.rule for _, f in visible(report, notes)))
    screen.wrapped("", "  ", text + (f"   qrun explain {codes[0]}" if codes else ""))


def summary(report: Report) -> str:
    """``3 models: 2 errors, 1 warning; 4 vectors: 3 passed, 1 failed``."""
    counts = [plural(report.count(level), level) for level in LEVELS if report.count(level)]
    text = f"{plural(len(report.models), 'model')}: {', '.join(counts) or 'nothing found'}"
    if report.vectors:
        states = {s: sum(v.status == s for v in report.vectors) for s in ("passed", "failed", "skipped")}
        text += f"; {plural(len(report.vectors), 'vector')}: {', '.join(f'{n} {s}' for s, n in states.items() if n)}"
    return text


def _table(screen: Screen, report: Report) -> None:
    """One row a model if there are several, and the reasons for which vectors were skipped."""
    shown = [m for m in report.models if m.findings or any(v.status != "passed" for v in m.vectors)]
    if len(report.models) <= TABLE:
        shown = list(report.models)
    if len(report.models) > 1 and shown:
        columns = [
            Column("model", shrink=1),
            *(Column(c, right=True) for c in ("nodes", "errors", "warnings", "vectors", "time")),
        ]
        rows = [
            [m.name, str(m.nodes), _count(m, "error"), _count(m, "warning"), _vectors(m), duration(m.duration_ns)]
            for m in shown
        ]
        screen.grid(Grid(columns, rows))
    reasons = unexplained(report)
    for model, vector in reasons[:TABLE]:
        screen.wrapped(f"{model.name}: {vector.name} skipped: ", "  ", vector.reason)
    if reasons[TABLE:]:
        screen.line(f"{screen.ellipsis} {len(reasons) - TABLE} more vectors skipped")


def unexplained(report: Report) -> list[tuple[Checked, Vector]]:
    """Skipped vectors that no finding tells of, because it was not chosen."""
    skipped = ((m, v) for m in report.models for v in m.vectors if v.status == "skipped")
    return [(m, v) for m, v in skipped if not any(f is t for f in v.findings for t in m.findings)]


def _count(model: Checked, level: str) -> str:
    return str(sum(f.level == level for f in model.findings))


def _vectors(model: Checked) -> str:
    return f"{sum(v.status == 'passed' for v in model.vectors)} of {len(model.vectors)}" if model.vectors else "-"


def place(finding: Finding) -> str:
    """Node and operator, or the tensor, for one line."""
    if finding.node:
        return f"{finding.node} ({finding.op})" if finding.op else finding.node
    return finding.tensor


def headline(finding: Finding) -> str:
    """Where and what, on one line."""
    return safe(": ".join(part for part in (place(finding), finding.message) if part))


def facts(finding: Finding) -> Iterable[tuple[str, str]]:
    """What a finding says besides its message, by label; each on one line."""
    pairs = (("tensor", finding.tensor), ("expected", finding.expected), ("got", finding.got), ("why", finding.why),
             ("fix", finding.fix))  # fmt: skip
    return [(label, safe(text)) for label, text in pairs if text]


def fingerprints(report: Report) -> list[str]:
    """16 hexadecimal digits a finding, from rule, path, node and tensor; repeated ones are numbered before hashing."""
    from hashlib import sha256

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
