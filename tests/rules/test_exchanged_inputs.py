"""An input of a type that its operator does not take is one finding: what follows from it is held back."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import node_model

import qrun

U8, I8, F32, I32 = np.uint8, np.int8, np.float32, np.int32
VALUES: dict[str, Any] = {
    "x": np.zeros((1, 3, 4, 4), U8), "x_scale": F32(0.02), "x_zero_point": U8(128),
    "w": np.ones((16, 3, 3, 3), I8), "w_scale": np.full(16, 0.01, F32), "w_zero_point": np.zeros(16, I8),
    "y_scale": F32(0.05), "y_zero_point": U8(128), "B": np.zeros(16, I32),
}  # fmt: skip
NAMES = list(VALUES)
KINDS = "qsqqsqsqb"
"""Codes and zero points of 8 bits, scales, the bias: the types alone tell that two of different kinds were
exchanged."""
ELSEWHERE = [(2, 8), (5, 8)]
"""A zero point and the bias: QR303 and QR305 judge their types."""


def conv(**changes: Any) -> onnx.ModelProto:
    values = list((VALUES | changes).values())
    return node_model("QLinearConv", values, opset=13, outputs=[U8], constants=range(1, 9))[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [(a, b) for a, b in combinations(range(9), 2) if KINDS[a] != KINDS[b] and (a, b) not in ELSEWHERE],
)
def test_exchanged_inputs_are_one_finding(first: int, second: int) -> None:
    model = conv()
    inputs = model.graph.node[0].input
    inputs[first], inputs[second] = inputs[second], inputs[first]
    (f,) = qrun.check(model)
    assert f.rule == "QR203"
    assert f.fix == f"exchange inputs {first} and {second}: {NAMES[first]} and {NAMES[second]} fit each other's place"


def test_what_does_not_follow_is_told() -> None:
    """w is float; the scale of y is 0, and the bias has 3 elements in a model whose w is right."""
    found = qrun.check(conv(w=np.ones((16, 3, 3, 3), F32), y_scale=F32(0)))
    assert {f.rule for f in found} == {"QR203", "QR306"}
    assert [f.rule for f in qrun.check(conv(B=np.zeros(3, I32)))] == ["QR305"]


def test_one_input_of_a_wrong_type_is_not_exchanged() -> None:
    (f,) = qrun.check(conv(w=np.ones((16, 3, 3, 3), F32)))
    assert f.message == "w is float32, which QLinearConv-10 does not take"
    assert "exchange" not in f.fix
