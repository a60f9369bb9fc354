"""Lists of nodes to keep in float: what they are steered by, what all nodes of one operator cost,
and too little time."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qrun
from qrun.comparing.accuracy import Accuracy, accuracy
from qrun.report.accuracy import accuracy_fields, accuracy_sheet
from qrun.report.json import document
from qrun.report.screen import Out, Screen
from qrun.report.sheet import print_sheet

MODELS = Path(__file__).resolve().parents[2] / "models/digits"


@cache
def compared(min_sqnr: float | None = None, seconds: float = math.inf, sets: int = 1, **options: Any) -> Accuracy:
    first, second = (qrun.load(onnx.load(MODELS / form / "model.onnx")) for form in ("float", "qdq"))
    images = np.array_split(np.load(MODELS / "x.npy"), sets)
    feeds = [{"images": part} for part in images]
    return accuracy(first, second, feeds, min_sqnr=min_sqnr, seconds=seconds, **options)


def text(found: Accuracy) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    screen = Screen(stream, terminal=False, width=None, color=False)
    print_sheet(Out(screen, screen), accuracy_sheet(found, 5))
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("sets", [1, 3])
def test_the_list_is_as_long_as_the_sqnr_takes_and_no_longer(sets: int) -> None:
    plain = compared(sets=sets)
    assert plain.suggestion is not None
    assert plain.suggestion.reached is None
    wanted = plain.real + 8
    found = compared(wanted, sets=sets)
    advice = found.suggestion
    assert advice is not None
    assert advice.reached is True
    tried = dict(advice.tried)
    assert tried[advice.count] >= wanted > tried[advice.count - 1]
    said = text(found)
    assert f"which reaches --min-sqnr {wanted:g}" in said
    assert accuracy_fields(found)["keep_in_float"]["reached"] is True


def test_a_list_of_more_than_half_of_the_nodes_comes_with_other_advice() -> None:
    found = compared(90.0)
    assert found.suggestion is not None
    assert found.suggestion.count > found.quantizing / 2
    assert "more than half of them: activations of 16 bits" in text(found)


def test_an_sqnr_that_all_nodes_reach_steers_nothing() -> None:
    plain, found = compared(), compared(10.0)
    assert plain.suggestion is not None
    assert found.suggestion == replace(plain.suggestion, reached=True)
    assert "which reaches" not in text(found)


def test_an_sqnr_that_was_not_reached_is_said_to_be_so() -> None:
    found = compared(90.0, seconds=0.0)
    assert found.suggestion is not None
    assert (found.suggestion.reached, found.suggestion.count) == (False, 0)
    said = text(found)
    assert "--min-sqnr 90 was not reached in the time that there was" in said
    assert "No short list helps" not in said


def test_too_little_time_is_the_first_thing_said_of_the_run() -> None:
    hurried = compared(seconds=0.0, sets=3)
    assert hurried.hurried
    said = text(hurried)
    assert "No short list helps" not in said
    assert said.index("Time ran out after 0 s") < said.index("3 sets of inputs") < said.index("Outputs")
    assert "1 of 3 sets of inputs" in said
    assert "--budget 10m, or none, gives more." in said
    fields = accuracy_fields(hurried)
    assert fields["out_of_time"] is True
    assert fields["budget_s"] == 0
    assert fields["notes"][0].startswith("Time ran out")


def test_with_time_enough_none_ran_out() -> None:
    found = compared()
    assert not found.hurried
    assert "Time ran out" not in text(found)
    assert accuracy_fields(found)["budget_s"] is None


def test_operators_are_measured_with_all_their_nodes_in_float() -> None:
    """The one with all its nodes in float is as good as a list of just these nodes."""
    found = compared()
    assert found.suggestion is not None
    rows = {row.name: row for row in found.suggestion.operators}
    kinds = [cost.node.op_type for cost in found.costs]
    assert {name: row.nodes for name, row in rows.items()} == {kind: kinds.count(kind) for kind in kinds}
    assert [row.sqnr for row in rows.values()] == sorted((row.sqnr for row in rows.values()), reverse=True)
    first = found.costs[0]
    if kinds.count(first.node.op_type) == 1:
        assert rows[first.node.op_type].sqnr == dict(found.suggestion.tried)[1]
    assert all(row.sqnr > found.real - 1 for row in rows.values())
    assert "All nodes of one operator in float" in text(found)
    assert json.loads(document("compare", [], accuracy_fields(found)))["operators"][0]["op"] == next(iter(rows))
