"""Prints errors and findings in the house style: message, place, facts, why, fix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qrun.declare import grouped
from qrun.errors import QrunError
from qrun.report.screen import STYLES, Screen
from qrun.report.text import plural

if TYPE_CHECKING:
    from qrun.checking.rules import Finding


def count_levels(levels: Iterable[str]) -> str:
    """The number of each level: ``2 errors, 1 warning``."""
    counts = Counter(levels)
    return ", ".join(plural(counts[level], level) for level in STYLES if counts[level])


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
    """Prints ``LEVEL CODE name: message``, then ``-->``, ``|`` and ``=`` lines; wrapped if the screen has a width."""
    title = f"{code} {name}: " if code else f"{name}: "
    screen.wrapped("", "  ", (level, STYLES.get(level, "")), " ", (title, "bold"), message)
    if where:
        _join_places(screen, where)
    width = max((len(label) for label, _ in facts), default=0)
    for label, value in facts:
        screen.wrapped(f"   |  {label:<{width}} ", "   |  " + " " * (width + 1), value)
    if why:
        screen.wrapped("   =  why: ", "           ", why)
    for fix in fixes:
        screen.wrapped("   =  fix: ", "           ", fix)


def print_error(screen: Screen, error: QrunError) -> None:
    told: dict[str, Any] = {key: getattr(error, key) for key in ("where", "facts", "why", "fixes")}
    print_message(screen, "error", error.code, error.name, error.message, **told)


def _join_places(screen: Screen, where: Sequence[str]) -> None:
    """Prints the places on one line, or one per line if they are too long together."""
    line = "  --> " + "  ".join(where)
    if screen.width is None or len(line) <= screen.width:
        screen.line(line)
        return
    screen.wrapped("  --> ", "      ", where[0])
    for place in where[1:]:
        screen.wrapped("      ", "      ", place)


def print_finding(screen: Screen, finding: Finding, label: str) -> None:
    """Prints a rule's finding in the same form as an error."""
    operator = f" ({finding.op})" if finding.op else ""
    place = f"{finding.numbered}{operator}" if finding.node else ""
    facts = (("tensor", finding.tensor), ("expected", finding.expected), ("got", finding.got))
    print_message(
        screen,
        finding.level,
        finding.rule,
        finding.name,
        finding.message,
        where=[part for part in (label, place) if part],
        facts=[(name, value) for name, value in facts if value],
        why=finding.why,
        fixes=[finding.fix] if finding.fix else [],
    )


def print_findings(screen: Screen, findings: Sequence[Finding], label: str, verbose: bool) -> None:
    """Prints each finding as a message if verbose, else one line per rule, which names the first node and tensor."""
    if verbose:
        for finding in findings:
            print_finding(screen, finding, label)
        return
    for rule, (first, *others) in grouped((finding.rule, finding) for finding in findings).items():
        more = f" (and {len(others)} more)" if others else ""
        text = f"{_place(screen, first)}{_with_tensor(first)}{more}"
        lead = (rule, "bold"), " ", (f"{first.level:<7}", STYLES[first.level]), "  "
        screen.wrapped("  ", " " * (12 + len(rule)), *lead, text)


def _place(screen: Screen, finding: Finding) -> str:
    if not finding.node:
        return ""
    name = finding.node if screen.width is None else screen.shorten(finding.node, screen.width // 2)
    return f"{replace(finding, node=name).numbered}: "


TENSOR = re.compile(r"(?P<name>.+?)(\[[\d,]*\])? \((input \d+, (?P<param>\w+)|output\b).*\)", re.DOTALL)
"""Finding.tensor in the form that rules write: ``s[3] (input 1, x_scale, read by 2 nodes)`` or ``y (output)``."""


def _with_tensor(finding: Finding) -> str:
    """The message with the tensor's name inserted: ``x_scale (tensor s) is nan``."""
    found = TENSOR.fullmatch(finding.tensor)
    name = found["name"] if found else finding.tensor.partition(",")[0]
    if not name or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", finding.message):
        return finding.message
    param = rf"(?<!\w){re.escape(found['param'])}(\[[\d,]*\])?(?!\w)" if found and found["param"] else "$^"
    named, count = re.subn(param, lambda m: f"{m[0]} (tensor {name})", finding.message, count=1)
    return named if count else f"{finding.message} (tensor {name})"
