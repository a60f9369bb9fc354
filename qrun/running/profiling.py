"""Profiles: repeats the runs of a model, in turn with those of other runners, and summarizes the times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from qrun.declare import InNotebook
from qrun.declare.calls import timed_calls
from qrun.declare.frozen import frozen, replace
from qrun.ir import Array, Model
from qrun.running.execution import RunResult

if TYPE_CHECKING:
    from qrun.running.events import NodeEvent

NOTHING = RunResult({}, (), 0, 0)
"""A placeholder for runs that have only a time."""

MIN_RUNS, MAX_RUNS = 5, 1000
OUTLIER = 14.826
"""Modified z-score from which a run counts as an outlier (hyperfine's threshold)."""

LEAST, ROUNDS = 3, 10
"""Where several runners alternate: the fewest runs of one in a row, and the fewest rounds."""
BURST_NS = 5 * 10**6
"""About how long one burst takes. The first runs of a burst no longer find their data and code in the caches."""
BRIEF, PATIENT, BRIEFLY = 0.03, 0.05, 30
"""BRIEF: seconds that `brief` measures. PATIENT: its fewest runs are as many first runs as fit in these seconds.
BRIEFLY: the most runs that it profiles, as they take longer than plain ones."""
PATIENCE_NS, PATIENCE_STEPS = 2 * 10**9, 20_000
"""The longest first run, and the most steps of a model, for which `brief` measures."""
TOLD = 0.1
"""The call overhead is known if the nodes' times are off by at most this share of a plain run."""

Progress = Callable[[int, int | None, float], None]
"""Called after each run with the runs done, the runs requested (None if time decides), and the seconds left."""


@frozen
class Profile(InNotebook):
    """Timings of repeated runs: plain ones, as a user's program makes them, alternating with profiled ones, which time
    the nodes.

    warmup_ns, run_ns: duration of each untimed and timed plain run.
    node_ns:     [nodes, profiled runs], ns.
    last:        the last profiled run, with shapes, multiply-adds and peak bytes.
    interrupted: Ctrl-C ended the measurement early; `asked` is the number of runs requested (None: as many as fit).
    prepare_ns:  duration of the runs before the warm-up, which make kernels and programs; includes the time for that.
    profiled_ns: duration of each profiled run; () where the nodes were not timed.
    unit_ns:     the unit of the profiler: each node's time may lack up to one unit.
    on_ns:       how long the calling thread was on a processor in all timed plain runs; None if that is not known.
    """

    model: Model
    warmup_ns: tuple[int, ...]
    run_ns: tuple[int, ...]
    node_ns: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    last: RunResult
    interrupted: bool = False
    asked: int | None = None
    prepare_ns: tuple[int, ...] = ()
    profiled_ns: tuple[int, ...] = ()
    unit_ns: int = 0
    on_ns: int | None = None

    def __repr__(self) -> str:
        median = f"{self.median_ns / 1e6:.3g} ms" if self.run_ns else "unknown"
        ended = ", interrupted" if self.interrupted else ""
        return f"<qrun.Profile {self.model.label}: {len(self.node_ns)} nodes, {len(self.run_ns)} runs, median {median}{ended}>"

    @property
    def median_ns(self) -> float:
        """Median time of a plain run, ns."""
        return float(_median(self.run_ns))

    @property
    def medians(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Median time of each node, ns, in the order of the last run's events."""
        return _median(self.node_ns) if self.node_ns.size else np.zeros(0)

    @property
    def overhead_ns(self) -> float | None:
        """The time of a plain run outside its nodes, ns: the call from Python, and the way from node to node. None if
        the nodes' times are not known, too coarse or too noisy."""
        left, miss = self.median_ns - float(self.medians.sum()), TOLD * self.median_ns
        coarse = self.unit_ns * len(self.node_ns) > miss
        known = self.node_ns.size and not coarse and left >= -miss and self.held_ns <= miss
        return max(left, 0.0) if known else None

    @property
    def held_ns(self) -> float:
        """By how much the nodes of one run together exceed their medians, ns: in each run other nodes are delayed."""
        return float(_median(self.node_ns.sum(0)) - self.medians.sum()) if self.node_ns.size else 0.0

    @property
    def noisy(self) -> bool:
        """Did other work on the machine disturb the measurement? ``print(profile)`` says how."""
        return any(import_module("qrun.report.noise").signs(self)) if self.run_ns else False

    def with_nodes_of(self, other: Profile) -> Profile:
        """This profile with the nodes' times of `other`, whose runs alternated with its own."""
        return replace(self, node_ns=other.node_ns, last=other.last, profiled_ns=other.profiled_ns or other.run_ns,
                       unit_ns=other.unit_ns)  # fmt: skip


@frozen
class Burst:
    """Runs in a row. run_ns: the time of each; on_ns: how long the calling thread was on a processor, None if unknown.
    events: of each run that timed its nodes; last: the last run."""

    run_ns: Sequence[int]
    last: RunResult
    on_ns: int | None = None
    events: Sequence[Sequence[NodeEvent]] = ()


@frozen
class TimedRunner:
    """A runner to measure. burst: makes a number of runs in a row. prepare: how many runs make kernels and programs,
    before any warm-up.

    most:   the most timed runs, None for as many as the others.
    settle: seconds after a run until its threads, which wait for more work, sleep.
    """

    burst: Callable[[int], Burst]
    model: Model
    prepare: int = 0
    most: int | None = None
    settle: float = 0.0


def plain_runs(call: Callable[[], object]) -> Callable[[int], Burst]:
    """Bursts of plain calls."""

    def burst(times: int) -> Burst:
        spent, on = timed_calls(call, times)
        return Burst(spent, NOTHING, processor_time(on))

    return burst


def processor_time(ns: int) -> int | None:
    """`ns`, the time that a thread was on a processor; None on Windows, which counts it in 15.6 ms."""
    return None if sys.platform == "win32" else ns


def profiled_runs(run: Callable[[], RunResult]) -> Callable[[int], Burst]:
    """Bursts of runs that time their nodes."""

    def burst(times: int) -> Burst:
        spent: list[int] = []
        events: list[Sequence[NodeEvent]] = []
        last = NOTHING
        for _ in range(times):
            last = run()
            spent.append(last.duration_ns)
            events.append(last.events)
        return Burst(spent, last, None, events)

    return burst


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
    """Median, minimum, 90th percentile, maximum, mean and deviation of samples."""
    values = np.asarray(samples, np.float64)
    deviation = float(values.std(ddof=1)) if values.size > 1 else None
    median, p90 = float(_quantile(values, 0.5)), float(_quantile(values, 0.9))
    return Summary(median, float(values.min()), p90, float(values.max()), float(values.mean()), deviation)


def _median(values: Any) -> Any:
    """The median."""
    return _quantile(values, 0.5)


def _quantile(values: Any, share: float) -> Any:
    """The quantile along the last axis, as numpy.quantile, which would import numpy's masked arrays."""
    ordered = np.sort(np.asarray(values, np.float64), -1)
    rank = share * (ordered.shape[-1] - 1)
    low = int(rank)
    high = min(low + 1, ordered.shape[-1] - 1)
    return ordered[..., low] + (ordered[..., high] - ordered[..., low]) * (rank - low)


def outliers(samples: Sequence[int]) -> list[int]:
    """Indices of the runs whose modified z-score, 0.6745 * (x - median) / MAD, is above OUTLIER.

    A spread below 1 us, which clocks cannot tell from none, counts as 1 us.
    """
    values = np.asarray(samples, np.float64)
    median = _median(values)
    mad = max(float(_median(np.abs(values - median))), 1000.0)
    return [int(at) for at in np.flatnonzero(0.6745 * (values - median) / mad > OUTLIER)]


class Measurable(Protocol):
    """An object whose runs can be measured: a session, or another runtime."""

    model: Model

    def runners(self, feeds: Mapping[str, Array]) -> Sequence[TimedRunner]:
        """The runner of plain runs; then the one that times the nodes, if there is one."""


def brief(session: Measurable, feeds: Mapping[str, Array], first_ns: int) -> Profile | None:
    """A short profile of the runs that follow a first one of `first_ns`; None where these would take long."""
    if first_ns > PATIENCE_NS or len(session.model.nodes) > PATIENCE_STEPS:
        return None
    least = max(min(round(PATIENT * 1e9 / max(first_ns, 1)), MAX_RUNS // ROUNDS), 1)
    plain, *others = session.runners(feeds)
    few = [replace(other, most=BRIEFLY) for other in others]
    warmup = min(LEAST, least - 1)
    found, *profiled = measure_in_turns([plain, *few], None, warmup, BRIEF, least=least)
    return found.with_nodes_of(profiled[0]) if profiled else found


def measure_in_turns(
    runners: Sequence[TimedRunner],
    runs: int | None,
    warmup: int,
    seconds: float,
    progress: Progress | None = None,
    least: int = MIN_RUNS,
) -> list[Profile]:
    """Let each runner run `prepare` and `warmup` times, then `runs` times, or as often as fits in `seconds` for all
    together (`least` to MAX_RUNS).

    In each round every runner makes some runs in a row, as a user's program does, and each round begins with another
    runner, so that other work of the machine slows all of them alike. Between two runners it waits until the threads of
    the first sleep (`settle`). Ctrl-C after the first round ends the measurement and returns the runs so far.
    """
    taken = [_Samples(runner, warmup) for runner in runners]
    order, most = list(taken), runs or MAX_RUNS
    few = min(1 if len(taken) == 1 else LEAST, least)
    begin = perf_counter_ns()
    done, interrupted = 0, False
    try:
        while not _enough(done, perf_counter_ns() - begin, runs, seconds, least):
            times = max(min(BURST_NS // max([s.typical for s in taken]), most // ROUNDS), few)
            times = min(times, most - done)
            for samples in order:
                samples.take(times)
                sleep(samples.runner.settle)
            order.append(order.pop(0))
            done += times
            if progress is not None:
                progress(done, runs, _seconds_left(done, (perf_counter_ns() - begin) / 1e9, runs, seconds))
    except KeyboardInterrupt:
        if not all(samples.totals for samples in taken):
            raise
        interrupted = True
    return [samples.profile(interrupted, runs) for samples in taken]


class _Samples:
    """The timings of one runner as they come in. typical: ns of a run, 0 once it makes no more."""

    def __init__(self, runner: TimedRunner, warmup: int) -> None:
        self.runner = runner
        self.totals: list[int] = []
        self.nodes: list[list[int]] = []
        self.last: RunResult | None = None
        self.on: int | None = 0
        self.prepared = [runner.burst(1).run_ns[0] for _ in range(runner.prepare)]
        self.before = runner.burst(warmup).run_ns if warmup else ()
        self.typical = BURST_NS

    def take(self, times: int) -> None:
        """Run a burst of at most `times` runs and add its times."""
        left = times if self.runner.most is None else self.runner.most - len(self.totals)
        if left <= 0:
            self.typical = 0
            return
        burst = self.runner.burst(min(times, left))
        self.totals += burst.run_ns
        self.nodes += [[event.duration_ns for event in events] for events in burst.events]
        self.last = burst.last
        self.on = None if self.on is None or burst.on_ns is None else self.on + burst.on_ns
        self.typical = max(int(_median(burst.run_ns)), 1)

    def profile(self, interrupted: bool, asked: int | None) -> Profile:
        """The profile of all runs so far; `asked` is the number of runs wanted."""
        assert self.last is not None
        node_ns = np.array(self.nodes or [[]], np.int64).T
        return Profile(
            self.runner.model,
            tuple(self.before),
            tuple(self.totals),
            node_ns,
            self.last,
            interrupted,
            asked,
            tuple(self.prepared),
            on_ns=self.on,
        )


def _enough(done: int, spent_ns: int, runs: int | None, seconds: float, least: int) -> bool:
    """Whether the wanted runs are done, or the wanted seconds have passed with enough runs."""
    if runs is not None:
        return done >= runs
    return done >= least and (spent_ns > seconds * 1e9 or done >= MAX_RUNS)


def _seconds_left(done: int, spent: float, runs: int | None, seconds: float) -> float:
    """The seconds that the rest of a profile will take."""
    each = spent / done
    if runs is not None:
        return each * (runs - done)
    return max(each * (MIN_RUNS - done), min(seconds - spent, each * (MAX_RUNS - done)), 0)
