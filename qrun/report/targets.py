"""The report of ``qrun check --target``: for each target a verdict, its reasons, and what would run in integers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qrun.checking.check import Checked, Report
from qrun.checking.deploy import TargetResult, sentence_name
from qrun.checking.targets import IntegerCount, TargetReason, TargetRule
from qrun.declare.frozen import frozen
from qrun.errors import some
from qrun.report.grid import Column, Grid
from qrun.report.nodes import fold_prefix
from qrun.report.screen import BAD, GOOD, NAME, NEXT, OPEN, STYLES, Piece, Screen
from qrun.report.text import plural, width_of

OF_CONSEQUENCE = {
    **dict.fromkeys(("wrong", "crash", "refused"), STYLES["error"]),
    **dict.fromkeys(("cpu", "float"), STYLES["warning"]),
}
"""The styles of consequences."""
MOST_SAYS = 4
"""Operators that a line of counts names."""


def verdict(result: TargetResult) -> str:
    """What happens with the model, in a few words: ``will not load``."""
    integer = any(count.integer for count in result.integers)
    for consequence, text in _VERDICTS.items():
        if result.has(consequence):
            return "runs in float" if consequence == "float" and not integer else text
    return "runs in integers" if integer else "runs"


_VERDICTS = {
    "refused": "will not load",
    "crash": "loads, then fails",
    "wrong": "loads, but computes other numbers",
    "cpu": "runs partly on the CPU",
    "float": "runs partly in float",
    "weight-only": "runs, with weights converted to float",
    "slow": "runs in integers, partly slowly",
}
"""What happens with a model, by its first consequence in this order: a model that does not load computes nothing."""


def in_order(result: TargetResult) -> Sequence[TargetReason]:
    """The reasons, those of the verdict first."""
    places = {consequence: place for place, consequence in enumerate(_VERDICTS)}
    return sorted(result.reasons, key=lambda reason: places.get(reason.consequence, len(places)))


def summary(result: TargetResult) -> str:
    """``will not load: 3 reasons, 214 of 318 nodes``."""
    if not result.reasons:
        return f"{verdict(result)}: all {plural(result.nodes, 'node')} fit"
    return (
        f"{verdict(result)}: {plural(len(result.reasons), 'reason')}, {result.broken} of {plural(result.nodes, 'node')}"
    )


def integers_text(counts: Sequence[IntegerCount], now: bool) -> str:
    """``82 of 88 Conv, 2 of 2 MatMul``: the nodes that run in integers now, or once all that can be fixed is fixed."""
    return some([f"{count.integer if now else count.fixed} of {count.nodes} {count.op}" for count in counts], 8)


def heading(model: Checked, result: TargetResult) -> str:
    """``m.onnx on onnxruntime 1.32.0, x86 CPUs``."""
    on = f", {result.target.on}" if result.target.on else ""
    return f"{model.name} on {sentence_name(result.target)}{on}"


def print_targets(screen: Screen, report: Report, every: bool) -> None:
    """Prints a block for each target of a single model, else one line for each model and target. every: blocks that
    name all nodes, of all models."""
    pairs = [(model, result) for model in report.models for result in model.targets]
    if not pairs:
        return
    if not is_table(report, every):
        for number, (model, result) in enumerate(pairs):
            if number:
                screen.line()
            _print_result(screen, model, result, every)
        return
    _print_table(screen, report, pairs)


FEW = 2
"""The most targets of which a check prints everything without -v."""


def is_table(report: Report, every: bool) -> bool:
    """Whether `print_targets` prints one line for each model and target."""
    return report.has_targets and not every and (len(report.models) > 1 or len(report.targets) > FEW)


def _print_result(screen: Screen, model: Checked, result: TargetResult, every: bool) -> None:
    """Prints the verdict, a block for each reason, and what the verdict is about."""
    screen.wrapped("", "  ", (f"{heading(model, result)}: ", "bold"), (summary(result), _style(result)))
    reported = {finding.rule for finding in model.findings}
    shown = [reason for reason in in_order(result) if result.id_of(reason) in reported]
    width = max((len(reason.consequence) for reason in shown), default=7)
    screen.line()
    for reason in shown:
        _print_reason(screen, result, reason, max(width, 7), every)
    if shown:
        screen.line()
    left_out = len(result.reasons) - len(shown)
    rows = [
        *_integers_rows(result),
        ("not judged", "; ".join(result.target.not_judged)),
        ("proved by", result.target.proof),
        ("not shown", f"{plural(left_out, 'reason')}: known from the baseline, or ignored" if left_out else ""),
    ]
    screen.facts(rows)


def _style(result: TargetResult) -> str:
    if not result.reasons:
        return GOOD
    return BAD if result.has("wrong", "crash", "refused") else OF_CONSEQUENCE.get(result.worst, OPEN)


def _print_reason(screen: Screen, result: TargetResult, reason: TargetReason, width: int, every: bool) -> None:
    rule, style = reason.rule, OF_CONSEQUENCE.get(reason.consequence, OPEN)
    first = f"  {reason.consequence:<{width}}  ", style
    counts = some([f"{count} {op}" for op, count in reason.operators.items()], MOST_SAYS)
    room = (screen.width or 0) - width - 4 - width_of(screen.clean(rule.cause)) - width_of(screen.clean(counts))
    if counts and room >= 3:
        screen.line(first, (rule.cause, "bold"), " " * room, counts)
    else:
        screen.wrapped(first, " " * (width + 4), (rule.cause, "bold"), f"   {counts}" if counts else "")
    rows: list[tuple[str, Sequence[Piece]]] = [
        *_nodes_rows(reason, every),
        ("why", [rule.why]),
        ("says", [rule.says]),
        ("fix", [(rule.fix, NEXT)]),
        ("rule", [f"{result.id_of(reason)}, known from {known_from(rule)}"] if every else []),
    ]
    for label, pieces in rows:
        if any(piece if isinstance(piece, str) else piece[0] for piece in pieces):
            screen.wrapped((f"    {label:<{width - 2}}  ", "dim"), " " * (width + 4), *pieces)


def _nodes_rows(reason: TargetReason, every: bool) -> list[tuple[str, Sequence[Piece]]]:
    """The first node, or all of them, each with what broke the rule."""
    pairs = list(zip(reason.nodes, reason.seen, strict=True))
    if not pairs:
        return []
    first: list[Piece] = [f"node {reason.index} ", (pairs[0][0], NAME), _after(pairs[0][1])]
    rows: list[tuple[str, Sequence[Piece]]] = [("first" if len(pairs) > 1 else "node", first)]
    return rows + [("", [(name, NAME), _after(value)]) for name, value in pairs[1:] if every]


def _after(seen: str) -> str:
    return f", {seen}" if seen else ""


def _integers_rows(result: TargetResult) -> list[tuple[str, str]]:
    """What runs in integers now, and once everything is fixed, if that is more."""
    counts = result.integers
    if not counts:
        return [("in integers", "nothing: no operator has quantized activations")]
    loads = not result.has("refused", "crash")
    rows = [("in integers", integers_text(counts, True) if loads else "nothing before this is fixed")]
    if any(count.fixed != count.integer for count in counts):
        rows.append(("once fixed", integers_text(counts, False)))
    return rows


PROOFS = {
    "oracle": "the target's observed behaviour",
    "threads": "public reports",
    "docs": "documentation",
    "source": "source code",
}
"""The words of rules for how they are known, and what they mean."""


def known_from(rule: TargetRule) -> str:
    """``source code and the target's observed behaviour (qdq_selectors.cc)``."""
    text = re.sub(r"\b(oracle|threads|docs|source)\b", lambda found: PROOFS[found[0]], rule.proof)
    return f"{text} ({rule.source})" if rule.source else text


@frozen
class _Row:
    """A line of the table of targets."""

    model: Checked
    result: TargetResult

    @property
    def integers(self) -> str:
        """``10 of 96``: how many nodes run in integers."""
        counts = self.result.integers
        return _share(sum(count.integer for count in counts), counts)

    @property
    def fixed(self) -> str:
        counts = self.result.integers
        return _share(sum(count.fixed for count in counts), counts)

    @property
    def reason(self) -> str:
        """The worst reason, and the number of others."""
        if not self.result.reasons:
            return "-"
        first, *others = in_order(self.result)
        counts = f" ({plural(first.count, 'node')})" if first.nodes else ""
        return f"{first.rule.cause}{counts}" + (f", and {len(others)} more" if others else "")


def _share(part: int, counts: Sequence[IntegerCount]) -> str:
    whole = sum(count.nodes for count in counts)
    return f"{part} of {whole}" if whole else "-"


def _print_table(screen: Screen, report: Report, pairs: Sequence[tuple[Checked, TargetResult]]) -> None:
    """Prints one line for each model and target."""
    several = len(report.models) > 1
    rows = [_Row(model, result) for model, result in pairs]
    columns = [
        Column("model", shrink=1, cell=lambda row: row.model.name) if several else None,
        Column("target", style=NAME, cell=lambda row: row.result.target.id),
        Column("verdict", cell=lambda row: verdict(row.result)),
        Column("in integers", right=True, cell=lambda row: row.integers),
        Column("once fixed", right=True, optional=1, cell=lambda row: row.fixed),
        None if several else Column("worst reason", wrap=True, cell=lambda row: row.reason),
    ]
    grid = Grid.of(columns, rows)
    grid.styles.update({(at, 1 + several): _style(row.result) for at, row in enumerate(rows)})
    if not several:
        screen.wrapped("", "  ", (report.models[0].name, "bold"), f", {plural(report.models[0].nodes, 'node')}")
    screen.grid(fold_prefix(screen, grid, 0) if several else grid)
