"""Many runs of a model: how often, the samples, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare import InNotebook
from qrun.declare.frozen import frozen
from qrun.ir import Model

if TYPE_CHECKING:
    from qrun.running.events import NodeEvent
    from qrun.running.execution import RunResult

MIN_RUNS, MAX_RUNS = 5, 1000
OUTLIER = 14.826
"""Modified z-score from which a run counts as an outlier (hyperfine's threshold)."""
SPREAD = 1.5
"""p90 above this many medians is worth a note."""

BURST = 3
"""How many runs in a row a runner makes where several are measured in turn."""
PENDING = 100
"""Runs after which their nodes' times are read."""

Progress = Callable[[int, int | None, float], None]
"""Called after each run with the runs done, the runs asked for (None if time decides), and the seconds left."""


@frozen
class Profile(InNotebook):
    """Timings of repeated runs.

    warmup_ns, run_ns: duration of each untimed and timed run.
    node_ns:     [nodes, runs], ns.
    last:        the last timed run, with shapes, multiply-adds and peak bytes.
    interrupted: Ctrl-C ended the measurement early; `asked` runs were to be made (None: as many as fit).
    prepare_ns:  duration of the runs before the warm-up, which make kernels and programs; includes the time for that.
    watched_ns:  duration of the runs that `node_ns` is of, where a profiler that slows them took the nodes' times in
                 runs of its own; () where they are those of `run_ns`.
    """

    model: Model
    warmup_ns: tuple[int, ...]
    run_ns: tuple[int, ...]
    node_ns: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    last: RunResult
    interrupted: bool = False
    asked: int | None = None
    prepare_ns: tuple[int, ...] = ()
    watched_ns: tuple[int, ...] = ()

    def __repr__(self) -> str:
        median = f"{float(np.median(self.run_ns)) / 1e6:.3g} ms" if self.run_ns else "unknown"
        ended = ", interrupted" if self.interrupted else ""
        return f"<qrun.Profile {self.model.label}: {len(self.node_ns)} nodes, {len(self.run_ns)} runs, median {median}{ended}>"

    @property
    def medians(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Median time of each node, ns, in the order of the last run's events."""
        return np.median(self.node_ns, 1) if self.node_ns.size else np.zeros(0)

    @property
    def between_ns(self) -> float:
        """Median time of a run that no node took, ns; 0 if the nodes' times are not known."""
        runs = np.asarray(self.watched_ns or self.run_ns)
        return float(np.median(runs - self.node_ns.sum(0))) if self.node_ns.size else 0.0


@frozen
class TimedRunner:
    """Something to measure. run: one run. prepare: how many runs make kernels and programs, before any warm-up.

    most:   no more timed runs than this, None for as many as the others.
    settle: seconds after a run until its threads, which wait for more work, sleep.
    """

    run: Callable[[], RunResult]
    model: Model
    prepare: int = 0
    most: int | None = None
    settle: float = 0.0


@frozen
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
    prepare: int = 0,
) -> Profile:
    """Call `run` `prepare` and `warmup` times, then `runs` times, or as often as fits in `seconds` (5 to 1000).

    Ctrl-C after the first timed run ends the measurement and returns what there is.
    """
    return measure_in_turns([TimedRunner(run, model, prepare)], runs, warmup, seconds, progress)[0]


def measure_in_turns(
    runners: Sequence[TimedRunner], runs: int | None, warmup: int, seconds: float, progress: Progress | None = None
) -> list[Profile]:
    """As `measure`, for several runners. In each round every runner runs, BURST times if there are others, and each
    round begins with another runner, so that other work of the machine slows all of them alike. Between two runners it
    waits until the threads of the first sleep (`settle`). seconds: for all runners together.
    """
    taken = [_Samples(runner, warmup) for runner in runners]
    burst, order = 1 if len(taken) == 1 else BURST, list(taken)
    begin = perf_counter_ns()
    done, interrupted = 0, False
    try:
        while not _enough(done, perf_counter_ns() - begin, runs, seconds):
            times = min(burst, (MAX_RUNS if runs is None else runs) - done)
            for samples in order:
                samples.take(times)
                sleep(samples.runner.settle if len(taken) > 1 else 0)
            order.append(order.pop(0))
            done += times
            if progress is not None:
                progress(done, runs, _left(done, (perf_counter_ns() - begin) / 1e9, runs, seconds))
    except KeyboardInterrupt:
        if not all(samples.totals for samples in taken):
            raise
        interrupted = True
    return [samples.profile(interrupted, runs) for samples in taken]


class _Samples:
    """The timings of one runner as they come in."""

    def __init__(self, runner: TimedRunner, warmup: int) -> None:
        self.runner = runner
        self.totals: list[int] = []
        self.events: list[Sequence[NodeEvent]] = []
        self.nodes: list[list[int]] = []
        self.last: RunResult | None = None
        self.prepared = []
        for _ in range(runner.prepare):
            start = perf_counter_ns()
            runner.run()
            self.prepared.append(perf_counter_ns() - start)
        self.before = [runner.run().duration_ns for _ in range(warmup)]

    def take(self, times: int) -> None:
        left = times if self.runner.most is None else self.runner.most - len(self.totals)
        for _ in range(min(times, left)):
            result = self.runner.run()
            self.events.append(result.events)
            self.totals.append(result.duration_ns)
            self.last = result
            if len(self.events) == PENDING:
                self._read()

    def _read(self) -> None:
        """Read the nodes' times from the events kept so far. Between single runs this would disturb the measurement."""
        self.nodes += [[event.duration_ns for event in events] for events in self.events]
        self.events.clear()

    def profile(self, interrupted: bool, asked: int | None) -> Profile:
        assert self.last is not None
        self._read()
        totals = self.totals
        node_ns = np.array(self.nodes[: len(totals)], np.int64).reshape(len(totals), -1).T
        return Profile(
            self.runner.model,
            tuple(self.before),
            tuple(totals),
            node_ns,
            self.last,
            interrupted,
            asked,
            tuple(self.prepared),
        )


def _enough(done: int, spent_ns: int, runs: int | None, seconds: float) -> bool:
    if runs is not None:
        return done >= runs
    return done >= MIN_RUNS and (spent_ns > seconds * 1e9 or done >= MAX_RUNS)


def _left(done: int, spent: float, runs: int | None, seconds: float) -> float:
    each = spent / done
    if runs is not None:
        return each * (runs - done)
    return max(each * (MIN_RUNS - done), min(seconds - spent, each * (MAX_RUNS - done)), 0)
