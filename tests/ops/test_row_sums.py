"""Sums along an axis have the order of numerics.md, F40, and what is made of them is near the real value."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.native import Array
from helpers.support import node_model

import qrun
from qrun.ops._reduce import row_sums

F = np.float32
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 100, 4097)
Row = Callable[[list[Decimal]], list[Decimal]]


def numbers(rng: np.random.Generator, count: int, length: int) -> Array:
    """Plain ones, and ones that cancel, are far apart, or as small as float32 has them."""
    x = rng.normal(0, 2, (count, length))
    x[1::5] *= np.exp(rng.normal(0, 9, x[1::5].shape))
    x[2::5] += 1e6
    x[3::5, length // 2 :] = -x[3::5, : length - length // 2]
    x[4::5] *= 1e-44
    return x.astype(F)


@pytest.mark.parametrize("dtype", [np.float16, F, np.float64])
@pytest.mark.parametrize("length", [0, *LENGTHS, 20000])
def test_the_order(length: int, dtype: Any) -> None:
    """Element by element, in Python's own float64."""
    with np.errstate(over="ignore"):
        x = numbers(np.random.default_rng(length), 7, length).astype(dtype)
    sums = row_sums(x)
    for row, got in zip(x.tolist(), sums.tolist(), strict=True):
        parts = [0.0] * 16
        for place, number in enumerate(row):
            parts[place % 16] += number
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [a + b for a, b in zip(parts[:half], parts[half:], strict=True)]
        assert got == parts[0] or np.isnan(got) == np.isnan(parts[0])


def test_zeros_and_numbers_that_are_not_finite() -> None:
    x = np.array([[-0.0, -0.0], [0.0, -0.0], [np.inf, -np.inf], [np.inf, 1], [np.nan, 1]], F)
    sums = row_sums(x)
    assert sums[:2].tobytes() == bytes(16)
    assert np.isnan(sums[[2, 4]]).all()
    assert sums[3] == np.inf


def made(op_type: str, inputs: list[Array], attributes: dict[str, Any], opset: int) -> Array:
    model, feeds = node_model(op_type, inputs, attributes, opset=opset, constants=range(1, len(inputs)))
    return np.asarray(qrun.Session(model, backend="reference").run(feeds)["y0"])


def errors(got: Array, want: list[Decimal], sizes: list[Decimal]) -> float:
    """The greatest error of a row, in units of 2**-24 of these sizes, those of subnormal numbers counting 2**-126."""
    least = Decimal(2) ** -126
    apart = [abs(Decimal(float(g)) - w) / max(size, abs(w), least) for g, w, size in zip(got, want, sizes, strict=True)]
    return float(max(apart) * 2**24)


REDUCTIONS: dict[str, tuple[Callable[[list[Decimal]], Decimal], float]] = {
    "ReduceSum": (sum, 1.0),
    "ReduceMean": (lambda x: sum(x, Decimal(0)) / len(x), 1.0),
    "ReduceL1": (lambda x: sum(map(abs, x), Decimal(0)), 1.0),
    "ReduceSumSquare": (lambda x: sum((n * n for n in x), Decimal(0)), 1.0),
    "ReduceL2": (lambda x: sum((n * n for n in x), Decimal(0)).sqrt(), 1.0),
    "ReduceLogSum": (lambda x: sum(map(abs, x), Decimal(0)).ln(), 1.0),
    "ReduceLogSumExp": (lambda x: sum((n.exp() for n in x), Decimal(0)).ln(), 3.0),
}  # type: ignore[dict-item]
"""Real values, and how many units of 2**-24 of the sizes that are added a result may be off; one half is rounding."""


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions_against_decimals(op_type: str) -> None:
    real, most = REDUCTIONS[op_type]
    for length in LENGTHS[:-1]:
        x = numbers(np.random.default_rng(length), 10, length)
        x = np.abs(x) if op_type == "ReduceLogSum" else np.clip(x, -1e3, 1e3) if op_type == "ReduceLogSumExp" else x
        got = made(op_type, [x], {"axes": [1], "keepdims": 0}, 11)
        with localcontext(prec=80):
            rows = [[Decimal(float(n)) for n in row] for row in x]
            want = [real(row) for row in rows]
            linear = op_type in ("ReduceSum", "ReduceMean")
            sizes = [sum(map(abs, row)) * Decimal(2) ** -20 if linear else Decimal(0) for row in rows]
            sizes = [Decimal(1) if op_type == "ReduceLogSumExp" else size for size in sizes]
            assert errors(got, want, sizes) <= most, length  # type: ignore[arg-type]


@pytest.mark.parametrize("logarithms", [False, True])
def test_shares_against_decimals(logarithms: bool) -> None:
    """Shares to 5 units of 2**-24 of themselves, and one for each unit from the greatest element, unless they are below
    exp(-87); logarithms to 3 of their parts."""
    rng = np.random.default_rng(5)
    for length in LENGTHS[:-1]:
        x = rng.normal(0, 3, (8, length)).astype(F)
        x[1::2] *= 20
        got = made("LogSoftmax" if logarithms else "Softmax", [x], {"axis": 1}, 13)
        with localcontext(prec=80):
            for row, results in zip(x, got, strict=True):
                apart = [Decimal(float(n)) - Decimal(float(row.max())) for n in row]
                total = sum((n.exp() for n in apart), Decimal(0))
                if logarithms:
                    sizes = [-n + total.ln() + 1 for n in apart]
                    assert errors(results, [n - total.ln() for n in apart], sizes) <= 3
                else:
                    want = [n.exp() / total for n in apart]
                    near = [place for place, n in enumerate(apart) if n > -87]
                    sizes = [want[n] * (1 - apart[n] / 5) for n in near]
                    assert errors(results[near], [want[n] for n in near], sizes) <= 5
                    assert not results[[n <= -88 for n in apart]].any()


@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization", "LpNormalization"])
def test_normalizations_against_decimals(op_type: str) -> None:
    """To a unit of 2**-24 of the result and its bias, but far from zero, where float64 loses what a result needs."""
    rng = np.random.default_rng(6)
    for length in LENGTHS[1:-1]:
        x = rng.normal(0.5, 2, (6, length)).astype(F)
        scale, bias = rng.normal(1, 0.5, length).astype(F), rng.normal(0, 1, length).astype(F)
        weights = {"LayerNormalization": [scale, bias], "RMSNormalization": [scale], "LpNormalization": []}[op_type]
        got = made(op_type, [x, *weights], {}, 23)
        with localcontext(prec=80):
            factors, added = ([Decimal(float(n)) for n in values] for values in (scale, bias))
            for row, results in zip(x, got, strict=True):
                numbers = [Decimal(float(n)) for n in row]
                if op_type == "LayerNormalization":
                    mean = sum(numbers, Decimal(0)) / length
                    numbers = [n - mean for n in numbers]
                squares, epsilon = sum((n * n for n in numbers), Decimal(0)), Decimal(float(F(1e-5)))
                root = squares.sqrt() if op_type == "LpNormalization" else (squares / length + epsilon).sqrt()
                want = [n / root for n in numbers]
                want = want if op_type == "LpNormalization" else [n * f for n, f in zip(want, factors, strict=True)]
                sizes = [abs(n) * Decimal(2) ** -20 for n in added]
                if op_type == "LayerNormalization":
                    want = [n + b for n, b in zip(want, added, strict=True)]
                assert errors(results, want, sizes) <= 1, length


def test_means_of_windows_against_fractions() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(0, 2, (1, 3, 9, 8)).astype(F)
    got = made("AveragePool", [x], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, 13)
    for channel, row, column in np.ndindex(*got.shape[1:]):
        window = x[0, channel, max(2 * row - 1, 0) : 2 * row + 2, column : column + 2].reshape(-1).tolist()
        want = sum(map(Fraction, window), Fraction(0)) / len(window)
        size = sum(map(abs, window)) / len(window) * 2.0**-20 + abs(want)
        assert abs(Fraction(float(got[0, channel, row, column])) - want) <= Fraction(size) / 2**24
