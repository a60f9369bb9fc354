"""Native products of float32 matrices: the reference's bits, the order of sums, and how they are cut into tiles."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.float_sums import Case, assert_ordered, compare, order_cases, ordered
from helpers.native import ISAS, OBJECTS, SETS, Array, emulating, engine
from helpers.placed import natively, run_placed
from helpers.sums import SPECIAL, assert_bits, operands
from helpers.support import node_model, run_qrun
from helpers.widths import every_width, thin_width

import qrun
from qrun.declare.memo import Memo
from qrun.native.emit.isa import ISAS as ALL_SETS
from qrun.native.emit.isa import Isa
from qrun.native.errors import Declined
from qrun.native.kernels.fma_product import Cut, FloatMatmul, panel_vectors, part_size, strip_of
from qrun.ops._chains import chained_products

F = np.float32
SIZES = (*edges.FLOAT_PRODUCTS, (4, 256, 33), (2, 257, 17), (1, 513, 70), (15, 1029, 20))
TURNED = ((1, 64, 1), (1, 1, 9), (1, 71, 9), (2, 100, 17), (3, 1029, 33), (4, 65, 40), (30, 300, 7), (2, 3, 130))
"""Rows, k, columns: with a rest of every vector, of columns that are turned together, and of blocks of k."""
FACTORS = ((1.0, 1.0), (float(F(0.3)), float(F(-1.7))), (-1.0, 0.0))


def product(isa: str, a: Array, b: Array, threads: int = 1, **options: Any) -> FloatMatmul:
    return FloatMatmul(engine(isa, threads), a.shape, b.shape, **options)


def wanted(a: Array, b: Array, alpha: float = 1.0, beta: float = 1.0, **added: Array) -> Array:
    """added: `first`, before beta, or `bias`."""
    with np.errstate(all="ignore"):
        if "first" in added:
            added["first"] = added["first"] * F(beta)
        return chained_products(a, b, a.dtype, alpha, **added)


@thin_width(*SIZES, name="sizes")
@pytest.mark.parametrize("at_end", [True, False])
def test_sizes(isa: str, sizes: tuple[int, int, int], at_end: bool) -> None:
    a, b = operands("normal", np.random.default_rng(1), *sizes)
    want = wanted(a, b)
    for threads in (1, 2, 4):
        constant = product(isa, a, b, threads, weights=b)
        assert_bits(run_placed(engine(isa, threads), constant, [a], (0, 0), at_end), want, f"constant {threads}")
        both = product(isa, a, b, threads)
        assert_bits(run_placed(engine(isa, threads), both, [a, b], (0, 0, 0), at_end), want, f"{threads}")


@thin_width(*TURNED, name="sizes")
@pytest.mark.parametrize("at_end", [True, False])
def test_right_matrices_that_lie_column_by_column(isa: str, sizes: tuple[int, int, int], at_end: bool) -> None:
    a, b = operands("normal", np.random.default_rng(2), *sizes)
    want, turned = wanted(a, b), np.ascontiguousarray(b.T)
    for threads in (1, 2):
        planned = product(isa, a, turned, threads, turned=True)
        assert_bits(run_placed(engine(isa, threads), planned, [a, turned], (0, 0, 0), at_end), want, f"{threads}")


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    for m, k, n in ((3, 40, 50), (30, 40, 50), (20, 300, 20)):
        a, b = operands(kind, rng, m, k, n)
        want = wanted(a, b)
        assert_bits(engine(isa).run(product(isa, a, b), [a, b]), want, f"{kind} {m}x{k}x{n}")
        scale = min(F(np.nan_to_num(np.abs(want), nan=0, posinf=0, neginf=0).max()), F(1e37))
        for alpha, beta in FACTORS:
            for shape in ((n,), (m, n)):
                c = rng.choice(np.array([0, -0.0, 1, -0.37, 0.11], F), shape) * scale
                factors = {"alpha": alpha, "beta": beta, "begins": True}
                want_c = wanted(a, b, alpha, beta, first=c)
                made = product(isa, a, b, addend=shape, **factors)
                assert_bits(engine(isa).run(made, [a, b, c]), want_c, f"{kind} {alpha} {beta} {shape}")
                held = product(isa, a, b, weights=b, constant=c, **factors)
                assert_bits(engine(isa).run(held, [a]), want_c, f"{kind} {alpha} {beta} {shape} constant")
                behind = product(isa, a, b, weights=b, constant=c)
                assert_bits(engine(isa).run(behind, [a]), wanted(a, b, bias=c), f"{kind} {shape} behind")


@every_width
def test_an_addend_that_is_nan_gives_the_one_nan(isa: str) -> None:
    """Whatever its sign and its bits; so does an infinite one times a beta of 0."""
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7F800001, 0x3F800000], "u4").view(F)
    rng = np.random.default_rng(7)
    for m, k in ((1, 1), (9, 5)):
        a, b = operands("normal", rng, m, k, 5)
        for addend in (nans, np.tile(nans, (m, 1)), np.array([1, np.inf, -np.inf, -0.0, 2], F)):
            for alpha, beta in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (np.inf, 1.0), (np.nan, 0.5)):
                want = wanted(a, b, alpha, beta, first=addend)
                made = product(isa, a, b, constant=addend, alpha=alpha, beta=beta, begins=True)
                assert_bits(engine(isa).run(made, [a, b]), want, f"{m} {addend.shape} {alpha} {beta}")


@every_width
def test_columns_that_are_not_finite(isa: str) -> None:
    """NaN has one form, whatever the instruction set makes of infinities, or of NaN with another sign."""
    a, b = np.ones((2, 70), F), np.ones((70, 19), F)
    a[:, 1], b[0, 3], b[1, 3], b[2, 11] = -1, np.inf, np.inf, np.copysign(F(np.nan), F(-1))
    want, turned = wanted(a, b), np.ascontiguousarray(b.T)
    assert_bits(engine(isa).run(product(isa, a, b), [a, b]), want)
    assert_bits(engine(isa).run(product(isa, a, b, weights=b), [a]), want, "constant")
    assert_bits(engine(isa).run(product(isa, a, turned, turned=True), [a, turned]), want, "turned")


@every_width
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38, 2.0**-140])
def test_a_row_leaves_no_trace_in_others(isa: str, odd: float) -> None:
    a, b = operands("normal", np.random.default_rng(7), 29, 50, 40)
    for row in (0, 13, 28):
        changed = a.copy()
        changed[row, 7] = odd
        assert_bits(engine(isa).run(product(isa, a, b, weights=b), [changed]), wanted(changed, b), str(row))


STACKS = (
    ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 5)),
    ((6, 2, 4), (4,)), ((1, 12, 4), (7, 4, 9)), ((3, 2, 20, 9), (3, 2, 9, 33)), ((2, 3, 1, 4), (1, 3, 4, 6)), ((0, 4), (4, 3)),
    ((2, 3, 4), (4, 0)), ((0, 3, 4), (0, 4, 2)), ((1, 3, 4), (1, 1, 4, 2)), ((2, 5, 260), (2, 260, 40)),
)  # fmt: skip


@every_width
def test_stacks(isa: str) -> None:
    rng = np.random.default_rng(7)
    for shapes in STACKS:
        a, b = (rng.standard_normal(s).astype(F) for s in shapes)
        for options, given in (({}, [a, b]), ({"weights": b}, [a])):
            got = engine(isa, 2).run(product(isa, a, b, 2, **options), given)
            assert_bits(got, wanted(a, b), f"{shapes} {len(given)}")


def test_sums_of_nothing_are_declined() -> None:
    with pytest.raises(Declined):
        product("", np.zeros((3, 0), F), np.zeros((0, 2), F))


@every_width
def test_weights_of_changing_rows_are_laid_out_once(isa: str) -> None:
    """Texts of other lengths do not cost memory again; a run may take as much as the copy has."""
    memo, rng = Memo(), np.random.default_rng(8)
    b = rng.standard_normal((70, 90)).astype(F)
    laid = set()
    for rows in (1, 5, 6, 7, 13, 16, 33, 64, 200):
        a = rng.standard_normal((rows, 70)).astype(F)
        made = product(isa, a, b, weights=b, memo=memo)
        laid |= {array.__array_interface__["data"][0] for array in made.tight[0].keep if array.nbytes >= b.nbytes}
        assert made.packed_bytes == b.nbytes
        assert_bits(engine(isa).run(made, [a]), wanted(a, b), str(rows))
    assert len(laid) == 1


def test_nodes() -> None:
    rng = np.random.default_rng(8)
    for number, (m, k, n) in enumerate(edges.FLOAT_PRODUCTS):
        for kind in ("normal", "special"):
            a, b = operands(kind, rng, m, k, n)
            for constant in ((), (1,)):
                natively(*node_model("MatMul", [a, b], constants=constant))
            c = rng.standard_normal([(m, n), (n,), (1, n), (m, 1), (), (1, 1)][number % 6]).astype(F)
            for turns in range(4):
                left, right = (a.T if turns & 1 else a), (b.T if turns & 2 else b)
                options = {"transA": turns & 1, "transB": turns >> 1}
                if number % 2:
                    options |= {"alpha": 0.5 + turns, "beta": 0.3}
                inputs = [np.ascontiguousarray(x) for x in (left, right)] + [c] * (turns != 1)
                for constants in ((), (1,), (1, 2)[: len(inputs) - 1], (0,)):
                    natively(*node_model("Gemm", inputs, options, constants=constants))


def test_other_shapes_of_left_operands() -> None:
    """A right matrix that a fused product transposes: rows are those of all matrices."""
    rng = np.random.default_rng(6)
    b = rng.standard_normal((30, 80)).astype(F)
    for shape in ((80,), (3, 80), (2, 2, 80), (2, 3, 80)):
        inputs = [rng.standard_normal(shape).astype(F), b]
        for constants in ((), (1,)):
            options = {"transB": 1, "alpha": 0.5}
            natively(*node_model("FusedMatMul", inputs, options, constants=constants, domain="com.microsoft"))


@cache
def chained(kind: str) -> list[tuple[Case, list[Array]]]:
    """The cases of a kind of numbers, with what the definition makes of them."""
    return [(case, ordered(case, run_qrun(*case.model())[0])) for case in order_cases(kind)]


@pytest.mark.parametrize("kind", SPECIAL)
def test_the_order_of_the_reference(kind: str) -> None:
    for case, want in chained(kind):
        assert_ordered(case, run_qrun(*case.model())[0], want)


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_the_order_of_kernels(isa: str, kind: str) -> None:
    for number, (case, want) in enumerate(chained(kind)):
        model, feeds = case.model()
        session = qrun.Session(model, backend="native", isa=isa, cache=OBJECTS, threads=1 + number % 3)
        (event,) = (run := session.execute(feeds)).events
        assert event.backend == "native" or event.why == "sums of nothing"
        assert_ordered(case, run.outputs["y0"], want)


@pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_random_sums(first: int) -> None:
    """They are as near to the real sum as numerics.md says, too."""
    assert sum(compare(seed) for seed in range(first, first + 20))


@emulating
@pytest.mark.parametrize("isa", SETS[1:])
def test_random_sums_on_every_instruction_set(isa: str) -> None:
    start = 10_000 * SETS.index(isa)
    assert sum(compare(seed, isa) for seed in range(start, start + 12))


CUTS = [(16, 384, 384), (16, 1536, 384), (16, 384, 1536), (1, 4096, 4096), (49, 2048, 512), (1024, 384, 384)]


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("strip", [(6, 24), (8, 24), (14, 16), (1, 32), (12, 32)])
def test_no_thread_is_left_without_work(size: tuple[int, int, int], strip: tuple[int, int]) -> None:
    rows, columns, _ = size
    for threads in (2, 3, 4, 8):
        cut = Cut.of(1, size, strip, threads)
        assert -(-rows // cut.rows) * -(-columns // (cut.panels * strip[1])) >= threads


def test_what_is_too_small_for_two_threads_is_one_tile() -> None:
    assert Cut.of(1, (1, 8, 4), (6, 8), 4).panels == 1


@pytest.mark.parametrize("isa", ALL_SETS, ids=lambda isa: isa.name)
def test_strips_fit_the_registers_and_leave_few_columns_empty(isa: Isa) -> None:
    for rows, columns in ((1, 1), (1, 4096), (2, 136), (4, 512), (8, 128), (8, 4096), (13, 100), (1024, 384)):
        vectors = panel_vectors(isa, columns)
        high, wide = strip_of(isa, rows, columns, vectors)
        assert 1 <= high <= min(rows, isa.real_rows[vectors])
        assert high * wide <= max(n * m for n, m in isa.real_rows.items())
        assert wide % vectors == 0
        need = -(-columns // isa.lanes)
        assert -(-need // vectors) * vectors <= need * 1.15, (rows, columns)


@pytest.mark.parametrize("isa", ALL_SETS, ids=lambda isa: isa.name)
def test_one_row_keeps_several_chains(isa: Isa) -> None:
    """A multiply-add need not wait for the one before it."""
    vectors = panel_vectors(isa, 4096)
    high, wide = strip_of(isa, 1, 4096, vectors)
    assert high == 1
    assert wide >= min(8, isa.real_rows[vectors] * vectors // 2)


def test_parts_are_alike() -> None:
    for count in (1, 5, 48, 100, 129):
        for most in (1, 6, 64):
            for step in (1, 6):
                part = part_size(count, most, step)
                assert part % step == 0
                assert -(-count // part) <= -(-count // max(most, step))
