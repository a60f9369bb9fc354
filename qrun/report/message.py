"""Errors and findings in the house style: what, where, facts, why, fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qrun.errors import QrunError
from qrun.report.screen import Screen

if TYPE_CHECKING:
    from qrun.rules import Finding

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def print_message(
    screen: Screen,
    level: str,
    code: str,
    name: str,
    message: str,
    *,
    where: Sequence[str] = (),
    facts: Sequence[tuple[str, str]] = (),
    why: str = "",
    fixes: Sequence[str] = (),
) -> None:
    """``LEVEL CODE name: message``, then ``-->``, ``|`` and ``=`` lines; wrapped at the width, if there is one."""
    title = f"{code} {name}: " if code else f"{name}: "
    if screen.width is None or len(level) + 1 + len(title) + len(message) <= screen.width:
        screen.line((level, STYLES.get(level, "")), " ", (title, "bold"), message)
    else:
        screen.wrapped(f"{level} {title}", "  ", message)
    if where:
        _joined(screen, where)
    width = max((len(label) for label, _ in facts), default=0)
    for label, value in facts:
        screen.wrapped(f"   |  {label:<{width}} ", "   |  " + " " * (width + 1), value)
    if why:
        screen.wrapped("   =  why: ", "           ", why)
    for fix in fixes:
        screen.wrapped("   =  fix: ", "           ", fix)


def print_error(screen: Screen, error: QrunError) -> None:
    print_message(
        screen, "error", error.code, error.name, error.message,
        where=error.where, facts=error.facts, why=error.why, fixes=error.fixes,
    )  # fmt: skip


def _joined(screen: Screen, where: Sequence[str]) -> None:
    """Places on one line, or one a line where they are too long together."""
    line = "  --> " + "  ".join(where)
    if screen.width is None or len(line) <= screen.width:
        screen.line(line)
        return
    screen.wrapped("  --> ", "      ", where[0])
    for place in where[1:]:
        screen.wrapped("      ", "      ", place)


def print_finding(screen: Screen, finding: Finding, label: str) -> None:
    """A finding of a rule, in the same form as an error."""
    place = f"node {finding.index} {finding.node} ({finding.op})" if finding.index is not None else ""
    facts = (("tensor", finding.tensor), ("expected", finding.expected), ("got", finding.got))
    print_message(
        screen, finding.level, finding.rule, finding.name, finding.message,
        where=[part for part in (label, place) if part],
        facts=[(name, value) for name, value in facts if value],
        why=finding.why,
        fixes=[finding.fix] if finding.fix else [],
    )  # fmt: skip
