"""Every rule's page: headings, and models that it finds (Bad) or passes (Good)."""

from __future__ import annotations

import re

import onnx.parser
import pytest

import qrun
from qrun.checking.rules import RULES, Finding, Rule, check
from qrun.checking.rules._rule import HEADINGS

WHOLE_FILE = ("QR108", "QR110", "QR118")
"""Rules about the file, not about a node or a tensor."""
NOT_RUN = ("QR114",)
"""Rules about operators that qrun does not run: QR201 says so beside them."""

ALL = [pytest.param(rule, id=rule.id) for rule in RULES.values()]


def findings(rule: Rule, heading: str) -> list[Finding]:
    model = onnx.parser.parse_model(rule.sections[heading])
    result = qrun.Session(model, backend="reference").execute({}) if rule.runs else None
    return [
        f
        for f in check(model, result, {} if rule.fed and not model.graph.input else None)
        if rule.id not in NOT_RUN or f.rule != "QR201"
    ]


@pytest.mark.parametrize("rule", ALL)
def test_page(rule: Rule) -> None:
    assert re.fullmatch(r"QR[1-6]\d\d", rule.id)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert tuple(rule.sections) == HEADINGS
    assert rule.summary.endswith(".")
    assert rule.fix
    assert rule.spec.startswith("https://")


@pytest.mark.parametrize("rule", ALL)
def test_bad_raises_exactly_this_rule(rule: Rule) -> None:
    found = findings(rule, "Bad")
    assert [f.rule for f in found] == [rule.id], found
    finding = found[0]
    assert (finding.name, finding.level) == (rule.name, rule.level)
    assert finding.message
    assert finding.expected
    assert finding.got
    assert finding.fix
    assert rule.id in WHOLE_FILE or finding.node or finding.tensor


@pytest.mark.parametrize("rule", ALL)
def test_good_raises_nothing(rule: Rule) -> None:
    assert findings(rule, "Good") == []


def test_rules_are_in_the_order_of_their_ids() -> None:
    """Whatever files they stand in."""
    assert list(RULES) == sorted(RULES)


def test_names_are_unique() -> None:
    names = [rule.name for rule in RULES.values()]
    assert len(set(names)) == len(names)
