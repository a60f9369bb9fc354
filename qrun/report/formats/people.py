"""``qrun check`` for people: blocks or lines, a table of the models, and one line that sums it up."""

from __future__ import annotations

from qrun.checking.check import Checked, Report
from qrun.report.check import summary, unexplained, visible
from qrun.report.formats._format import Asked, check_format
from qrun.report.grid import Column, Grid
from qrun.report.message import print_finding
from qrun.report.screen import STYLES, Screen
from qrun.report.text import duration, plural

TABLE = 100
"""Models that the table shows; with more, those without findings and skipped or failed vectors are left out."""


@check_format("full", suffix=".txt")
def full(screen: Screen, report: Report, asked: Asked) -> None:
    """Every finding as a block, a table of the models, and one line that sums up."""
    for model, finding in visible(report, asked.notes):
        print_finding(screen, finding, model.name)
        screen.line()
    if not asked.quiet:
        _table(screen, report)
        _summary(screen, report, asked.notes)


@check_format("concise")
def concise(screen: Screen, report: Report, asked: Asked) -> None:
    """``path: node: LEVEL CODE name: message``, one line a finding whatever the width."""
    for model, finding in visible(report, asked.notes):
        place = f"{finding.node}: " if finding.node else ""
        title = f"{finding.rule} {finding.name}: "
        screen.line(
            f"{model.name}: {place}", (finding.level, STYLES[finding.level]), " ", (title, "bold"), finding.message
        )
    if not asked.quiet:
        _summary(screen, report, asked.notes)


def _summary(screen: Screen, report: Report, notes: bool) -> None:
    text = summary(report)
    hidden = len(report.findings) - len(visible(report, notes))
    if hidden:
        text += f"; -v shows {plural(hidden, 'note')}"
    codes = list(dict.fromkeys(f.rule for _, f in visible(report, notes)))
    screen.wrapped("", "  ", text + (f"   qrun explain {codes[0]}" if codes else ""))


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


def _count(model: Checked, level: str) -> str:
    return str(sum(f.level == level for f in model.findings))


def _vectors(model: Checked) -> str:
    return f"{sum(v.status == 'passed' for v in model.vectors)} of {len(model.vectors)}" if model.vectors else "-"
