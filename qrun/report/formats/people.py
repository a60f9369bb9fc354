"""``qrun check`` for people: the verdict, blocks or lines, a table of the models, and the next command."""

from __future__ import annotations

from qrun.checking.check import Checked, Report
from qrun.report.check import outcome, summary, unexplained_vectors, visible
from qrun.report.formats._format import Asked, check_format
from qrun.report.grid import Column, Grid
from qrun.report.message import print_finding
from qrun.report.nodes import fold_prefix
from qrun.report.screen import BAD, GOOD, STYLES, Screen
from qrun.report.text import duration, plural

TABLE = 100
"""The most models in the table; with more, only those with findings or with skipped or failed vectors are shown."""


@check_format("full", suffix=".txt")
def full(screen: Screen, report: Report, asked: Asked) -> None:
    """The verdict, every finding as a block, a table of the models, and the next command."""
    shown = visible(report, asked.notes)
    if not asked.quiet:
        _verdict(screen, report)
        _integers(screen, report)
    for number, (model, finding) in enumerate(shown):
        if number or not asked.quiet:
            screen.line()
        print_finding(screen, finding, model.name)
    if not asked.quiet:
        _table(screen, report)
        _next(screen, report, asked.notes, apart=True)


@check_format("concise")
def concise(screen: Screen, report: Report, asked: Asked) -> None:
    """The verdict, then ``path: node: LEVEL CODE name: message``, one line per finding whatever the width."""
    if not asked.quiet:
        _verdict(screen, report)
    for model, finding in visible(report, asked.notes):
        place = f"{finding.node}: " if finding.node else ""
        title = f"{finding.rule} {finding.name}: "
        screen.line(
            f"{model.name}: {place}", (finding.level, STYLES[finding.level]), " ", (title, "bold"), finding.message
        )
    if not asked.quiet:
        _next(screen, report, asked.notes, apart=False)


def _verdict(screen: Screen, report: Report) -> None:
    screen.wrapped("", "  ", (f"{outcome(report)}:", BAD if report.failed else GOOD), f" {summary(report)}")


def _integers(screen: Screen, report: Report) -> None:
    """Prints how many nodes of a single model onnxruntime computes in integers."""
    found = report.models[0].integers if len(report.models) == 1 else None
    if found is not None:
        screen.wrapped(f"in integers in {found.runtime} on {found.on}: ", "  ", str(found))


def _next(screen: Screen, report: Report, notes: bool, *, apart: bool) -> None:
    """Prints what was not shown, and the command that explains the first finding. apart: after an empty line."""
    hidden = len(report.findings) - len(visible(report, notes))
    codes = list(dict.fromkeys(f.rule for _, f in visible(report, notes)))
    parts = [f"-v shows {plural(hidden, 'note')}"] if hidden else []
    parts += [f"qrun explain {codes[0]} tells more"] if codes else []
    if parts and apart:
        screen.line()
    if parts:
        screen.wrapped("", "  ", "; ".join(parts))


def _table(screen: Screen, report: Report) -> None:
    """Prints one row per model if there are several, and the reasons why vectors were skipped."""
    shown = [m for m in report.models if m.findings or any(v.status != "passed" for v in m.vectors)]
    if len(report.models) <= TABLE:
        shown = list(report.models)
    if len(report.models) > 1 and shown:
        screen.line()
        screen.grid(fold_prefix(screen, Grid.of(_MODELS, shown), 0))
    reasons = unexplained_vectors(report)
    for model, vector in reasons[:TABLE]:
        screen.wrapped(f"{model.name}: {vector.name} skipped: ", "  ", vector.reason)
    if reasons[TABLE:]:
        screen.line(f"{screen.ellipsis} {plural(len(reasons) - TABLE, 'more skipped vector')}")


def _vectors(model: Checked) -> str:
    return f"{sum(v.status == 'passed' for v in model.vectors)} of {len(model.vectors)}" if model.vectors else "-"


_MODELS = [
    Column("model", shrink=1, cell=lambda m: m.name),
    Column("nodes", right=True, cell=lambda m: str(m.nodes)),
    Column("errors", right=True, cell=lambda m: str(sum(f.level == "error" for f in m.findings))),
    Column("warnings", right=True, cell=lambda m: str(sum(f.level == "warning" for f in m.findings))),
    Column("vectors", right=True, cell=_vectors),
    Column("time", right=True, cell=lambda m: duration(m.duration_ns)),
]
