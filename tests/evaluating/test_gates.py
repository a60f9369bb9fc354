"""Calls of ``qrun eval`` whose answer must not look better than it is: gates, samples that fail, words and intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluating.conftest import MODELS, Digits
from helpers.cli import Ended, call, fixes

QDQ, FLOAT = MODELS / "qdq" / "model.onnx", MODELS / "float" / "model.onnx"


@pytest.mark.parametrize(
    ("options", "other"), [(["--against", FLOAT], "--labels FILE"), (["--labels"], "--against MODEL")]
)
def test_a_drop_needs_labels_and_a_second_model(digits: Digits, options: list[str], other: str) -> None:
    given = [*options, digits.folder / "y.npy"] if options == ["--labels"] else options
    ended = call("eval", QDQ, "-i", digits.folder / "x.npy", "--limit", "9", "--max-drop", "1", *given)
    assert f"--max-drop goes with {other}" in ended.err
    assert fixes(ended, 2, "QR005")[0].startswith(f"add {other}")


def test_a_drop_between_two_models_needs_no_reference(digits: Digits) -> None:
    ended = call("eval", FLOAT, QDQ, *digits.options, "--limit", "99", "--max-drop", "50", "--json")
    assert [(gate["option"], gate["passed"]) for gate in ended.json["gates"]] == [("--max-drop", True)]


@pytest.fixture
def half(digits: Digits) -> list[str]:
    """Ten samples; the odd ones cannot be read."""
    Path("samples").mkdir()
    for place in range(10):
        np.save(f"samples/x{place}.npy", digits.images[place])
        if place % 2:
            Path(f"samples/x{place}.npy").write_bytes(b"garbage")
    np.save("y.npy", digits.labels[:10])
    return ["eval", str(QDQ), "-i", "samples", "--labels", "y.npy"]


def first(ended: Ended) -> str:
    return ended.out.splitlines()[0]


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_the_first_line_counts_samples_that_failed(half: list[str], quiet: list[str]) -> None:
    ended = call(*half, *quiet)
    assert first(ended).startswith("5 of 10 samples could not be read; accuracy: ")
    assert ended.code == 0


@pytest.mark.parametrize("gate", [["--min-accuracy", "1"], ["--min-agreement", "1", "--against", FLOAT]])
def test_no_gate_passes_with_samples_that_failed(half: list[str], gate: list[str]) -> None:
    ended = call(*half, "-q", *gate)
    assert first(ended).startswith("failed: 5 of 10 samples could not be read")
    assert ended.code == 1
    assert call(*half, *gate, "--json").code == 1


def test_fail_fast_ends_with_an_error_that_names_the_sample(half: list[str]) -> None:
    ended = call(*half, "-q", "--fail-fast")
    assert first(ended).startswith("failed: stopped at samples/x1.npy")
    assert ended.code == 5
