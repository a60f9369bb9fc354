"""Many runs of a model: how often, the samples, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Model

if TYPE_CHECKING:
    from qrun.session import RunResult

MIN_RUNS, MAX_RUNS = 5, 1000
OUTLIER = 14.826
"""Modified z-score from which a run counts as an outlier (hyperfine's threshold)."""
SPREAD = 1.5
"""p90 above this many medians is worth a note."""

Progress = Callable[[int, int | None, float], None]
"""Called after each run with: runs done, runs asked for (None: by time), seconds left."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Timings of repeated runs.

    warmup_ns, run_ns: duration of each untimed and timed run.
    node_ns:  [nodes, runs], ns.
    last:     the last run, with shapes, multiply-adds and peak bytes.
    interrupted: Ctrl-C ended the measurement early; `asked` runs were to be made (None: as many as fit).
    """

    model: Model
    warmup_ns: tuple[int, ...]
    run_ns: tuple[int, ...]
    node_ns: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    last: RunResult
    interrupted: bool = False
    asked: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one row of samples, in ns; a single sample has no deviation."""

    median: float
    low: float
    p90: float
    high: float
    mean: float
    deviation: float | None


def summary(samples: Sequence[int] | np.ndarray) -> Summary:
    values = np.asarray(samples, np.float64)
    deviation = float(values.std(ddof=1)) if values.size > 1 else None
    median, p90 = (float(v) for v in np.percentile(values, (50, 90)))
    return Summary(median, float(values.min()), p90, float(values.max()), float(values.mean()), deviation)


def outliers(samples: Sequence[int]) -> list[int]:
    """Places of the runs whose modified z-score, 0.6745 * (x - median) / MAD, is above OUTLIER.

    A spread below 1 us, which clocks cannot tell from none, counts as 1 us.
    """
    values = np.asarray(samples, np.float64)
    median = np.median(values)
    mad = max(float(np.median(np.abs(values - median))), 1000.0)
    return [int(at) for at in np.flatnonzero(0.6745 * (values - median) / mad > OUTLIER)]


def measure(
    run: Callable[[], RunResult],
    model: Model,
    runs: int | None,
    warmup: int,
    seconds: float,
    progress: Progress | None = None,
) -> Profile:
    """Call `run` `warmup` times, then `runs` times, or as often as fits in `seconds` (5 to 1000).

    Ctrl-C after the first timed run ends the measurement and returns what there is.
    """
    before = [run().duration_ns for _ in range(warmup)]
    samples: list[Sequence[int]] = []
    totals: list[int] = []
    interrupted = False
    begin = perf_counter_ns()
    result = None
    try:
        while not _enough(len(totals), perf_counter_ns() - begin, runs, seconds):
            result = run()
            totals.append(result.duration_ns)
            samples.append([event.duration_ns for event in result.events])
            if progress is not None:
                progress(len(totals), runs, _left(len(totals), (perf_counter_ns() - begin) / 1e9, runs, seconds))
    except KeyboardInterrupt:
        if result is None or len(samples) < len(totals):
            raise
        interrupted = True
    assert result is not None
    node_ns = np.array(samples, np.int64).reshape(len(samples), -1).T
    return Profile(model, tuple(before), tuple(totals), node_ns, result, interrupted, runs)


def _enough(done: int, spent_ns: int, runs: int | None, seconds: float) -> bool:
    if runs is not None:
        return done >= runs
    return done >= MIN_RUNS and (spent_ns > seconds * 1e9 or done >= MAX_RUNS)


def _left(done: int, spent: float, runs: int | None, seconds: float) -> float:
    each = spent / done
    if runs is not None:
        return each * (runs - done)
    return max(each * (MIN_RUNS - done), min(seconds - spent, each * (MAX_RUNS - done)), 0)
