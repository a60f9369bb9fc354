"""``qrun check`` for people: blocks or lines, the worst first, a table of the models, the next command, the summary."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.checking.check import Checked, Report
from qrun.checking.rules import LEVELS
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.report.check import Found, by_level, explain, of_rules, shown, unexplained_vectors, verdict, visible
from qrun.report.formats._format import Asked, check_format
from qrun.report.grid import Column, Grid
from qrun.report.message import count_levels, print_blocks
from qrun.report.nodes import fold_prefix
from qrun.report.screen import BAD, GOOD, NAME, NEXT, STYLES, Piece, Screen
from qrun.report.targets import is_table, print_targets
from qrun.report.text import duration, plural

TABLE = 100
"""The most models in the table without -v."""


@check_format("full", suffix=".txt")
def full(screen: Screen, report: Report, asked: Asked) -> None:
    """Targets, findings as blocks, alike ones in one block, a table of the models, the next command, and the
    summary."""
    found = of_rules(report, asked.notes)
    if asked.statistics:
        _statistics(screen, report)
    else:
        print_targets(screen, report, asked.notes)
        if report.has_targets and found:
            screen.line()
        print_blocks(screen, [(model.name, finding) for model, finding in found], every=asked.notes)
    if asked.quiet and not report.failed:
        return
    if report.has_targets or (report.findings and (asked.statistics or found)):
        screen.line()
    if not asked.quiet:
        _below(screen, report, asked)
    _verdict(screen, report)


def _below(screen: Screen, report: Report, asked: Asked) -> None:
    if not asked.statistics:
        _table(screen, report, asked.notes)
    _integers(screen, report)
    _next(screen, report, shown(report, asked.notes), "all reasons" if is_table(report, asked.notes) else "")


@check_format("concise")
def concise(screen: Screen, report: Report, asked: Asked) -> None:
    """``path: node: LEVEL CODE name: message``, one line per finding whatever the width, then the summary."""
    if asked.statistics:
        _statistics(screen, report)
    for model, finding in [] if asked.statistics else by_level(visible(report, asked.notes)):
        node: list[Piece] = [(finding.node, NAME), ": "] if finding.node else []
        title = (f"{finding.rule} {finding.name}: ", "bold")
        screen.line(f"{model.name}: ", *node, (finding.level, STYLES[finding.level]), " ", title, finding.message)
    if not asked.quiet:
        _next(screen, report, by_level(visible(report, asked.notes)))
    if report.failed or not asked.quiet:
        _verdict(screen, report)


def _verdict(screen: Screen, report: Report) -> None:
    word, colon, rest = verdict(report).partition(":")
    screen.wrapped("", "  ", (word + colon, BAD if report.failed else GOOD), rest)


def _integers(screen: Screen, report: Report) -> None:
    """Prints how many nodes of a single model onnxruntime computes in integers."""
    found = report.models[0].integers if len(report.models) == 1 and not report.targets else None
    if found is not None:
        screen.wrapped(f"in integers in {found.runtime} on {found.on}: ", "  ", str(found))


def _next(screen: Screen, report: Report, told: Sequence[Found], more: str = "") -> None:
    """Prints what was not shown, and the command that explains the first finding. more: something else not shown."""
    seen = {id(finding) for _, finding in told}
    hidden = count_levels(finding.level for _, finding in report.findings if id(finding) not in seen)
    hidden = ", ".join(filter(None, [more, hidden]))
    parts = [f"-v shows {hidden}"] if hidden else []
    parts += [f"{command} has details" for command in explain(told)]
    if parts:
        screen.wrapped("", "  ", ("; ".join(parts), NEXT))
    if report.since is not None:
        screen.line(
            f"since the baseline: {plural(report.since.known, 'known finding')} not shown, {report.since.gone} gone"
        )


def _table(screen: Screen, report: Report, every: bool) -> None:
    """Prints one row per model if there are several, without -v only models with findings or with vectors that did not
    pass; and the reasons why vectors were skipped."""
    shown = [m for m in report.models if every or m.findings or any(v.status != "passed" for v in m.vectors)]
    if len(report.models) > 1 and shown and not report.targets:
        screen.grid(fold_prefix(screen, Grid.of(_MODELS, shown if every else shown[:TABLE]), 0))
        if shown[TABLE:] and not every:
            screen.line(f"  {screen.ellipsis} {plural(len(shown) - TABLE, 'more model')}   -v")
        screen.line()
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


@frozen
class _Count:
    """How often a rule was found. models: the number of models with it."""

    rule: str
    name: str
    level: str
    count: int
    models: int


def _statistics(screen: Screen, report: Report) -> None:
    """Prints one row per rule that was found, the most frequent first; notes too."""
    found = grouped(((f.rule, f.name, f.level), m.name) for m, f in report.findings)
    counts = [_Count(*key, len(models), len(set(models))) for key, models in found.items()]
    counts.sort(key=lambda row: (-row.count, LEVELS.index(row.level), row.rule))
    grid = Grid.of(_COUNTS, counts)
    grid.styles.update({(at, 2): STYLES[row.level] for at, row in enumerate(counts)})
    if counts:
        screen.grid(grid)


_COUNTS = [
    Column("rule", style=NAME, cell=lambda row: row.rule),
    Column("name", shrink=1, cell=lambda row: row.name),
    Column("level", cell=lambda row: row.level),
    Column("count", right=True, cell=lambda row: str(row.count)),
    Column("models", right=True, cell=lambda row: str(row.models)),
]
