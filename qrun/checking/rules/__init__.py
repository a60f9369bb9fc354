"""Conformance rules, by topic: modules of this package declare them with @rule, and are imported when these are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qrun.checking.rules._rule import LEVELS, RULES, Finding, Level, Rule, at, rule

if TYPE_CHECKING:
    import onnx

    from qrun.ir import Array, Model
    from qrun.running.session import RunResult

_ORDER: dict[Level, int] = {"error": 0, "warning": 1, "note": 2}


def check(
    model: str | Path | bytes | onnx.ModelProto | Model,
    result: RunResult | None = None,
    feeds: Mapping[str, Array] | None = None,
) -> list[Finding]:
    """All findings on a model, worst first, then in graph order.

    result: a run of the model; adds what its values show. feeds: inputs; adds what only the tensors inside show, for
    which the model is run again. Raises ModelError if the model cannot be read.
    """
    from qrun.ir import Model
    from qrun.ir.load import load

    loaded = model if isinstance(model, Model) else load(model)
    found = [finding for rule in RULES.values() for finding in rule.find(loaded, result, feeds)]
    return sorted(once(found), key=lambda f: (_ORDER[f.level], -1 if f.index is None else f.index, f.rule))


def once(found: Sequence[Finding]) -> list[Finding]:
    """One defect, one finding: without those that another one at the same node replaces, and one for each cause."""
    told = {(old, f.node) for f in found if f.rule in RULES for old in RULES[f.rule].replaces}
    groups: dict[str, list[Finding]] = {}
    for f in found:
        if (f.rule, f.node) not in told:
            groups.setdefault(f.cause or f"{len(groups)} alone", []).append(f)
    return [_of_all(group) for group in groups.values()]


def _of_all(group: Sequence[Finding]) -> Finding:
    """The first finding, for all of one cause; where several rules found it, the one with the highest id tells it."""
    from qrun.checking.rules._words import listed

    rule = max(f.rule for f in group)
    first = next(f for f in group if f.rule == rule)
    others = list(dict.fromkeys(f.node for f in group if f.node != first.node))
    if not others:
        return first
    more = f"and {len(others)} more node{'s' if len(others) > 1 else ''} like it: {listed(others)}"
    return replace(first, message=f"{first.message}, {more}", got=f"{first.got}; {more}")


__all__ = ["LEVELS", "RULES", "Finding", "Level", "Rule", "at", "check", "once", "rule"]
