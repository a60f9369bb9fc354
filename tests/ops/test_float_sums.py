"""MatMul, Gemm and Conv give each element's real value, rounded once: against fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import qrun_node
from helpers.native import Array, nearest32

from qrun.ops import _sums
from qrun.ops._sums import rounded_products

F = np.float32
KINDS = ("normal", "cancelling", "ties", "tiny", "huge", "subnormal", "wide", "signs")


def operands(kind: str, rng: np.random.Generator, m: int, k: int, n: int) -> tuple[Array, Array]:
    """Matrices whose sums of products float64 adds exactly, nearly, or not at all."""
    a, b = rng.standard_normal((m, k)).astype(F), rng.standard_normal((k, n)).astype(F)
    if kind == "cancelling":
        half = k // 2
        a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half]
        a[:, -1] *= F(2.0**-30)
        b[0] *= 1 + F(2.0**-20)
    elif kind == "ties":
        a, b = (rng.integers(-2048, 2049, x.shape).astype(F) for x in (a, b))
        a[0] += F(2.0**-12)
    elif kind == "tiny":
        a, b = a * F(2.0**-70), b * F(2.0**-72)
    elif kind == "huge":
        a, b = a * F(2.0**66), b * F(2.0**60)
    elif kind == "subnormal":
        a, b = (rng.integers(-9, 10, x.shape).astype(F) * F(2.0**-149) for x in (a, b))
        b = b * F(2.0**127) * F(2.0**13)
    elif kind == "wide":
        a, b = (x * np.exp2(rng.integers(-60, 60, x.shape)).astype(F) for x in (a, b))
    elif kind == "signs":
        a, b = (np.where(rng.random(x.shape) < 0.6, rng.choice(np.array([0, -0.0], F), x.shape), x) for x in (a, b))
    return a, b


def assert_equal(got: Array, want: Array, message: str = "") -> None:
    """Bit by bit, the signs of zeros too; NaN equals NaN."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), message
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{message}: {np.argwhere(~same)[:3].tolist()} {got[~same][:3]}, want {want[~same][:3]}"


def exact(a: Array, b: Array, alpha: Any = 1, addend: Any = 0) -> Array:
    made = np.empty((len(a), b.shape[1]), F)
    for i, row in enumerate(a.tolist()):
        for j, column in enumerate(b.T.tolist()):
            total = sum((Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)), Fraction(0))
            more = Fraction(float(np.broadcast_to(addend, made.shape)[i, j]))
            value = total * Fraction(float(alpha)) + more
            made[i, j] = np.copysign(nearest32(value), -1 if value < 0 else 1)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 9, 64, 300])
def test_products_against_fractions(kind: str, k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = operands(kind, rng, 9, k, 11)
    assert_equal(qrun_node("MatMul", [a, b]), exact(a, b), kind)
    c = rng.standard_normal(11).astype(F) * F(min(np.abs(exact(a, b)).max(), 1e37))
    assert_equal(qrun_node("Gemm", [a, b, c]), exact(a, b, 1, c.astype("d")), f"{kind} with C")
    for alpha, beta in ((0.3, -1.7), (-2.0, 0.5), (1e-30, 3.0)):
        want = exact(a, b, F(alpha), c.astype("d") * float(F(beta)))
        got = qrun_node("Gemm", [a, b, c], {"alpha": alpha, "beta": beta})
        assert_equal(got, want, f"{kind} {alpha} {beta}")
        assert_equal(qrun_node("Gemm", [a, b], {"alpha": alpha}), exact(a, b, F(alpha)), f"{kind} {alpha}")


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_against_fractions(kind: str) -> None:
    rng = np.random.default_rng(3)
    rows, weights = operands(kind, rng, 1, 2 * 16, 6)
    x, w, bias = rows.reshape(1, 2, 4, 4), weights.T.reshape(6, 2, 4, 4), rng.standard_normal(6).astype(F)
    assert_equal(qrun_node("Conv", [x, w]).reshape(1, 6), exact(rows, weights), kind)
    assert_equal(qrun_node("Conv", [x, w, bias]).reshape(1, 6), exact(rows, weights, 1, bias.astype("d")), kind)


def test_the_sums_of_blas_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are off by as much as an order of additions may make them."""
    rng = np.random.default_rng(4)
    for kind in KINDS:
        a, b = operands(kind, rng, 6, 100, 5)
        sizes = np.abs(a).astype("d") @ np.abs(b).astype("d")
        plain = _sums.product(a, b)
        want = exact(a, b)
        for sign in (1, -1):
            monkeypatch.setattr(_sums, "product", lambda a, b, off=sign * 90 * 2.0**-53 * sizes, s=plain: s + off)
            exactly = kind in ("ties", "subnormal", "signs")
            if not exactly:
                assert_equal(rounded_products(a, b, np.dtype(F)), want, kind)
        monkeypatch.undo()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_floats_are_rounded_once(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    a = np.array([[2.0**-4, 1.0, 2.0**-8], [1.0, 2.0**-11, 2.0**-8], [1.0, 2.0**-8, 2.0**-7]]).astype(dtype)
    b = np.array([[1.0, 2.0**-8], [1.0, 2.0**-4], [2.0**-7, 1.0]]).astype(dtype)
    a = np.concatenate([a, rng.standard_normal((40, 3)).astype(dtype)])
    sums = a.astype("d") @ b.astype("d")
    with np.errstate(invalid="ignore"):
        grid = np.arange(2**16, dtype=np.uint16).view(dtype).astype("d")
    grid = np.unique(grid[np.isfinite(grid)])
    for value, got in zip(sums.ravel(), np.asarray(qrun_node("MatMul", [a, b])).astype("d").ravel(), strict=True):
        place = np.searchsorted(grid, value)
        near = grid[max(place - 1, 0) : place + 1]
        assert abs(got - value) == np.abs(near - value).min()


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    a = np.array([[inf, 1], [-inf, inf], [0, nan], [3e38, 3e38], [0, 0], [-1e-45, 0]], F)
    b = np.array([[1, 0, -1], [1, 1, inf]], F)
    got = qrun_node("MatMul", [a, b])
    assert_equal(
        got,
        np.array(
            [[inf, nan, nan], [nan, nan, inf], [nan, nan, nan], [inf, 3e38, inf], [0, 0, nan], [-1e-45, 0, nan]], F
        ),
    )
    assert set(got.view(np.uint32)[np.isnan(got)].tolist()) == {0x7FC00000}
    many = np.full((40, 8), -0.0, F)
    assert not np.signbit(qrun_node("MatMul", [many, np.ones((8, 40), F)])).any()
    assert not np.signbit(qrun_node("Gemm", [many, np.ones((8, 40), F), F(-0.0)], {"alpha": -1.0})).any()
