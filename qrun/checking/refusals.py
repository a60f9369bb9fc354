"""Errors as findings: what the loader, a kernel or another runtime refuses, under the same code."""

from __future__ import annotations

import re
from dataclasses import replace

from qrun.checking.rules._rule import Finding
from qrun.errors import QrunError

_NODE = re.compile(r"node (?:(\d+) (?=.* \(.+-\d+\)$))?(.*) \(([^()]+)\)", re.DOTALL)
"""With its place where a kernel refuses it, without where the loader does."""


def as_finding(error: QrunError) -> Finding:
    """A refusal of the loader, of a kernel or of another runtime as a finding of the same code."""
    facts = dict(error.facts)
    expected = facts.pop("expected", "")
    got = facts.pop("got", "")
    others = "; ".join(f"{label} {value}".strip() for label, value in facts.items())
    node = next((m for part in error.where if (m := _NODE.fullmatch(part))), None)
    tensor = next((part.removeprefix("tensor ") for part in error.where if part.startswith("tensor ")), "")
    found = Finding(
        error.message,
        tensor=tensor,
        expected=expected,
        got="; ".join(part for part in (got, others) if part),
        why=error.why,
        fix="; or ".join(error.fixes),
        rule=error.code,
        name=error.name,
        level="error",
    )
    return replace(found, index=int(node[1]) if node[1] else None, node=node[2], op=node[3]) if node else found
