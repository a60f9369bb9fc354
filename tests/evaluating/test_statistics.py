"""Intervals: published examples, another library, and plain arithmetic; and how sure an agreement of rows is."""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call
from scipy.stats import binomtest, t

from qrun.evaluating.statistics import BLOCKS, Blocks, Pairs, _student, decibels_of, mean_of, wilson


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    # R. G. Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_limits(hits: int, count: int, low: float, high: float) -> None:
    found = wilson(hits, count)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    other = binomtest(hits, count).proportion_ci(method="wilson")
    assert found.low == pytest.approx(other.low, abs=1e-12)
    assert found.high == pytest.approx(other.high, abs=1e-12)


def test_wilson_of_all_of_none_and_of_nothing() -> None:
    assert wilson(20, 20).high == 1.0
    assert wilson(0, 20).low == 0.0
    nothing = wilson(0, 0)
    assert np.isnan(nothing.value)
    assert (nothing.low, nothing.high) == (0.0, 1.0)


def newcombe(a: int, b: int, c: int, d: int) -> tuple[float, float]:
    """Limits of a/n + b/n less a/n + c/n, with the letters of the paper's method 10."""
    n = a + b + c + d
    one, other = (binomtest(k, n).proportion_ci(method="wilson") for k in (a + b, a + c))
    p, q = (a + b) / n, (a + c) / n
    e = a * d - b * c
    root = np.sqrt(float((a + b) * (c + d) * (a + c) * (b + d)))
    phi = (max(e - n / 2, 0) if e > 0 else e) / root if root else 0.0
    down = (p - one.low) ** 2 - 2 * phi * (p - one.low) * (other.high - q) + (other.high - q) ** 2
    up = (q - other.low) ** 2 - 2 * phi * (q - other.low) * (one.high - p) + (one.high - p) ** 2
    return p - q - np.sqrt(down), p - q + np.sqrt(up)


@pytest.mark.parametrize(
    ("both", "first", "second", "neither"),
    [(36, 12, 2, 0), (20, 12, 2, 16), (2, 14, 0, 34), (0, 54, 0, 0), (54, 0, 0, 0), (3, 5, 9, 1), (900, 31, 13, 56)],
)
def test_paired_differences_have_the_limits_of_the_paper(both: int, first: int, second: int, neither: int) -> None:
    found = Pairs(both, first, second, neither).difference()
    low, high = newcombe(both, first, second, neither)
    assert found.value == pytest.approx((second - first) / (both + first + second + neither))
    assert (-found.high, -found.low) == pytest.approx((max(low, -1), min(high, 1)), abs=1e-12)


def test_a_paired_difference_that_the_paper_lists() -> None:
    found = Pairs(36, 12, 2, 0).difference()
    assert (round(-found.high, 4), round(-found.low, 4)) == (0.0569, 0.3404)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (1, 0), (31, 13), (5, 5), (0, 12), (700, 640)])
def test_mcnemar_is_the_exact_binomial_test(lost: int, won: int) -> None:
    found = Pairs(100, lost, won, 7).p_value()
    n, few = lost + won, min(lost, won)
    exact = min(Fraction(1), Fraction(2 * sum(comb(n, k) for k in range(few + 1)), 2**n))
    assert found == pytest.approx(float(exact), rel=2e-3 if n > 1000 else 1e-12)


def plain_bootstrap(values: np.ndarray) -> tuple[float, float]:
    random = np.random.default_rng(0)
    often = [random.multinomial(len(values), np.full(len(values), 1 / len(values)), size=250) for _ in range(8)]
    means = np.sort(np.concatenate([(each @ values) / len(values) for each in often]))
    return float(means[49]), float(means[1949])


def test_the_bootstrap_is_the_one_of_percentiles() -> None:
    values = np.random.default_rng(3).exponential(size=1000)
    blocks = Blocks(("x",))
    blocks.add(values[:, None])
    found = blocks.interval(mean_of("x"))
    assert found.value == pytest.approx(values.mean(), rel=1e-12)
    assert (found.low, found.high) == pytest.approx(plain_bootstrap(values), rel=1e-9)


def test_parts_and_their_sizes_do_not_matter() -> None:
    rows = np.random.default_rng(5).normal(size=(20_000, 2)) ** 2
    rows[17, 0] = np.nan
    whole, parts = Blocks(("signal", "noise")), Blocks(("signal", "noise"))
    whole.add(rows)
    start = 0
    for size in np.random.default_rng(6).integers(1, 999, size=100):
        parts.add(rows[start : start + size])
        start += int(size)
    assert start > len(rows)
    assert whole.totals() == parts.totals()
    assert whole.count == 19_999
    assert whole.interval(decibels_of("signal", "noise")) == parts.interval(decibels_of("signal", "noise"))


def test_groups_of_neighbours_give_nearly_the_same_limits() -> None:
    values = np.random.default_rng(7).normal(2, 1, size=4 * BLOCKS)
    blocks = Blocks(("x",))
    blocks.add(values[:, None])
    found = blocks.interval(mean_of("x"))
    assert found.width == pytest.approx(2 * 1.96 / np.sqrt(len(values)), rel=0.1)
    assert found.low < values.mean() < found.high


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
    assert "SQNR exact: all elements are equal" in " ".join(table.split())
