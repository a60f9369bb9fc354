"""Many runs of a model: how often, and the samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Model

if TYPE_CHECKING:
    from qrun.session import RunResult


@dataclass(frozen=True, slots=True)
class Profile:
    """Timings of repeated runs.

    warmup_ns, run_ns: duration of each untimed and timed run.
    node_ns:  [nodes, runs], ns.
    last:     the last run, with shapes, multiply-adds and peak bytes.
    """

    model: Model
    warmup_ns: tuple[int, ...]
    run_ns: tuple[int, ...]
    node_ns: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    last: RunResult


def measure(run: Callable[[], RunResult], model: Model, runs: int | None, warmup: int, seconds: float) -> Profile:
    """Call `run` `warmup` times, then `runs` times, or as often as fits in `seconds` (5 to 1000)."""
    before = [run().duration_ns for _ in range(warmup)]
    results: list[Sequence[int]] = []
    totals: list[int] = []
    begin = perf_counter_ns()
    while True:
        result = run()
        totals.append(result.duration_ns)
        results.append([event.duration_ns for event in result.events])
        spent = perf_counter_ns() - begin
        if (
            len(totals) >= runs
            if runs is not None
            else len(totals) >= 5 and (spent > seconds * 1e9 or len(totals) >= 1000)
        ):
            break
    node_ns = np.array(results, np.int64).reshape(len(results), -1).T
    return Profile(model, tuple(before), tuple(totals), node_ns, result)
