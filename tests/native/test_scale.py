"""Sums as float32, whose scales come with the run: kernels against exact numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, Array, engine, nearest32
from helpers.placed import run_placed
from helpers.support import assert_equal
from helpers.widths import every_width

from qrun.native.kernels.quantize import Factors, Scaled, Scaling
from qrun.native.machine.operation import Operand

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
INT32 = (-(2**31), 2**31 - 1)


def scaled(
    native: Any, acc: Array, sources: tuple[Any, Any, Any], given: str, at_end: bool = True, **more: Any
) -> Array:
    """acc times the left and the right source plus the bias; those whose letters are in `given` come with the run."""
    values = [
        Operand(array.shape, array.dtype) if letter in given and array is not None else array
        for letter, array in zip("lrb", sources, strict=True)
    ]
    factors = Factors(native, Scaling(acc.shape[1], more.pop("form", "real"), *values, **more))
    fed = [array for value, array in zip(values, sources, strict=True) if isinstance(value, Operand)]
    made = run_placed(native, factors, fed, (0,) * (1 + len(fed)), at_end)
    return run_placed(native, Scaled(factors, acc.shape, acc.shape), [acc, made], (0, 0, 0), at_end)


def ties(rng: np.random.Generator, count: int) -> Array:
    """int32 sums, none 0, that need 25 bits or more and often lie between two float32, and both ends."""
    sums = rng.integers(2**24, 2**31, count) | 1
    sums[::3] = (sums[::3] >> 8 << 8) + 128
    sums[1::5] = rng.integers(1, 6, len(sums[1::5]))
    sums[:4] = (*INT32, 1, 2**24 + 1)
    return np.where(rng.random(count) < 0.5, sums, -sums).clip(*INT32).astype(np.int32)


def signed(value: Fraction) -> np.float32:
    """The nearest float32, with the sign of what it stands for."""
    return np.copysign(nearest32(value), F(-1 if value < 0 else 1))


@every_width
@pytest.mark.parametrize("slope", [None, 1 / 3, -0.7])
@pytest.mark.parametrize("given", ["", "l", "lr", "lrb", "b"])
def test_one_rounding_to_float32(isa: str, slope: float | None, given: str) -> None:
    rng = np.random.default_rng(5)
    n, rows, native = 37, 12, engine(isa)
    scales = [F(1), F(0.5), F(0.1), F(1 / 255), F(2**-140), F(2**100), F(1e-45), F(-0.75), np.nextafter(F(2), F(0))]
    left, right = np.array(F(0.1)), np.array([scales[i % len(scales)] for i in range(n)], F)
    slope = None if slope is None else float(F(slope))
    factor = Fraction(float(left)) * Fraction(1 if slope is None else slope)
    exact = [factor * Fraction(float(value)) for value in right]
    acc = np.stack([ties(rng, n) for _ in range(rows)])
    bias = np.array([0 if i % 3 == 0 else -int(acc[i % rows, i]) * float(exact[i]) for i in range(n)], F)
    for added in (bias, None):
        want = np.array([
            [signed(int(acc[i, j]) * exact[j] + Fraction(0 if added is None else float(added[j]))) for j in range(n)]
            for i in range(rows)
        ])  # fmt: skip
        assert_equal(scaled(native, acc, (left, right, added), given, slope=slope), want)
    one = np.array([right[2]])
    want = np.array([[signed(int(value) * exact[2]) for value in row] for row in acc])
    assert_equal(scaled(native, acc, (left, one, None), given, slope=slope), want)


@every_width
def test_sums_with_a_bias_next_to_ties(isa: str) -> None:
    """right * (2**32 - acc), less than float64 resolves away from a tie:
    the bias is twice what a sum's error is known by."""
    rng, native = np.random.default_rng(6), engine(isa)
    rights, sums = [], []
    while len(rights) < 60:
        right = int(rng.integers(2**23, 2**24)) | 1
        value = (2**31 + int(rng.choice([-3, -2, -1, 1, 2, 3]))) * pow(right, -1, 2**32) % 2**32
        if value > 2**31 and (right * value).bit_length() == 56:
            rights.append(right)
            sums.append(2**32 - value)
    right, acc = np.array(rights, F), np.array([sums], np.int32)
    exact = [Fraction(int(r) * (2**32 - int(v))) for r, v in zip(rights, sums, strict=True)]
    for sign in (1, -1):
        want = np.array([[nearest32(-sign * value) for value in exact]])
        assert_equal(scaled(native, acc, (np.array(F(sign)), right, -sign * right * F(2**32)), "lr"), want)
        rounded = np.array([[F(float(-sign * value)) for value in exact]])
        assert np.count_nonzero(want != rounded)


@every_width
def test_infinite_and_missing_numbers_follow_ieee(isa: str) -> None:
    right = np.array([np.inf, np.nan, -np.inf, 1e38, 0.0, 1.0, 1.0, -1.0], F)
    bias = np.array([1, 1, np.inf, 1, np.nan, -np.inf, -0.0, -0.0], F)
    acc = np.array([[5] * 8, [0] * 8, [-5] * 8], np.int32)
    for form, wide in (("real", np.float64), ("ort", F)):
        with np.errstate(all="ignore"):
            want = (acc.astype(wide) * (right.astype(wide) * wide(1e9)) + bias).astype(F)
        got = scaled(engine(isa), acc, (np.array(F(1e9)), right, bias), "lrb", form=form)
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(np.signbit(got[1, 6:]), [False, True])


@every_width
def test_onnxruntime_s_steps(isa: str) -> None:
    rng, native = np.random.default_rng(7), engine(isa)
    acc = np.stack([ties(rng, 20) for _ in range(9)])
    left, right, bias = np.array(F(0.3)), rng.uniform(0.01, 1, 20).astype(F), rng.normal(0, 1e7, 20).astype(F)
    for slope in (None, float(F(0.7))):
        first = left if slope is None else F(slope) * left
        want = acc.astype(F) * (first * right)
        assert_equal(scaled(native, acc, (left, right, bias), "lr", form="ort", slope=slope), want + bias)
        assert_equal(scaled(native, acc, (left, right, None), "", form="ort", slope=slope), want)


@pytest.mark.parametrize("at_end", [True, False])
@every_width
def test_memory(isa: str, at_end: bool) -> None:
    rng, native = np.random.default_rng(31), engine(isa)
    lanes = native.isa.lanes
    for n in (1, lanes - 1, lanes, lanes + 1, 2 * lanes + 3):
        for form in ("ort", "real"):
            sums, bias = rng.integers(-999, 999, (5, n)).astype(np.int32), rng.integers(-9, 9, n).astype(F)
            sources = np.array(F(0.5)), np.full(n, 0.25, F), bias
            got = scaled(native, sums, sources, "lrb", at_end, form=form, slope=2.0)
            assert_equal(got, (sums * 0.25 + bias).astype(F))
