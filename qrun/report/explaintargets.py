"""The pages of ``qrun explain`` about targets and their rules."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from qrun.checking.deploy import NOT_QUANTIZED, rule_id, sentence_name
from qrun.checking.targets import CONSEQUENCES, DeployTarget, TargetRule, find
from qrun.checking.targets import names as target_names
from qrun.errors import CallError, suggest
from qrun.report.page import Page
from qrun.report.screen import OPEN, Screen
from qrun.report.targets import OF_CONSEQUENCE, known_from
from qrun.report.text import plural

MEANINGS = {
    "wrong": "the model loads, and computes other numbers than the file says, without an error",
    "crash": "the model loads, and fails later",
    "refused": "the model does not load",
    "cpu": "the node runs on the CPU, not on the device",
    "float": "the node is computed in float",
    "weight-only": "the weights are converted to float, then the node is computed in float",
    "slow": "the node runs in integers, but slowly",
    "note": "worth knowing",
}
"""What each consequence means, worst first."""


def target_page(word: str) -> Page | None:
    """The page of a target, by its name or the path of its file, or of one of its rules: ``tensorrt/zero-point-0``.

    None if the word names no target. Raises CallError if the target has no such rule.
    """
    whole = _known(word)
    if whole is not None:
        return Page(lambda screen: _print_target(screen, whole, word), _target_fields(whole))
    name, slash, short = word.rpartition("/")
    target = _known(name) if slash else None
    if target is None:
        return None
    rules = {rule.id: rule for rule in (NOT_QUANTIZED, *target.rules)}
    rule = rules.get(short)
    if rule is None:
        near = suggest(short, rules)
        fixes = [f"did you mean {name}/{near}?" if near else f"qrun explain {name} lists its rules"]
        raise CallError("QR005", f"{name} has no rule {short!r}", fixes=fixes)
    return Page(lambda screen: _print_rule(screen, target, rule), _rule_fields(target, rule))


def _known(word: str) -> DeployTarget | None:
    return find(word) if word in target_names() or (word.endswith(".json") and os.path.isfile(word)) else None


def _print_target(screen: Screen, target: DeployTarget, word: str) -> None:
    """Prints what the target is, then its rules by consequence."""
    screen.line((target.id, "bold"), f"   {sentence_name(target)}{f' on {target.on}' if target.on else ''}")
    screen.facts(
        [
            ("proved by", target.proof),
            ("verified", "yes: the target itself was run" if target.verified else "no: the target itself was not run"),
            ("not judged", "; ".join(target.not_judged)),
            ("options", ", ".join(f"{key}={value}" for key, value in target.options.items())),
            ("judge for it", f"qrun check MODEL --target {word}"),
            ("one rule", f"qrun explain {word}/{target.rules[0].id}" if target.rules else ""),
        ]
    )
    for consequence, rules in _by_consequence(target):
        screen.line()
        style = OF_CONSEQUENCE.get(consequence, OPEN)
        screen.wrapped("", "  ", (consequence, style), f": {MEANINGS[consequence]} ({plural(len(rules), 'rule')})")
        for rule in rules:
            of = f" ({', '.join(rule.operators)})" if 0 < len(rule.operators) <= 3 else ""
            screen.wrapped(f"  {rule.id}: ", "    ", f"{rule.cause}{of}")


def _by_consequence(target: DeployTarget) -> Sequence[tuple[str, Sequence[TargetRule]]]:
    """The rules, worst consequence first; consequences without rules are left out."""
    found = {word: [rule for rule in target.rules if rule.otherwise == word] for word in reversed(CONSEQUENCES)}
    return [(word, rules) for word, rules in found.items() if rules]


def _print_rule(screen: Screen, target: DeployTarget, rule: TargetRule) -> None:
    style = OF_CONSEQUENCE.get(rule.otherwise, OPEN)
    screen.line((rule_id(target, rule), "bold"), "   ", (rule.otherwise, style), f"   rule of {sentence_name(target)}")
    screen.wrapped("  ", "  ", f"If this is so, {MEANINGS[rule.otherwise]}: {rule.cause}.")
    others = f"all but {', '.join(rule.excepted)}" if rule.excepted else "all"
    screen.facts(
        [
            ("why", rule.why),
            ("it says", rule.says),
            ("fix", rule.fix),
            ("applies to", ", ".join(rule.operators) or others),
            ("in integers", "" if rule.fixable else "never: no change brings such a node into integers"),
            ("known from", known_from(rule)),
            ("silence", f"qrun check --ignore {rule_id(target, rule)}"),
        ]
    )


def _target_fields(target: DeployTarget) -> Mapping[str, Any]:
    shown = ("id", "name", "version", "on", "proof", "verified", "not_judged", "options")
    rules = [
        {key: value for key, value in _rule_fields(target, rule).items() if key != "target"} for rule in target.rules
    ]
    return {**{key: getattr(target, key) for key in shown}, "rules": rules}


def _rule_fields(target: DeployTarget, rule: TargetRule) -> Mapping[str, Any]:
    shown = ("id", "operators", "excepted", "cause", "why", "says", "fix", "fixable", "source", "proof")
    return {"target": target.id, "consequence": rule.otherwise, **{key: getattr(rule, key) for key in shown}}
