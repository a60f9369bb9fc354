"""How products of floats are cut into tiles for threads."""

from __future__ import annotations

import pytest

from qrun.native.emit.isa import ISAS
from qrun.native.kernels.float_product import Cut, block


@pytest.mark.parametrize(
    "size", [(16, 384, 384), (16, 1536, 384), (16, 384, 1536), (1, 4096, 4096), (49, 2048, 512), (1024, 384, 384)]
)
@pytest.mark.parametrize("strip", [(6, 24), (8, 24), (14, 16), (1, 32)])
@pytest.mark.parametrize("ready", [True, False])
def test_no_thread_is_left_without_work(size: tuple[int, int, int], strip: tuple[int, int], ready: bool) -> None:
    rows, columns, _ = size
    for threads in (2, 3, 4, 8):
        cut = Cut.of(1, size, strip, threads, ready)
        assert -(-rows // cut.rows) * -(-columns // (cut.panels * strip[1])) >= threads


def test_one_thread_has_no_more_tiles_than_its_memory_asks_for() -> None:
    assert Cut.of(1, (16, 384, 384), (8, 24), 1, False) == Cut(16, 16)


def test_what_is_too_small_for_two_threads_is_one_tile() -> None:
    assert Cut.of(1, (1, 8, 4), (6, 8), 4, False).panels == 1


def test_strips_of_few_rows_keep_their_sums_in_registers_and_leave_few_columns_empty() -> None:
    for isa in ISAS:
        lanes, registers = isa.lanes // 2, max(rows * vectors for vectors, rows in isa.real_rows.items())
        for rows, columns in ((1, 1), (1, 4096), (2, 136), (4, 512), (8, 128), (8, 4096)):
            high, vectors = block(isa, rows, columns, True)
            need = -(-columns // lanes)
            assert high == rows
            assert rows <= rows * vectors <= max(registers, rows)
            assert -(-need // vectors) * vectors <= need * 1.1, (isa.name, rows, columns)
