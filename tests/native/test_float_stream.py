"""Native products of a few float32 rows with large constant right matrices, which are read row after row,
bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import Array, engine
from helpers.placed import run_placed, same_everywhere
from helpers.sums import SPECIAL, all_in_doubt, assert_bits, beside_ties, exact, operands
from helpers.support import node_model
from helpers.widths import every_width

from qrun.declare.memo import Memo
from qrun.native.kernels import float_matmul
from qrun.native.kernels.float_matmul import FloatMatmul
from qrun.native.kernels.floats import FloatStack
from qrun.ops._sums import rounded_products
from qrun.ops.lowering.products import exact_sums

F = np.float32
DTYPE = np.dtype(F)
SIZES = (
    (1, 64, 1),
    (1, 1, 9),
    (1, 7, 16),
    (1, 71, 9),
    (2, 100, 17),
    (3, 1029, 33),
    (4, 65, 40),
    (4, 8, 1100),
    (2, 3, 130),
)
"""Rows, K, columns: with a rest of rows that are read side by side, of panels, and several tiles."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices count as large ones."""
    monkeypatch.setattr(float_matmul, "_FAR", 0)
    monkeypatch.setattr(float_matmul, "_STREAM_COLUMNS", 64)


def product(isa: str, a: Array, b: Array, threads: int = 1, **options: Any) -> FloatMatmul:
    factors = (options.get("alpha", 1.0), options.get("beta", 1.0))
    made = FloatMatmul(engine(isa, threads), a.shape, b.shape, exact_sums(*factors), weights=b, **options)
    assert (made.tight[0].spec.kind == "float_stream") == float_matmul.streams(made.engine, made.stack)
    return made


@every_width
@pytest.mark.parametrize("at_end", [True, False])
def test_sizes(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(1)
    for sizes in SIZES:
        for kind in ("normal", "ties"):
            a, b = operands(kind, rng, *sizes)
            want = rounded_products(a, b, DTYPE)
            for threads in (1, 2):
                got = run_placed(engine(isa, threads), product(isa, a, b, threads), [a], (0, 0), at_end)
                assert_bits(got, want, f"{sizes} {kind}")


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    for m, k, n in ((1, 40, 50), (3, 1100, 20), (4, 90, 11)):
        a, b = operands(kind, rng, m, k, n)
        c = rng.choice(np.array([0, -0.0, 1, -0.37, 0.11], F), (m, n))
        for alpha, beta, addend in ((1.0, 1.0, None), (1.0, 1.0, c[0]), (float(F(0.3)), -1.75, c), (-1.0, 0.0, c[0])):
            more = 0.0 if addend is None else addend.astype("d") * beta
            with np.errstate(all="ignore"):
                want = rounded_products(a, b, DTYPE, alpha, more)
            options = {"alpha": alpha, "beta": beta, "addend": None if addend is None else addend.shape}
            given = [a] + ([] if addend is None else [addend])
            got = engine(isa).run(product(isa, a, b, **options), given)
            assert_bits(got, want, f"{kind} {m}x{k}x{n} {alpha} {beta}")


@every_width
def test_columns_that_are_not_finite(isa: str) -> None:
    """NaN has one form, whatever the instruction set makes of infinities, or of NaN with another sign."""
    a, b = np.ones((2, 70), F), np.ones((70, 19), F)
    a[:, 1], b[0, 3], b[1, 3], b[2, 11] = -1, np.inf, np.inf, np.copysign(F(np.nan), F(-1))
    with np.errstate(all="ignore"):
        want = rounded_products(a, b, DTYPE)
    assert_bits(engine(isa).run(product(isa, a, b), [a]), want, "columns")


@every_width
def test_sums_beside_ties(isa: str) -> None:
    rng = np.random.default_rng(3)
    for m, n in ((4, 9), (3, 17)):
        a, b = beside_ties(130, m, n, rng)
        assert_bits(engine(isa).run(product(isa, a, b), [a]), exact(a, b), f"{m} {n}")


@every_width
def test_nothing_is_decided_by_the_lengths_alone(isa: str) -> None:
    """If all sums are in doubt, they are settled; and if that decides nothing either, all are added exactly."""
    rng = np.random.default_rng(4)
    for kind in SPECIAL:
        a, b = operands(kind, rng, 4, 150, 37)
        with np.errstate(all="ignore"):
            want = rounded_products(a, b, DTYPE)
        for lost in (None, 2.0):
            with all_in_doubt(lost):
                got = engine(isa).run(product(isa, a, b), [a])
            assert_bits(got, want, f"{kind} {lost}")


@every_width
def test_sums_are_within_their_reach(isa: str) -> None:
    """What the kernel is told a sum may be off pays for every addition that it makes."""
    for k in (1, 8, 64, 1025, 9216):
        made = product(isa, np.zeros((1, k), F), np.zeros((k, 8), F)).tight[0]
        reach = next(x for x in made.keep if x.shape == (7,))[0]
        links = min(k, 8) + -(-k // 8)
        assert links * 2.0**-53 < reach < (links + 17) * 2.0**-53


@every_width
def test_the_lengths_of_its_own_matrix(isa: str) -> None:
    """Of a stack, each product has the lengths of its own columns, which are that much apart."""
    rng = np.random.default_rng(7)
    a, b = (np.stack(pair) for pair in zip(*(beside_ties(130, 3, 21, rng) for _ in range(3)), strict=True))
    b[0] *= F(2.0**-60)
    want = np.stack([exact(x, y) for x, y in zip(a, b, strict=True)])
    for threads in (1, 2):
        assert_bits(engine(isa, threads).run(product(isa, a, b, threads), [a]), want, "stack")


def test_nodes() -> None:
    rng = np.random.default_rng(5)
    for m, k, n in ((1, 80, 30), (4, 64, 9), (13, 80, 30)):
        a, b = operands("normal", rng, m, k, n)
        for op, inputs, constants in (
            ("MatMul", [a, b], (1,)),
            ("Gemm", [a, b, rng.standard_normal(n).astype(F)], (1,)),
            ("Gemm", [a, b, rng.standard_normal(n).astype(F)], (1, 2)),
            ("MatMul", [a.astype(np.float16), b.astype(np.float16)], (1,)),
        ):
            model, feeds = node_model(op, inputs, constants=constants, outputs=(inputs[0].dtype,))
            event = same_everywhere(model, feeds).events[0]
            assert (event.backend, event.why) == ("native", "")


@every_width
def test_weights_of_changing_rows_are_laid_out_once(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of other lengths do not cost memory again; a run may take as much as the copy has."""
    monkeypatch.undo()
    memo, rng = Memo(), np.random.default_rng(8)
    b = rng.standard_normal((70, 90)).astype(F)
    laid = set()
    for rows in (5, 6, 7, 13, 16, 33, 64):
        a = rng.standard_normal((rows, 70)).astype(F)
        made = FloatMatmul(engine(isa), a.shape, b.shape, exact_sums(), weights=b, memo=memo)
        call = made.tight[0]
        assert (call.spec.kind, call.spec.operands) == ("float_product", "rows-near")
        assert call.spec.rows <= rows
        laid |= {array.__array_interface__["data"][0] for array in call.keep if array.nbytes >= b.nbytes}
        assert made.packed_bytes == b.nbytes
        assert_bits(engine(isa).run(made, [a]), rounded_products(a, b, DTYPE), str(rows))
    assert len(laid) == 1
    assert FloatMatmul(engine(isa), (65, 70), b.shape, exact_sums(), weights=b, memo=memo).packed_bytes == 0


@every_width
def test_what_streams(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that the second-level cache does not hold, by rows few enough that strips have most of each line."""
    monkeypatch.undo()
    every, most = engine(isa), {"generic": 1, "avx2": 4}.get(isa, 12)

    def streams(m: int, k: int, n: int) -> bool:
        stack: FloatStack = FloatMatmul(every, (m, k), (k, n), exact_sums(), weights=np.zeros((k, n), F)).stack
        return float_matmul.streams(every, stack)

    assert streams(1, 1024, 256)
    assert streams(most, 1024, 256)
    assert not streams(most + 1, 1024, 256)
    assert not streams(1, 1024, 255)
