"""Rules and inspect survive any model that can be loaded."""

from __future__ import annotations

import io
import random

import onnx.parser
from helpers.mutator import fields

import qrun
from qrun.checking.rules import RULES, check
from qrun.documents.record import encode
from qrun.errors import QrunError
from qrun.report.inspect import inspection, print_nodes, print_overview
from qrun.report.modelfacts import ModelFacts
from qrun.report.screen import Screen
from qrun.report.stats import print_arrays

ROUNDS = 8
SEED = 2


def look(model: qrun.Model) -> None:
    check(model)
    facts = ModelFacts(model)
    screen = Screen(io.StringIO(), terminal=False, width=80, color=False)
    print_overview(screen, facts)
    print_nodes(screen, model)
    if facts.stored:
        print_arrays(screen, facts.stored)
    encode(inspection(facts, True, facts.stored))


def test_damaged_models() -> None:
    loaded = 0
    for rule in RULES.values():
        for heading in ("Bad", "Good"):
            data = onnx.parser.parse_model(rule.sections[heading]).SerializeToString()
            for number in range(ROUNDS):
                rng = random.Random(f"{SEED}/{rule.id}/{heading}/{number}")
                damaged = fields(data, rng)
                try:
                    model = qrun.load(damaged)
                except QrunError:
                    continue
                loaded += 1
                try:
                    look(model)
                except Exception as error:
                    raise AssertionError(f"seed {SEED}, {rule.id} {heading} number {number}: {error!r}") from error
    assert loaded > 5 * ROUNDS
