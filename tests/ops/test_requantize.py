"""requantize() at every step of its output, where only exact arithmetic is right."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes as md
import numpy as np
import pytest
from helpers.support import assert_equal
from oracle.linear import requantize_all, thresholds
from oracle.quantize import RANGES, real

from qrun.ops import Context
from qrun.ops._quantize import requantize
from qrun.ops._rounding import DoubleDouble, nearest, scale_pair, two_product, two_sum

f32 = np.float32
MULTIPLIERS = [
    (1, 1, 90), (1, 1, 255), (3, 1, 82), (7, 1, 92), (1, 1, 6), (1, 1, 250), (1, 1, 1000),
    (1, 1, 1), (0.0123, 1, 0.0123), (0.5, 1, 1), (2**-13, 2**-9, 2**-10), (2**7, 1, 1), (2**-20, 1, 1),
    (1 / 90, 1, 1), (1 / 255, 1, 1), (0.00392, 0.0071, 0.0123), (1, 1 / 3, 1), (1e-30, 1e30, 0.37),
    (1e-30, 1, 3e-38), (1e-45, 1e-3, 1e-45), (1, 1e-45, 1.2e-38), (3e38, 1, 3e38), (1e-22, 1e-21, 1e-41),
    (2**-149, 2**-149, 2**-149), (0.3, 0.3, 0.3), (2.5e-7, 1, 1), (1, 1, 2**31), (1e-38, 1e-38, 1),
]  # fmt: skip
ZEROS = {"uint8": (0, 1, 128, 255), "int8": (-128, -5, 0, 127), "int4": (-3,), "uint16": (77,)}


def planted(a: np.ndarray, b: np.ndarray, c: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """All accumulators where the result steps, one below each, and the ends of int32."""
    factors = [Fraction(real(a)), Fraction(real(b))]
    limits = RANGES[zero.dtype.name]
    steps = thresholds(factors, Fraction(real(c)), int(zero), limits)
    if len(steps) > 600:
        steps = steps[:50] + steps[len(steps) // 2 - 200 : len(steps) // 2 + 200] + steps[-50:]
    found = {t + d for t in steps for d in (-1, 0)} | {0, 1, -1, 2**31 - 1, -(2**31), 2**24, 2**24 - 1}
    return np.array(sorted(v for v in found if -(2**31) <= v < 2**31))


@pytest.mark.parametrize("scales", MULTIPLIERS, ids=str)
@pytest.mark.parametrize("name", ZEROS)
def test_every_step_of_a_multiplier(scales: tuple[float, ...], name: str) -> None:
    with np.errstate(under="ignore"):
        a, b, c = (np.array(s, f32) for s in scales)
    for value in ZEROS[name]:
        zero = np.array(value, md.int4 if name == "int4" else name)
        acc = planted(a, b, c, zero)
        want = requantize_all(acc, [a, b], c, zero)
        note = f"scales {scales}, zero point {value}"
        assert_equal(requantize(acc.astype(np.float64), (a, b), c, zero, Context()), want, note)
        small = np.abs(acc) < 2**24
        assert_equal(requantize(acc[small].astype(f32), (a, b), c, zero, Context()), want[small], note + ", float32")


def test_factors_per_row_and_column_and_three_of_them() -> None:
    seed = 20
    rng = np.random.default_rng(seed)
    for case in range(40):
        dyadic = case % 2
        a = (1 / rng.choice([2, 8] if dyadic else [90, 257], (7, 1))).astype(f32)
        b = (rng.integers(1, 50, (1, 9)) / (8 if dyadic else rng.choice([82, 90]))).astype(f32)
        c = np.array(rng.choice([1, 0.5] if dyadic else [1 / 90, 3e-3]), f32)
        alpha = np.array(rng.choice([0.5, -0.25] if dyadic else [1 / 3, -0.1, 3]), f32)
        zero = np.array(rng.integers(0, 256), np.uint8)
        acc = rng.integers(-300, 300, (7, 9))
        want = requantize_all(acc, [a, b, alpha], c, zero)
        got = requantize(acc.astype(np.float64), (a, b, alpha), c, zero, Context())
        assert_equal(got, want, f"seed {seed}, case {case}, alpha {alpha}, y_scale {c}")
        turned = np.asfortranarray(acc.astype(np.float64))
        assert_equal(requantize(turned, (a, b, alpha), c, zero, Context()), want, f"turned, seed {seed}, case {case}")
        got = requantize(acc.astype(f32), (a, b, alpha), c, zero, Context())
        assert_equal(got, want, f"float32, seed {seed}, case {case}, alpha {alpha}, y_scale {c}")


@pytest.mark.parametrize("type", [np.float16, md.bfloat16])
def test_half_precision_scales_multiply_as_reals(type: type) -> None:
    """0.0066 * 0.00705 is subnormal in float16: a product in that type would be off."""
    a, b, c = (np.array(s, f32).astype(type) for s in (0.0066, 0.00705, 0.0081))
    zero = np.array(-3, np.int8)
    acc = planted(a, b, c, zero)
    assert_equal(requantize(acc.astype(np.float64), (a, b), c, zero, Context()), requantize_all(acc, [a, b], c, zero))


SPECIALS = [0.0, -0.0, -0.5, np.inf, -np.inf, np.nan, 1e-45, 3e38, 1.0]


def test_zero_negative_and_infinite_scales_follow_ieee() -> None:
    acc = np.array([0, 1, -1, 77, 2**31 - 1, -(2**31)])
    zero = np.array(100, np.uint8)
    for x in SPECIALS:
        for w in SPECIALS:
            for y in SPECIALS:
                a, b, c = (np.array(s, f32) for s in (x, w, y))
                want = requantize_all(acc, [a, b], c, zero)
                note = f"x_scale {x}, w_scale {w}, y_scale {y}"
                assert_equal(requantize(acc.astype(np.float64), (a, b), c, zero, Context()), want, note)
                got = requantize(acc[:4].astype(f32), (a, b), c, zero, Context())
                assert_equal(got, want[:4], note + ", float32")


def test_what_it_saw_is_observed() -> None:
    one, zero = np.array(1, f32), np.array(10, np.uint8)
    ctx = Context()
    requantize(np.array([-11.0, 0, 245, 246]), (one, one), one, zero, ctx)
    assert [(o.kind, o.count, o.total) for o in ctx.observations] == [("saturated", 2, 4)]
    ctx = Context()
    requantize(np.array([5.0, 0.0]), (np.array(0, f32), one), np.array(0, f32), zero, ctx)
    assert [(o.kind, o.count, o.total) for o in ctx.observations] == [("nan-quantized", 2, 2)]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1, 1), (2, 1, 70000)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    acc, one, zero = np.full(shape, 3.0), np.array(1, f32), np.array(1, np.int8)
    assert_equal(requantize(acc, (one, one), np.array(2, f32), zero, Context()), np.full(shape, 3, np.int8))


def test_inputs_are_not_written() -> None:
    acc = np.array([[1.0, 2.5e5]])
    acc.flags.writeable = False
    one = np.array(1, f32)
    requantize(acc, (one, one), one, np.array(0, np.uint8), Context())
    assert acc.tolist() == [[1.0, 2.5e5]]


def test_pairs_are_exact() -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal(300) * 10.0 ** rng.integers(-20, 20, 300)
    b = rng.standard_normal(300) * 10.0 ** rng.integers(-20, 20, 300)
    c = rng.standard_normal(300).astype(f32).astype(np.float64)
    n = rng.integers(-(2**31), 2**31, 300).astype(np.float64)
    b32 = b.astype(f32).astype(np.float64)
    third = scale_pair(two_product(n, b32), c)
    for i in range(300):
        x, y = Fraction(a[i]), Fraction(b[i])
        assert sum(map(Fraction, (two_sum(a, b).hi[i], two_sum(a, b).lo[i]))) == x + y
        assert sum(map(Fraction, (two_product(a, b).hi[i], two_product(a, b).lo[i]))) == x * y
        assert Fraction(third.hi[i]) + Fraction(third.lo[i]) == Fraction(n[i]) * Fraction(b32[i]) * Fraction(c[i])


def test_nearest_around_ties() -> None:
    den = np.array([0.1, 1 / 90, 3.0, -7.5], f32).astype(np.float64)
    for k in (-7, -2, -1, 0, 1, 2, 100, 255):
        tie = two_product(np.full(4, k + 0.5), den)
        for nudge, sign in ((-1e-40, -1), (0.0, 0), (1e-40, 1)):
            num = DoubleDouble(tie.hi, tie.lo + nudge)
            up = sign * np.sign(den)
            even = k if k % 2 == 0 else k + 1
            want = np.where(up > 0, k + 1, np.where(up < 0, k, even))
            assert nearest(num, den).tolist() == want.tolist(), (k, nudge)
