"""Defects planted in a copy of the arithmetic: each is caught by at least three cases, and told by its cause."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
from defects import graphs, parameters, registers, rounding, steps, sums, types
from defects.graphs import Change
from defects.node import Defect, Node, Planted

from qrun.conform.judge import judge_case
from qrun.conform.results import VERDICTS, CaseResult
from qrun.conform.runtimes import Response
from qrun.conform.suite import REFUSAL, Case, Suite
from qrun.errors import QrunError
from qrun.ir import Array

SUITE = Suite()
PLANTED: list[Planted] = [
    *rounding.PLANTED,
    *sums.PLANTED,
    *parameters.PLANTED,
    *types.PLANTED,
    *steps.PLANTED,
    *registers.PLANTED,
]
ENOUGH = 24
"""The number of cases that catch a defect after which no more are judged."""


def cases(words: list[str]) -> Iterator[Case]:
    """The cases with an answer, of all families in turn."""
    for info in sorted(SUITE.select(words), key=lambda info: zlib.crc32(info.id.encode())):
        if info.expects != REFUSAL:
            yield SUITE.load(info)


def judged(case: Case, answers: Mapping[str, Array | None]) -> CaseResult | None:
    """The result of a case that the answers fail; None if they are right."""
    result = judge_case(case, Response(dict(answers)))
    return result if result.verdict != "exact" else None


def caught(defect: Defect, words: list[str]) -> list[CaseResult]:
    """Cases that a defect changes, judged."""
    found: list[CaseResult] = []
    for case in cases(words):
        if len(found) == ENOUGH:
            break
        try:
            with np.errstate(all="ignore"):
                got = defect(Node(case))
        except (QrunError, ValueError, IndexError):
            continue
        if got is None and defect is not types.no_output:
            continue
        answers = {**case.expected, next(iter(case.expected)): got}
        result = judged(case, answers)
        if result is not None:
            found.append(result)
    return found


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_defect_is_caught_and_named(planted: Planted) -> None:
    found = caught(planted.defect, planted.words)
    assert len(found) >= 3, [(case.id, case.verdict, case.cause) for case in found]
    if planted.cause:
        right = [case.cause == planted.cause or bool(planted.told and planted.told in case.text) for case in found]
        named = [case for case, is_right in zip(found, right, strict=True) if is_right]
        rest = [(case.id, case.verdict, case.cause) for case in found if case not in named]
        assert len(named) >= 3, rest
        assert len(named) > 0.5 * len(found), rest


@pytest.mark.parametrize(("name", "change", "words"), graphs.PLANTED, ids=[name for name, *_ in graphs.PLANTED])
def test_a_defect_of_a_rewritten_graph_is_caught(name: str, change: Change, words: str) -> None:
    found = 0
    for case in cases([words]):
        answers = graphs.answers(case, change)
        found += answers is not None and judged(case, answers) is not None
        if found == 3:
            return
    raise AssertionError(f"{found} cases catch it")


def test_at_least_60_defects_are_planted_and_90_percent_named() -> None:
    """Each defect with a cause is named by it, as tested above."""
    count = len(PLANTED) + len(graphs.PLANTED)
    assert count >= 60
    assert sum(bool(planted.cause) for planted in PLANTED) >= 0.9 * count


def flip_a_bit(rng: np.random.Generator, right: Array) -> Array:
    data = bytearray(right.tobytes())
    if data:
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    return np.frombuffer(bytes(data), right.dtype).reshape(right.shape)


ANSWERS: list[Callable[[np.random.Generator, Array], Array | None]] = [
    flip_a_bit,
    lambda rng, right: np.frombuffer(rng.bytes(right.nbytes), right.dtype).reshape(right.shape),
    lambda rng, right: np.zeros_like(right),
    lambda rng, right: np.zeros((*right.shape, 2), right.dtype),
    lambda rng, right: right.reshape(-1),
    lambda rng, right: np.zeros(right.shape, np.float64),
    lambda rng, right: np.full(right.shape, "7", object),
    lambda rng, right: None,
]


@pytest.mark.parametrize("seed", range(2))
def test_every_answer_gets_a_verdict(seed: int) -> None:
    """Whatever a runtime returns costs its case alone, never the run."""
    rng = np.random.default_rng(seed)
    layouts = SUITE.select(["ms.qlinearconv-1/layouts"])
    for info in [*layouts, *rng.choice(SUITE.select([]), 300, replace=False)]:
        case, answer = SUITE.load(info), ANSWERS[rng.integers(len(ANSWERS))]
        answers = {name: answer(rng, np.asarray(right)) for name, right in case.expected.items()}
        assert judge_case(case, Response(answers)).verdict in VERDICTS, (seed, info.id)
