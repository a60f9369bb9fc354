"""The signs of a busy machine in a profile, of which `qrun run` and `qrun profile` warn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qrun.report.noise import signs
from qrun.running.profiling import NOTHING, Profile

QUIET = [1000] * 40


def profile(run_ns: list[int], **more: Any) -> Profile:
    return Profile(None, (), tuple(run_ns), np.zeros((0, 0), np.int64), NOTHING, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run_ns", "sign"),
    [
        (QUIET, None),
        ([90_000, *QUIET], None),
        ([*QUIET[:37], 90_000, 90_000, 70_000], "3 of 40 runs far from the median, the slowest 90.0 us"),
        ([1000] * 30 + [3500] * 10, "p90 is 3.5 x the median"),
    ],
)
def test_plain_runs(run_ns: list[int], sign: str | None) -> None:
    found = list(signs(profile(run_ns)))
    assert found == [] if sign is None else sign in found


def test_a_thread_without_a_processor() -> None:
    assert list(signs(profile(QUIET, on_ns=40_000))) == []
    assert list(signs(profile(QUIET, on_ns=20_000))) == ["the calling thread was not running for 50.0 % of the time"]
