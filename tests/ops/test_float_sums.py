"""MatMul, Gemm and Conv give each element's real value, rounded once: against fractions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import qrun_node
from helpers.sums import KINDS, assert_bits, beside_ties, exact, operands

from qrun.ops import _sums
from qrun.ops._sums import rounded_products

F = np.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 9, 64, 300])
def test_products_against_fractions(kind: str, k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = operands(kind, rng, 9, k, 11)
    assert_bits(qrun_node("MatMul", [a, b]), exact(a, b), kind)
    c = rng.standard_normal(11).astype(F) * F(min(np.abs(exact(a, b)).max(), 1e37))
    assert_bits(qrun_node("Gemm", [a, b, c]), exact(a, b, 1, c.astype("d")), f"{kind} with C")
    for alpha, beta in ((0.3, -1.7), (-2.0, 0.5), (1e-30, 3.0)):
        want = exact(a, b, F(alpha), c.astype("d") * float(F(beta)))
        got = qrun_node("Gemm", [a, b, c], {"alpha": alpha, "beta": beta})
        assert_bits(got, want, f"{kind} {alpha} {beta}")
        assert_bits(qrun_node("Gemm", [a, b], {"alpha": alpha}), exact(a, b, F(alpha)), f"{kind} {alpha}")


def test_sums_beside_ties() -> None:
    a, b = beside_ties(130, 14, 9, np.random.default_rng(7))
    assert_bits(qrun_node("MatMul", [a, b]), exact(a, b))


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_against_fractions(kind: str) -> None:
    rng = np.random.default_rng(3)
    rows, weights = operands(kind, rng, 1, 2 * 16, 6)
    x, w, bias = rows.reshape(1, 2, 4, 4), weights.T.reshape(6, 2, 4, 4), rng.standard_normal(6).astype(F)
    assert_bits(qrun_node("Conv", [x, w]).reshape(1, 6), exact(rows, weights), kind)
    assert_bits(qrun_node("Conv", [x, w, bias]).reshape(1, 6), exact(rows, weights, 1, bias.astype("d")), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_transposed_convolutions_against_fractions(kind: str) -> None:
    """One input for all taps, and all inputs for one result."""
    rng = np.random.default_rng(6)
    a, b = operands(kind, rng, 3, 8, 5 * 4)
    bias = rng.standard_normal(5).astype(F)
    x, w = a.T.reshape(1, 8, 3), b.reshape(8, 5, 4)
    want = exact(a, b).reshape(3, 5, 4).transpose(1, 0, 2).reshape(1, 5, 12)
    assert_bits(qrun_node("ConvTranspose", [x, w], {"strides": [4]}), want, kind)
    want = exact(a, b, 1, np.repeat(bias, 4).astype("d")).reshape(3, 5, 4).transpose(1, 0, 2).reshape(1, 5, 12)
    assert_bits(qrun_node("ConvTranspose", [x, w, bias], {"strides": [4]}), want, f"{kind} with bias")
    x, w = a[0].reshape(1, 2, 2, 2), b[:, :3].reshape(2, 2, 2, 3).transpose(0, 3, 1, 2)[:, :, ::-1, ::-1]
    got = qrun_node("ConvTranspose", [x, np.ascontiguousarray(w)], {"pads": [1, 1, 1, 1]})
    assert_bits(got.reshape(1, 3), exact(a[:1], b[:, :3]), kind)


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
                assert_bits(rounded_products(a, b, np.dtype(F)), want, kind)
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
    assert_bits(
        got,
        np.array(
            [[inf, nan, nan], [nan, nan, inf], [nan, nan, nan], [inf, 3e38, inf], [0, 0, nan], [-1e-45, 0, nan]], F
        ),
    )
    assert set(got.view(np.uint32)[np.isnan(got)].tolist()) == {0x7FC00000}
    many = np.full((40, 8), -0.0, F)
    assert not np.signbit(qrun_node("MatMul", [many, np.ones((8, 40), F)])).any()
    assert not np.signbit(qrun_node("Gemm", [many, np.ones((8, 40), F), F(-0.0)], {"alpha": -1.0})).any()
