"""Native products of a few float32 rows with a right matrix whose columns lie one after the other, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import Array, engine
from helpers.placed import run_placed, same_everywhere
from helpers.sums import SPECIAL, all_in_doubt, assert_bits, beside_ties, exact, operands
from helpers.support import node_model
from helpers.widths import every_width

from qrun.native.kernels import float_matmul
from qrun.native.kernels.float_matmul import FloatMatmul
from qrun.ops._sums import rounded_products
from qrun.ops.lowering.products import exact_sums

F = np.float32
DTYPE = np.dtype(F)
SIZES = ((1, 64, 1), (1, 1, 9), (1, 71, 9), (2, 100, 17), (3, 1029, 33), (4, 65, 40), (4, 2100, 7), (2, 3, 130))
"""Rows, K, columns: with a rest of every vector, of columns read together, and of blocks of K."""


def product(isa: str, a: Array, b: Array, threads: int = 1, constant: bool = False, **options: Any) -> FloatMatmul:
    """a @ b.T."""
    factors = (options.get("alpha", 1.0), options.get("beta", 1.0))
    weights = {"weights": b} if constant else {}
    return FloatMatmul(engine(isa, threads), a.shape, b.shape, exact_sums(*factors), turned=True, **weights, **options)


@every_width
@pytest.mark.parametrize("at_end", [True, False])
def test_sizes(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(1)
    for sizes in SIZES:
        for kind in ("normal", "ties"):
            a, b = operands(kind, rng, *sizes)
            want, b = rounded_products(a, b, DTYPE), np.ascontiguousarray(b.T)
            for threads in (1, 2):
                both = product(isa, a, b, threads)
                assert both.tight[0].spec.kind == "float_dot"
                got = run_placed(engine(isa, threads), both, [a, b], (0, 0, 0), at_end)
                assert_bits(got, want, f"{sizes} {kind}")
                held = product(isa, a, b, threads, constant=True)
                assert_bits(run_placed(engine(isa, threads), held, [a], (0, 0), at_end), want, f"{sizes} {kind}")


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    for m, k, n in ((1, 40, 50), (3, 1100, 20), (4, 90, 11)):
        a, b = operands(kind, rng, m, k, n)
        c = rng.choice(np.array([0, -0.0, 1, -0.37, 0.11], F), (m, n))
        turned = np.ascontiguousarray(b.T)
        for alpha, beta, addend in ((1.0, 1.0, None), (1.0, 1.0, c[0]), (float(F(0.3)), -1.75, c), (-1.0, 0.0, c[0])):
            more = 0.0 if addend is None else addend.astype("d") * beta
            with np.errstate(all="ignore"):
                want = rounded_products(a, b, DTYPE, alpha, more)
            options = {"alpha": alpha, "beta": beta, "addend": None if addend is None else addend.shape}
            given = [a, turned] + ([] if addend is None else [addend])
            got = engine(isa).run(product(isa, a, turned, **options), given)
            assert_bits(got, want, f"{kind} {m}x{k}x{n} {alpha} {beta}")


@every_width
def test_columns_that_are_not_finite(isa: str) -> None:
    """NaN has one form, whatever the instruction set makes of infinities, or of NaN with another sign."""
    a, b = np.ones((2, 70), F), np.ones((70, 19), F)
    a[:, 1], b[0, 3], b[1, 3], b[2, 11] = -1, np.inf, np.inf, np.copysign(F(np.nan), F(-1))
    with np.errstate(all="ignore"):
        want, turned = rounded_products(a, b, DTYPE), np.ascontiguousarray(b.T)
    assert_bits(engine(isa).run(product(isa, a, turned), [a, turned]), want, "columns")


@every_width
def test_sums_beside_ties(isa: str) -> None:
    rng = np.random.default_rng(3)
    for m, n in ((4, 9), (3, 17)):
        a, b = beside_ties(130, m, n, rng)
        got = engine(isa).run(product(isa, a, np.ascontiguousarray(b.T)), [a, np.ascontiguousarray(b.T)])
        assert_bits(got, exact(a, b), f"{m} {n}")


@every_width
def test_nothing_is_decided_by_the_lengths_alone(isa: str) -> None:
    """If all sums are in doubt, they are settled; and if that decides nothing either, all are added exactly."""
    rng = np.random.default_rng(4)
    for kind in SPECIAL:
        a, b = operands(kind, rng, 4, 150, 37)
        turned = np.ascontiguousarray(b.T)
        with np.errstate(all="ignore"):
            want = rounded_products(a, b, DTYPE)
        for lost in (None, 2.0):
            with all_in_doubt(lost):
                got = engine(isa).run(product(isa, a, turned), [a, turned])
            assert_bits(got, want, f"{kind} {lost}")


@every_width
def test_sums_are_within_their_reach(isa: str) -> None:
    """What the kernel is told a sum may be off pays for every addition that it makes."""
    for k in (64, 1024, 1025, 9216):
        a, b = np.zeros((1, k), F), np.zeros((8, k), F)
        planned, lanes = product(isa, a, b), engine(isa).isa.lanes // 2
        made = planned.tight[0]
        reach = next(x for x in made.keep if x.shape == (7,))[0]
        links = -(-min(k, 1024) // lanes) + int(np.log2(lanes)) + -(-k // 1024)
        assert links * 2.0**-53 < reach < (links + 9) * 2.0**-53


def test_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_matmul, "_LARGE", 0)
    rng = np.random.default_rng(5)
    for m, k, n in ((1, 80, 30), (4, 64, 9), (5, 80, 30), (1, 63, 30)):
        a, b = operands("normal", rng, m, k, n)
        inputs = [a, np.ascontiguousarray(b.T), rng.standard_normal(n).astype(F)]
        for constants in ((), (1,), (1, 2)):
            for left in (0, 1):
                x = np.ascontiguousarray(a.T) if left else a
                model, feeds = node_model("Gemm", [x, *inputs[1:]], {"transA": left, "transB": 1}, constants=constants)
                event = same_everywhere(model, feeds).events[0]
                assert (event.backend, event.why) == ("native", "")
                assert float_matmul.serves(m, k, n, constant=False) == (m <= 4 and k >= 64)


def test_small_constants_are_transposed() -> None:
    assert float_matmul.serves(1, 1024, 512, constant=True)
    assert not float_matmul.serves(1, 1024, 511, constant=True)
    assert float_matmul.serves(1, 1024, 1, constant=False)


def test_other_shapes_of_left_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that a fused product transposes: rows are those of all matrices."""
    monkeypatch.setattr(float_matmul, "_LARGE", 0)
    rng = np.random.default_rng(6)
    b = rng.standard_normal((30, 80)).astype(F)
    for shape in ((80,), (3, 80), (2, 2, 80), (2, 3, 80)):
        inputs = [rng.standard_normal(shape).astype(F), b]
        for constants in ((), (1,)):
            options = {"transB": 1, "alpha": 0.5}
            model, feeds = node_model("FusedMatMul", inputs, options, constants=constants, domain="com.microsoft")
            assert same_everywhere(model, feeds).events[0].backend == "native"
