"""Conformance rules by topic. Modules of this package declare them with @rule, and are imported when a rule of theirs
is needed. `check` applies all rules to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrun.checking.rules._rule import LEVELS, RULES, Finding, Level, Rule, at, rule
from qrun.declare.frozen import replace
from qrun.ir import Model
from qrun.ops import expansion

if TYPE_CHECKING:
    import onnx

    from qrun.checking.rules._scope import Shape
    from qrun.ir import Array, Model
    from qrun.running.session import RunResult

Keeper = Callable[[str, Callable[[], Any]], Any]
"""Maps (name, make) to the plain values that `make` computes from a model, or computed in an earlier process."""
_counted: list[int] = []


def check(
    model: str | Path | bytes | onnx.ModelProto | Model,
    result: RunResult | None = None,
    feeds: Mapping[str, Array] | None = None,
    keeper: Keeper | None = None,
) -> list[Finding]:
    """All findings on a model, worst first, then in graph order.

    result: a run of the model; adds findings on its values. feeds: inputs; adds findings on inner tensors, for which
    the model runs again. keeper: caches the findings of rules that take no result. These rules then get no feeds and no
    inferred shapes, and refusals by kernels are not predicted.
    Raises ModelError if the model cannot be read.
    """

    source = model
    if not isinstance(model, Model):
        from qrun.ir.load import load  # imports protobuf

        model = load(model)
    if keeper is None:
        from qrun.checking.rules._foretold import foretold

        makes = shape_inference(model, source)
        found = [finding for rule in RULES.values() for finding in rule.find(model, result, feeds, makes)]
        found += foretold(model, found, makes)
    else:
        found = list(_findings(model, result, feeds, keeper))
    return sorted(once(found, model), key=order)


_PATIENCE = 60.0
"""Seconds after which ONNX's shape inference counts as failed: for some models it never ends."""


def shape_inference(model: Model, source: object) -> Callable[[], Mapping[str, Shape]] | None:
    """A function that returns the shapes that ONNX infers for node outputs. It ignores the shapes that the file states,
    and returns no shapes if ONNX cannot infer the model. None if the file is not at hand. source: a path, bytes, a
    ModelProto, or a Model with its path."""

    given = model.path if isinstance(source, Model) else source
    if given is None:
        return None

    @cache
    def inferred() -> Mapping[str, Shape]:
        from qrun.child import Crash, Failed, Slow, current_child
        from qrun.ir.load import read_file

        data = given if isinstance(given, bytes) else None
        if data is None:
            data = read_file(Path(given)) if isinstance(given, (str, Path)) else given.SerializeToString()  # type: ignore[attr-defined]
        kinds = {(node.domain, node.op_type, len(node.inputs)) for node in model.nodes if node.domain}
        expansions = {kind: found for kind in kinds if (found := expansion(*kind))}
        try:
            child = current_child()
            shapes: Mapping[str, Shape] = child.ask("infer", "shapes_made", data, expansions, seconds=_PATIENCE)
        except (Crash, Failed, Slow):
            return {}
        return shapes

    return inferred


def order(finding: Finding) -> tuple[int, int, str]:
    """The sort key of a finding: worst first, then in graph order."""
    return LEVELS.index(finding.level), -1 if finding.index is None else finding.index, finding.rule


def _findings(
    model: Model, result: RunResult | None, feeds: Mapping[str, Array] | None, keeper: Keeper
) -> Iterator[Finding]:
    """Yield the findings in the order of their rules; `keeper` caches those of rules that need no run."""

    def make() -> tuple[tuple[str, tuple[tuple[Any, ...], ...] | None], ...]:
        found = ((rule.id, None if rule.runs else tuple(rule.find(model, None))) for rule in RULES.values())
        return tuple((name, None if told is None else tuple(map(_fields, told))) for name, told in found)

    kept = keeper("findings", make)
    _counted.append(len(kept))
    for name, plain in kept:
        yield from RULES[name].find(model, result, feeds) if plain is None else (Finding(*fields) for fields in plain)


def _fields(finding: Finding) -> tuple[Any, ...]:
    return tuple(getattr(finding, f.name) for f in fields(finding))


def rule_count() -> int:
    """The number of rules. If findings came from a cache, the number did too,
    so that no rule needs to be imported to be counted."""
    return _counted[-1] if _counted else len(RULES)


def once(found: Sequence[Finding], model: Model) -> list[Finding]:
    """Reduce the findings to one per defect: drop a finding that another one at the same node replaces, or that follows
    from an earlier one, and keep one per cause."""
    found = [f for f in found if f.rule not in RULES or not RULES[f.rule].follows or not _behind(f, found, model)]
    replaced = {(old, f.node) for f in found if f.rule in RULES for old in RULES[f.rule].replaces}
    groups: dict[str, list[Finding]] = {}
    for f in found:
        if (f.rule, f.node) not in replaced:
            groups.setdefault(f.cause or f"{len(groups)} alone", []).append(f)
    return [_of_all(group) for group in groups.values()]


def _behind(finding: Finding, found: Sequence[Finding], model: Model) -> bool:
    """Has a node before it a finding from which this one may follow: one about values or scales? A finding about
    inferred shapes may follow from any error, also at the same node."""
    if RULES[finding.rule].infers:
        bad = {f.index for f in found if f.index is not None and f.level == "error"}
    else:
        bad = {f.index for f in found if f.index is not None and f.index != finding.index and _spoils(f)}
    return bool(bad) and finding.index is not None and not bad.isdisjoint(nodes_before(model, finding.index))


def nodes_before(model: Model, index: int) -> set[int]:
    """The indices of a node and of all nodes on whose results it depends."""
    seen, rest = set[int](), [index]
    while rest:
        index = rest.pop()
        if index not in seen:
            seen.add(index)
            rest += [model.producers[name].index for name in model.nodes[index].inputs if name in model.producers]
    return seen


def _spoils(finding: Finding) -> bool:
    if finding.rule not in RULES:
        return False
    rule = RULES[finding.rule]
    return rule.needs_run or "QR413" in rule.replaces or (rule.id.startswith("QR3") and rule.level != "note")


def _of_all(group: Sequence[Finding]) -> Finding:
    """Merge findings of one cause into the first one; if several rules found it, of the rule with the highest id."""
    from qrun.checking.rules._rule import join_names

    rule = max(f.rule for f in group)
    first = next(f for f in group if f.rule == rule)
    others = list(dict.fromkeys(f.node for f in group if f.node != first.node))
    if not others:
        return first
    more = f"and {len(others)} more node{'s' if len(others) > 1 else ''} like it: {join_names(others)}"
    return replace(first, message=f"{first.message}, {more}", got=f"{first.got}; {more}", others=tuple(others))


__all__ = ["LEVELS", "RULES", "Finding", "Level", "Rule", "at", "check", "once", "order", "rule", "rule_count"]
