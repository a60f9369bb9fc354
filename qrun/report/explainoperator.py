"""What ``qrun explain`` prints of an operator: its versions, text, inputs, attributes and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrun.report.grid import Column, Grid
from qrun.report.screen import Screen

if TYPE_CHECKING:
    from qrun.report.ops import Supported


def print_operators(screen: Screen, found: list[Supported]) -> None:
    """One below the other, as of several domains."""
    for number, s in enumerate(found):
        if number:
            screen.line()
        _print_operator(screen, s)


def _print_operator(screen: Screen, s: Supported) -> None:
    from qrun.report.ops import compact, ranges

    versions = ", ".join(map(str, s.versions))
    screen.line((s.op, "bold"), f"   version{'s' if len(s.versions) > 1 else ''} {versions}")
    for part in s.text.split("\n\n"):
        if part.startswith(" "):
            for line in part.splitlines():
                screen.line(f"  {line}")
        else:
            screen.wrapped("  ", "  ", " ".join(part.split()))
        screen.line()
    formals = {f.name: f for f in s.definition.formals(s.versions[-1])}
    inputs = [
        [
            p.name,
            compact(formals[p.name].types) if p.name in formals else "",
            "repeats" if p.variadic else "optional" if p.optional else "",
        ]
        for p in s.definition.inputs
    ]
    if inputs:
        screen.grid(Grid([Column("input"), Column("types", shrink=1), Column("")], inputs))
    attributes = [[a.name, a.text, _default(s, a.name, a.required)] for a in s.definition.attributes.values()]
    if attributes:
        screen.grid(Grid([Column("attribute"), Column("kind"), Column("default", shrink=1)], attributes))
    if s.rules:
        screen.line(f"  checked by  {ranges(s.rules)}")
    if any("zero_point" in text for text in (s.text, *(p.name for p in s.definition.inputs))):
        screen.line("  see also    qrun explain numerics")


def _default(s: Supported, name: str, required: bool) -> str:
    if required:
        return "required"
    parameters = s.definition.signature.parameters
    value = parameters[name if name in parameters else f"{name}_"].default
    if value is None or value == ():
        return "-"
    return str(value)
