"""How products of floats are cut into strips for registers, and into tiles for threads."""

from __future__ import annotations

import pytest

from qrun.native.emit.isa import ISAS, Isa
from qrun.native.kernels.fma_product import Cut, even, panel_vectors, strip_of

SIZES = [(16, 384, 384), (16, 1536, 384), (16, 384, 1536), (1, 4096, 4096), (49, 2048, 512), (1024, 384, 384)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("strip", [(6, 24), (8, 24), (14, 16), (1, 32), (12, 32)])
def test_no_thread_is_left_without_work(size: tuple[int, int, int], strip: tuple[int, int]) -> None:
    rows, columns, _ = size
    for threads in (2, 3, 4, 8):
        cut = Cut.of(1, size, strip, threads)
        assert -(-rows // cut.rows) * -(-columns // (cut.panels * strip[1])) >= threads


def test_what_is_too_small_for_two_threads_is_one_tile() -> None:
    assert Cut.of(1, (1, 8, 4), (6, 8), 4).panels == 1


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_strips_fit_the_registers_and_leave_few_columns_empty(isa: Isa) -> None:
    for rows, columns in ((1, 1), (1, 4096), (2, 136), (4, 512), (8, 128), (8, 4096), (13, 100), (1024, 384)):
        vectors = panel_vectors(isa, columns)
        high, wide = strip_of(isa, rows, columns, vectors)
        assert 1 <= high <= min(rows, isa.real_rows[vectors])
        assert high * wide <= max(n * m for n, m in isa.real_rows.items())
        assert wide % vectors == 0
        need = -(-columns // isa.lanes)
        assert -(-need // vectors) * vectors <= need * 1.15, (rows, columns)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
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
                part = even(count, most, step)
                assert part % step == 0
                assert -(-count // part) <= -(-count // max(most, step))
