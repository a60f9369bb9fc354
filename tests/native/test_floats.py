"""Native products of float32 matrices equal the reference's, bit for bit: the real sum rounded once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import Array, engine
from helpers.placed import run_placed, same_everywhere
from helpers.sums import KINDS, SPECIAL, all_in_doubt, assert_bits, beside_ties, exact, operands
from helpers.support import node_model
from helpers.widths import every_width, thin_width

from qrun.native.errors import Declined, Undecided
from qrun.native.kernels import float_product
from qrun.native.kernels.float_matmul import FloatMatmul
from qrun.ops._sums import rounded_products
from qrun.ops.lowering.products import exact_sums

F = np.float32
DTYPE = np.dtype(F)


def product(isa: str, a: Array, b: Array, threads: int = 1, **options: Any) -> FloatMatmul:
    factors = (options.get("alpha", 1.0), options.get("beta", 1.0))
    return FloatMatmul(engine(isa, threads), a.shape, b.shape, exact_sums(*factors), **options)


@thin_width(*edges.FLOAT_PRODUCTS, name="sizes")
@pytest.mark.parametrize("at_end", [True, False])
def test_sizes(isa: str, sizes: tuple[int, int, int], at_end: bool) -> None:
    rng = np.random.default_rng(1)
    for kind in ("normal", "ties"):
        a, b = operands(kind, rng, *sizes)
        want = rounded_products(a, b, DTYPE)
        for threads in (1, 2):
            constant = product(isa, a, b, threads, weights=b)
            assert_bits(run_placed(engine(isa, threads), constant, [a], (0, 0), at_end), want, f"{kind} constant")
            both = product(isa, a, b, threads)
            assert_bits(run_placed(engine(isa, threads), both, [a, b], (0, 0, 0), at_end), want, f"{kind} {threads}")


@every_width
def test_right_matrices_that_are_fetched_ahead(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_product, "_FAR", 0)
    rng = np.random.default_rng(9)
    for sizes in ((1, 40, 300), (3, 129, 33), (8, 9, 40)):
        a, b = operands("normal", rng, *sizes)
        planned = product(isa, a, b)
        assert planned.tight[0].spec.prefetch
        assert_bits(run_placed(engine(isa), planned, [a, b], (0, 0, 0)), rounded_products(a, b, DTYPE), str(sizes))


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    """Those that are undecided are more than a list holds."""
    rng = np.random.default_rng(2)
    for m, k, n in ((3, 40, 50), (30, 40, 50), (20, 300, 20)):
        a, b = operands(kind, rng, m, k, n)
        with np.errstate(all="ignore"):
            want = rounded_products(a, b, DTYPE)
        assert_bits(engine(isa).run(product(isa, a, b), [a, b]), want, f"{kind} {m}x{k}x{n}")
        for alpha, beta in ((1.0, 1.0), (0.3, -1.7), (-1.0, 0.0)):
            for shape in ((n,), (m, n)):
                scale = F(np.nan_to_num(np.abs(want), nan=0, posinf=0, neginf=0).max())
                c = rng.choice(np.array([0, -0.0, 1, -0.37, 0.11], F), shape) * min(scale, F(1e37))
                alpha, beta = float(F(alpha)), float(F(beta))
                with np.errstate(all="ignore"):
                    want_c = rounded_products(a, b, DTYPE, alpha, c.astype("d") * beta)
                made = product(isa, a, b, addend=shape, alpha=alpha, beta=beta)
                assert_bits(engine(isa).run(made, [a, b, c]), want_c, f"{kind} {alpha} {beta} {shape}")
                held = product(isa, a, b, weights=b, constant=c, alpha=alpha, beta=beta)
                assert_bits(engine(isa).run(held, [a]), want_c, f"{kind} {alpha} {beta} {shape} constant")


@every_width
def test_an_addend_that_is_nan_gives_the_one_nan(isa: str) -> None:
    """Whatever its sign and its bits; so does an infinite one times a beta of 0."""
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7F800001, 0x3F800000], "u4").view(F)
    rng = np.random.default_rng(7)
    for m, k in ((1, 1), (9, 5)):
        a, b = operands("normal", rng, m, k, 5)
        for addend in (nans, np.tile(nans, (m, 1)), np.array([1, np.inf, -np.inf, -0.0, 2], F)):
            for alpha, beta in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (np.inf, 1.0), (np.nan, 0.5)):
                with np.errstate(all="ignore"):
                    want = rounded_products(a, b, DTYPE, alpha, addend.astype("d") * beta)
                made = product(isa, a, b, constant=addend, alpha=alpha, beta=beta)
                assert_bits(engine(isa).run(made, [a, b]), want, f"{m} {addend.shape} {alpha} {beta}")


@every_width
@pytest.mark.parametrize("kind", KINDS)
def test_products_against_fractions(isa: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    for m in (2, 10):
        a, b = operands(kind, rng, m, 40, 9)
        assert_bits(engine(isa).run(product(isa, a, b), [a, b]), exact(a, b), kind)
        c = rng.standard_normal(9).astype(F)
        assert_bits(engine(isa).run(product(isa, a, b, constant=c), [a, b]), exact(a, b, 1, c.astype("d")), kind)


@every_width
def test_short_rows_beside_a_long_one(isa: str) -> None:
    """What is in doubt for the longest row of a strip may be certain for a shorter one."""
    a, b = operands("normal", np.random.default_rng(11), 24, 40, 70)
    a[::5] *= F(2.0**40)
    for addend in ((), (np.zeros(70, F),)):
        made = product(isa, a, b, constant=addend[0]) if addend else product(isa, a, b)
        assert_bits(engine(isa).run(made, [a, b]), rounded_products(a, b, DTYPE), str(addend))


@cache
def tie_cases() -> list[tuple[Array, Array, dict[str, Any], Array]]:
    """Operands, what is added to their product, and the result."""
    rng, found = np.random.default_rng(10), []
    for m, n in ((3, 9), (7, 17), (14, 20), (70, 3)):
        a, b = beside_ties(130, m, n, rng)
        found.append((a, b, {}, exact(a, b)))
        for alpha in (1.0, -0.5):
            c, rest = (a[:1, 0] * alpha * b[0]).astype(F), a.copy()
            rest[:, 0] = 0
            found.append((rest, b, {"constant": c, "alpha": alpha}, exact(rest, b, alpha, c.astype("d"))))
    return found


@every_width
def test_sums_beside_ties(isa: str) -> None:
    """What decides them is smaller than float64's last bit."""
    for a, b, options, want in tie_cases():
        message = f"{a.shape} {options.get('alpha')}"
        assert_bits(engine(isa).run(product(isa, a, b, **options), [a, b]), want, message)
        assert_bits(engine(isa).run(product(isa, a, b, weights=b, **options), [a]), want, f"{message} constant")


@every_width
def test_nothing_is_decided_by_the_norms_alone(isa: str) -> None:
    """If all sums are in doubt, they are settled; and if that decides nothing either, all are added exactly."""
    rng = np.random.default_rng(4)
    for lost in (None, 2.0):
        for kind in SPECIAL:
            a, b = operands(kind, rng, 20, 150, 37)
            c = rng.standard_normal(37).astype(F)
            with all_in_doubt(lost):
                made = [
                    engine(isa).run(product(isa, a, b, **options), [a, b])
                    for options in ({}, {"constant": c}, {"constant": c, "alpha": float(F(0.7))})
                ]
            with np.errstate(all="ignore"):
                wanted = [rounded_products(a, b, DTYPE, *more) for more in
                          ((), (1.0, c.astype("d")), (float(F(0.7)), c.astype("d")))]  # fmt: skip
            for got, want in zip(made, wanted, strict=True):
                assert_bits(got, want, f"{kind} {lost}")


@every_width
def test_few_elements_go_to_the_reference(isa: str) -> None:
    rng = np.random.default_rng(5)
    asked = []

    def counted(rows: Array, columns: Array, addend: Array) -> Array:
        asked.append(len(rows))
        return exact_sums()(rows, columns, addend)

    for kind, most in (("normal", 0), ("ties", 0), ("cancelled", 0), ("wide", 2)):
        a, b = operands(kind, rng, 60, 200, 90)
        engine(isa).run(FloatMatmul(engine(isa), a.shape, b.shape, counted), [a, b])
        assert sum(asked) <= most, kind


@every_width
def test_a_reference_that_fails_leaves_the_run_undecided(isa: str) -> None:
    def fails(rows: Array, columns: Array, addend: Array) -> Array:
        raise OverflowError

    a, b = operands("undecided", np.random.default_rng(6), 20, 60, 30)
    with pytest.raises(Undecided):
        engine(isa).run(FloatMatmul(engine(isa), a.shape, b.shape, fails), [a, b])


STACKS = (
    ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 5)),
    ((6, 2, 4), (4,)), ((1, 12, 4), (7, 4, 9)), ((3, 2, 20, 9), (3, 2, 9, 33)), ((2, 3, 1, 4), (1, 3, 4, 6)), ((0, 4), (4, 3)),
    ((2, 3, 4), (4, 0)), ((0, 3, 4), (0, 4, 2)), ((1, 3, 4), (1, 1, 4, 2)),
)  # fmt: skip


@every_width
def test_stacks(isa: str) -> None:
    rng = np.random.default_rng(7)
    for shapes in STACKS:
        a, b = (rng.standard_normal(s).astype(F) for s in shapes)
        got = engine(isa, 2).run(product(isa, a, b, 2), [a, b])
        assert_bits(got, rounded_products(a, b, DTYPE), str(shapes))


def test_sums_of_nothing_are_declined() -> None:
    with pytest.raises(Declined):
        product("", np.zeros((3, 0), F), np.zeros((0, 2), F))


def test_nodes() -> None:
    rng = np.random.default_rng(8)
    for number, (m, k, n) in enumerate(edges.FLOAT_PRODUCTS):
        for kind in ("normal", "special"):
            a, b = operands(kind, rng, m, k, n)
            for constant in ((), (1,)):
                model, feeds = node_model("MatMul", [a, b], constants=constant)
                assert same_everywhere(model, feeds).events[0].backend == "native"
            c = rng.standard_normal([(m, n), (n,), (1, n), (m, 1), (), (1, 1)][number % 6]).astype(F)
            for turns in range(4):
                left, right = (a.T if turns & 1 else a), (b.T if turns & 2 else b)
                options = {"transA": turns & 1, "transB": turns >> 1}
                if number % 2:
                    options |= {"alpha": 0.5 + turns, "beta": 0.3}
                inputs = [np.ascontiguousarray(x) for x in (left, right)] + [c] * (turns != 1)
                for constants in ((), (1,), (1, 2)[: len(inputs) - 1], (0,)):
                    model, feeds = node_model("Gemm", inputs, options, constants=constants)
                    event = same_everywhere(model, feeds).events[0]
                    assert (event.backend, event.why) == ("native", "")
