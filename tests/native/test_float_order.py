"""Products and convolutions of float32 are chains of fused multiply-adds in blocks of 256: against the definition,
step by step in Python, on the reference backend and on every width of vectors."""

from __future__ import annotations

from functools import cache

import pytest
from helpers.float_sums import Case, assert_ordered, compare, order_cases, ordered
from helpers.native import ISAS, OBJECTS, SETS, Array, emulating
from helpers.sums import SPECIAL
from helpers.support import run_qrun
from helpers.widths import every_width

import qrun


@cache
def wanted(kind: str) -> list[tuple[Case, list[Array]]]:
    """The cases of a kind of numbers, with what the definition makes of them."""
    return [(case, ordered(case, run_qrun(*case.model())[0])) for case in order_cases(kind)]


@pytest.mark.parametrize("kind", SPECIAL)
def test_the_order_of_the_reference(kind: str) -> None:
    for case, want in wanted(kind):
        assert_ordered(case, run_qrun(*case.model())[0], want)


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_the_order_of_kernels(isa: str, kind: str) -> None:
    for number, (case, want) in enumerate(wanted(kind)):
        model, feeds = case.model()
        session = qrun.Session(model, backend="native", isa=isa, cache=OBJECTS, threads=1 + number % 3)
        (event,) = (run := session.execute(feeds)).events
        assert event.backend == "native" or event.why == "sums of nothing"
        assert_ordered(case, run.outputs["y0"], want)


@pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_random_sums(first: int) -> None:
    """They are as near to the real sum as docs/numerics.md says, too."""
    assert sum(compare(seed) for seed in range(first, first + 20))


@emulating
@pytest.mark.parametrize("isa", SETS[1:])
def test_random_sums_on_every_instruction_set(isa: str) -> None:
    start = 10_000 * SETS.index(isa)
    assert sum(compare(seed, isa) for seed in range(start, start + 12))
