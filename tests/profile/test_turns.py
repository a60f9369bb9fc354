"""Measuring: which run is counted as what, and several runtimes in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.passes import Graph
from helpers.profile import model_of, residual

import qrun
from qrun.native.emit.isa import available
from qrun.running.profiling import (
    MAX_RUNS,
    NOTHING,
    PATIENCE_NS,
    ROUNDS,
    Profile,
    TimedRunner,
    brief,
    measure_in_turns,
    plain_runs,
    profiled_runs,
)


class Fake:
    """Runs that take 1, 2, 3 ... ns, noted in a common log."""

    def __init__(self, name: str = "a", log: list[str] | None = None, stop: int = 10**9) -> None:
        self.name, self.log, self.stop, self.done = name, [] if log is None else log, stop, 0

    def __call__(self) -> Any:
        self.done += 1
        if self.done > self.stop:
            raise KeyboardInterrupt
        self.log.append(self.name)
        return SimpleNamespace(duration_ns=self.done, events=[SimpleNamespace(duration_ns=self.done)])


def runner(run: Fake, **more: Any) -> TimedRunner:
    return TimedRunner(profiled_runs(run), None, **more)  # type: ignore[arg-type]


def test_preparation_and_warm_up_are_not_timed() -> None:
    (profile,) = measure_in_turns([runner(Fake(), prepare=2)], 3, 2, 0.0)
    assert profile.prepare_ns == (1, 2)
    assert profile.warmup_ns == (3, 4)
    assert profile.run_ns == (5, 6, 7)
    assert profile.node_ns.tolist() == [[5, 6, 7]]


def test_turns_alternate_who_is_first() -> None:
    log: list[str] = []
    a, b = measure_in_turns([runner(Fake("a", log)), runner(Fake("b", log))], 7, 0, 0.0)
    assert "".join(log) == "aaabbb" + "bbbaaa" + "ab"
    assert len(a.run_ns) == len(b.run_ns) == 7


def test_many_runs_take_turns_at_least_ten_times() -> None:
    log: list[str] = []
    measure_in_turns([runner(Fake("a", log)), runner(Fake("b", log))], 200, 0, 0.0)
    rounds = [len(list(same)) for _, same in groupby(log)]
    assert len(rounds) >= ROUNDS
    assert max(rounds) <= 2 * 200 // ROUNDS


def test_one_that_has_had_enough_is_left_out() -> None:
    a, b = measure_in_turns([runner(Fake()), runner(Fake(), most=4)], 7, 0, 0.0)
    assert (len(a.run_ns), len(b.run_ns)) == (7, 4)


def test_as_many_as_fit() -> None:
    assert len(measure_in_turns([runner(Fake()), runner(Fake())], None, 0, 60.0)[1].run_ns) == MAX_RUNS


def test_ctrl_c_keeps_what_all_have() -> None:
    found = measure_in_turns([runner(Fake()), runner(Fake(stop=5))], 100, 0, 0.0)
    assert all(profile.interrupted and profile.asked == 100 for profile in found)
    assert found[0].node_ns.shape == (1, len(found[0].run_ns))
    with pytest.raises(KeyboardInterrupt):
        measure_in_turns([runner(Fake()), runner(Fake(stop=0))], 100, 0, 0.0)


def test_times_of_many_runs_stay_in_order() -> None:
    (profile,) = measure_in_turns([runner(Fake())], 207, 0, 0.0)
    assert profile.node_ns.tolist() == [list(profile.run_ns)]


def test_plain_runs_are_timed_from_call_to_return() -> None:
    burst = plain_runs(lambda: sleep(0.002))(3)
    assert len(burst.run_ns) == 3
    assert min(burst.run_ns) >= 2_000_000
    assert not burst.events


def profile_of(run_ns: Sequence[int], nodes: Sequence[int], unit_ns: int = 0) -> Profile:
    return Profile(None, (), tuple(run_ns), np.array([[ns] for ns in nodes]), NOTHING, unit_ns=unit_ns)  # type: ignore[arg-type]


def test_nodes_and_overhead_are_a_plain_run() -> None:
    assert profile_of([15_000, 16_000, 90_000], [9_000, 3_000]).overhead_ns == 4_000
    assert profile_of([10_000], [7_000, 3_500]).overhead_ns == 0, "noise"
    assert profile_of([10_000], [7_000, 4_500]).overhead_ns is None, "too noisy to tell"
    assert profile_of([12_000], [3_000, 1_000], unit_ns=1000).overhead_ns is None, "too coarse to tell"
    assert profile_of([500_000], [300_000, 100_000], unit_ns=1000).overhead_ns == 100_000


def tanh() -> Graph:
    """A function between codes, which later runs look up in a table."""
    graph = Graph()
    x = graph.feed(np.linspace(-3, 3, 4096, dtype=np.float32), known=True)
    q = graph.node("QuantizeLinear", x, *graph.params(0.03, np.uint8(128)))
    d = graph.node("Tanh", graph.node("DequantizeLinear", q, *graph.params(0.03, np.uint8(128))))
    q = graph.node("QuantizeLinear", d, *graph.params(0.01, np.uint8(128)))
    graph.output(graph.node("DequantizeLinear", q, *graph.params(0.01, np.uint8(128))))
    return graph


def test_the_program_of_later_runs_is_what_a_short_profile_times() -> None:
    """The first run looks at values, without tables of codes; its nodes and its time are not those of later runs."""
    graph = tanh()
    session = qrun.Session(graph.proto(), cache=False)
    first = session.run_observed(graph.feeds)
    found = brief(session, graph.feeds, first.duration_ns)
    assert found is not None
    later = session.execute(graph.feeds, observe=False)
    assert [event.node for event in found.last.events] == [event.node for event in later.events]
    if available():
        assert [e.node for e in first.events] != [e.node for e in later.events], "else the model shows nothing"


def test_runs_that_would_take_long_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = residual()
    session = qrun.Session(graph.proto(), backend="reference")
    assert brief(session, graph.feeds, PATIENCE_NS + 1) is None
    monkeypatch.setattr("qrun.running.profiling.PATIENCE_STEPS", 0)
    assert brief(session, graph.feeds, 1) is None


@pytest.mark.skipif(not available(), reason="no native kernels for this machine")
@pytest.mark.parametrize("warmup", [0, 1])
def test_kernels_and_the_program_are_made_before_the_first_timed_run(
    warmup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qrun.running.compiled import Compiler
    from qrun.running.dispatch import NativeKernels

    log: list[str] = []

    def noted(name: str, method: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            log.append(name)
            return method(*args, **kwargs)

        return wrapper

    monkeypatch.setattr(NativeKernels, "bind", noted("make", NativeKernels.bind))
    monkeypatch.setattr(Compiler, "program", noted("make", Compiler.program))
    graph = residual()
    session = qrun.Session(graph.proto(), backend="native")
    monkeypatch.setattr(qrun.Session, "execute", noted("run", qrun.Session.execute))
    monkeypatch.setattr(qrun.Session, "run", noted("run", qrun.Session.run))
    profile = session.profile(graph.feeds, runs=4, warmup=warmup)
    assert len(profile.prepare_ns) == 2
    assert len(profile.warmup_ns) == warmup
    last = max(place for place, what in enumerate(log) if what == "make")
    assert log[last:].count("run") == 2 * (4 + warmup)
    assert qrun.Session(graph.proto(), backend="reference").profile(graph.feeds, runs=1).prepare_ns == ()


@pytest.mark.skipif(not available(), reason="no native kernels for this machine")
@pytest.mark.parametrize("threads", [1, 3])
def test_events_of_a_program_are_those_of_its_run(threads: int) -> None:
    """They are made of time stamps when somebody looks: later runs must not change them."""
    graph = residual()
    session = qrun.Session(graph.proto(), backend="native", threads=threads)
    for _ in range(3):
        first = session.execute(graph.feeds, observe=False)
    session.execute(graph.feeds, observe=False)
    events = list(first.events)
    assert len(first.events) == len(events) > 3
    assert first.events[-1] == events[-1]
    assert first.events[:2] == tuple(events[:2])
    for node in events:
        assert first.start_ns <= node.start_ns + 2000
        assert node.start_ns + node.duration_ns <= first.start_ns + first.duration_ns + 2000
        for helper, start, span in node.helpers:
            assert 0 < helper < threads
            assert first.start_ns - 2000 <= start <= start + span <= first.start_ns + first.duration_ns + 2000
    assert sum(node.duration_ns for node in events) <= first.duration_ns + 2000


def test_every_node_of_the_model_is_in_a_group_or_folded() -> None:
    model, _, _ = model_of(graph := residual())
    events = qrun.Session(model).execute(graph.feeds, observe=False).events
    named = {index for node in events for index in node.group}
    assert {n.index for n in model.nodes if n.op_type in ("Conv", "Add", "Gemm", "Softmax")} <= named
    medians = np.array([node.duration_ns for node in events])
    assert (medians >= 0).all()
