"""Causes that qrun knows and computes, but not bit for bit: recomputing must bring all within the tolerance."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.comparing import Changed
from helpers.support import MS, node_model

import qrun
from qrun.comparing.causes import UNKNOWN
from qrun.comparing.comparison import Comparison, Guilt
from qrun.comparing.differences import EXACT, Tolerance
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide
from qrun.report.compare import comparison_sheet
from qrun.report.compare import verdict as headline

needs_ort = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
f32, i32, u8 = np.float32, np.int32, np.uint8
TOLERANCE = Tolerance()
RNG = np.random.default_rng(5)
ROWS, CODES = RNG.normal(size=(2, 32)).astype(f32), RNG.integers(0, 256, (8, 2, 8)).astype(u8)
SCALES = RNG.uniform(0.1, 0.2, (8, 2)).astype(f32)


def rounded_to_int8() -> np.ndarray:
    """Each block of 16 elements of A as int8, times the weights: in float64, so that other bits are due."""
    made = np.zeros((2, 8))
    for m, n, block in np.ndindex(2, 8, 2):
        part = ROWS[m, 16 * block : 16 * block + 16]
        step = np.abs(part).max() / 127
        weights = [int(byte >> shift & 15) - 8 for byte in CODES[n, block] for shift in (0, 4)]
        made[m, n] += float(np.rint(part / step) @ np.array(weights)) * float(step) * float(SCALES[n, block])
    return (made * (1 + 3e-7)).astype(f32)


def product(theirs: np.ndarray, tolerance: Tolerance) -> Comparison:
    attributes = {"K": 32, "N": 8, "block_size": 16, "bits": 4, "accuracy_level": 4}
    inputs = [ROWS, CODES, SCALES]
    proto, feeds = node_model("MatMulNBits", inputs, attributes, domain=MS, opset=17, outputs=(f32,), constants=[1, 2])
    model = qrun.load(proto.SerializeToString())
    return compare_runtimes(QrunSide(model), Changed(model, {"y0": theirs}), feeds, tolerance)


def guilt(found: Comparison) -> Guilt:
    (tensor,) = found.tensors
    return guilt_of(found, tensor.name)


def guilt_of(found: Comparison, name: str) -> Guilt:
    made = next(t for t in found.tensors if t.name == name).guilt
    assert made is not None
    return made


def test_activations_rounded_to_int8_are_told() -> None:
    found = product(rounded_to_int8(), TOLERANCE)
    reason = guilt(found).reason
    assert (reason.cause, reason.explained) == ("int8-activations", 0)
    left = re.search(
        r"reduces the largest difference from (?P<most>\S+) to (?P<left>\S+); the order of float32 sums", reason.text
    )
    assert left is not None
    assert float(left["left"]) < 1e-5 < 1e-2 < float(left["most"])
    assert "int8-activations" in headline(found)


@pytest.mark.parametrize("tolerance", [EXACT, TOLERANCE])
def test_not_where_an_element_stays_beyond_the_bound(tolerance: Tolerance) -> None:
    theirs = rounded_to_int8()
    theirs[1, 3] += f32(0.05)
    reason = guilt(product(theirs, tolerance)).reason
    assert (reason.cause, reason.explained, reason.residual) == (UNKNOWN, 0, None)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op: str, direction: str, lengths: list[int], **attributes: Any) -> Comparison:
    rng, hidden, dirs = np.random.default_rng(3), 5, 2 if direction == "bidirectional" else 1
    weights = [rng.normal(size=(dirs, GATES[op] * hidden, size)).astype(f32) for size in (4, hidden)]
    states = [rng.normal(size=(dirs, 3, hidden)).astype(f32) for _ in range(2 if op == "LSTM" else 1)]
    inputs = [rng.normal(size=(6, 3, 4)).astype(f32), *weights, None, np.array(lengths, i32), *states]
    attributes = {"hidden_size": hidden, "direction": direction, **attributes}
    proto, feeds = node_model(op, inputs, attributes, opset=14, outputs=(f32,) * (3 if op == "LSTM" else 2))
    return qrun.compare(proto, feeds=feeds)


@needs_ort
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_the_last_state_of_an_empty_sequence_is_told(op: str, direction: str) -> None:
    found = recurrent(op, direction, [6, 0, 4])
    causes = {t.name: t.guilt.reason.cause if t.guilt else None for t in found.tensors}
    states = ["y1", "y2"] if op == "LSTM" else ["y1"]
    assert causes == {"y0": None, **dict.fromkeys(states, "empty-sequence")}
    assert "of sequence 1, whose length is 0" in str(found.tensors[1].guilt)


@needs_ort
def test_a_cause_within_the_tolerance_says_so() -> None:
    found = recurrent("LSTM", "forward", [6, 5, 4], clip=0.3)
    reason = guilt_of(found, "y0").reason
    assert (reason.cause, "explain LSTM" in reason.text) == ("runtime-arithmetic", True)
    assert reason.residual is not None
    (first,) = (block for block in comparison_sheet(found, None).blocks if block.title.startswith("First difference"))
    assert "within rtol 0.001, atol 1e-07, not bit for bit" in dict(first.facts)["evidence"]


@needs_ort
def test_a_cell_that_is_not_clipped_is_told_beside_empty_sequences() -> None:
    told = {t.name: t.guilt.reason.cause for t in recurrent("LSTM", "forward", [6, 5, 4], clip=0.3).tensors if t.guilt}
    assert told["y0"] == told["y1"] == "runtime-arithmetic"
    told = {t.name: t.guilt.reason.cause for t in recurrent("LSTM", "forward", [6, 0, 0], clip=0.3).tensors if t.guilt}
    assert (told["y0"], told["y1"], told["y2"]) == ("runtime-arithmetic", "empty-sequence", "empty-sequence")
