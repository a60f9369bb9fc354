"""How sure an agreement is whose samples hold several rows, and what tables say of outputs that are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call
from scipy.stats import binomtest, t

from qrun.evaluating.statistics import Blocks, _student, mean_of

TWO = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,T,3] x) => (float[N,T,3] %s, float[N,T,3] sure) { %s = Mul(x, x)
 sure = Identity(x) }"""


def blocks(right: list[float], held: list[float]) -> Blocks:
    made = Blocks(("right", "held"))
    made.add(np.array([right, held], np.float64).T)
    return made


def test_rows_of_samples_that_go_together_count_as_samples() -> None:
    limits = binomtest(40, 50).proportion_ci(method="wilson")
    found = blocks([9.0] * 40 + [0.0] * 10, [9.0] * 50).share("right", "held")
    assert found.value == 0.8
    assert (found.low, found.high) == pytest.approx((limits.low, limits.high), abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_samples_that_all_agree_are_no_proof(count: int) -> None:
    limits = binomtest(count, count).proportion_ci(method="wilson")
    found = blocks([9.0] * count, [9.0] * count).share("right", "held")
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(limits.low, abs=1e-12)


def test_intervals_hold_the_true_share() -> None:
    """Of samples whose rows go together to some degree: about 95 of 100 intervals hold the true share."""
    random = np.random.default_rng(7)
    for samples in (5, 40):
        kept = 0
        for _ in range(400):
            own = random.beta(9, 1, samples)
            found = blocks(random.binomial(20, own).astype(float).tolist(), [20.0] * samples).share("right", "held")
            kept += found.low <= 0.9 <= found.high
        assert kept >= 370, samples


def test_rows_that_vary_alone_tell_more_than_samples() -> None:
    right = np.random.default_rng(1).binomial(1000, 0.9, 100).astype(float).tolist()
    found = blocks(right, [1000.0] * 100).share("right", "held")
    assert found.width < 0.01


def test_points_of_student() -> None:
    for freedom in range(2, 60):
        assert _student(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=0.035 if freedom == 2 else 0.01)


@pytest.mark.parametrize("values", [[0.5], [0.0] * 30])
def test_samples_without_a_difference_have_no_limits(values: list[float]) -> None:
    made = Blocks(("x",))
    made.add(np.array(values)[:, None])
    found = made.interval(mean_of("x"))
    assert (found.value, found.known) == (values[0], (None, None))


@pytest.fixture
def sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two models of two outputs, the second of which is equal, and three samples of nine rows."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(TWO % ("squares", "squares")), "float.onnx")
    other = TWO.replace("Mul(x, x)", "Abs(x)") % ("squares", "squares")
    onnx.save(onnx.parser.parse_model(other), "int8.onnx")
    np.save("x.npy", np.random.default_rng(0).random((3, 9, 3), np.float32))
    return ["eval", "int8.onnx", "-i", "x.npy", "--against", "float.onnx"]


def test_equal_outputs_have_no_limits(sequences: list[str]) -> None:
    found: dict[str, Any] = json.loads(call(*sequences, "--json").out)
    for score in found["models"][0]["scores"]:
        assert score["metric"] != "argmax", "rows of a sequence are no classes of samples"
        if score["output"] == "sure" and score["metric"] in ("mean_abs", "cosine", "sqnr_db"):
            assert (score["low"], score["high"]) == (None, None)


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_every_row_of_a_table_tells_its_output(sequences: list[str], columns: str) -> None:
    shown = call(*sequences, env={"COLUMNS": columns}).out
    table = shown.partition("Scores\n")[2].partition("\n\n")[0]
    assert [sum(f" {name} " in line for line in table.splitlines()) for name in ("squares", "sure")] == [4, 4]
    assert "inf" not in table
    assert "SQNR exact: every element is equal" in " ".join(table.split())
