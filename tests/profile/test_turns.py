"""Measuring: which run is counted as what, and several runtimes in turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.profile import model_of, residual

import qrun
from qrun.native.emit.isa import available
from qrun.running.profiling import MAX_RUNS, PENDING, TimedRunner, measure, measure_in_turns


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
    return TimedRunner(run, None, **more)  # type: ignore[arg-type]


def test_preparation_and_warm_up_are_not_timed() -> None:
    profile = measure(Fake(), None, 3, 2, 0.0, prepare=2)  # type: ignore[arg-type]
    assert len(profile.prepare_ns) == 2
    assert profile.warmup_ns == (3, 4)
    assert profile.run_ns == (5, 6, 7)
    assert profile.node_ns.tolist() == [[5, 6, 7]]


def test_turns_alternate_who_is_first() -> None:
    log: list[str] = []
    a, b = measure_in_turns([runner(Fake("a", log)), runner(Fake("b", log))], 7, 0, 0.0)
    assert "".join(log) == "aaabbb" + "bbbaaa" + "ab"
    assert len(a.run_ns) == len(b.run_ns) == 7


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
    profile = measure(Fake(), None, 2 * PENDING + 7, 0, 0.0)  # type: ignore[arg-type]
    assert profile.node_ns.tolist() == [list(profile.run_ns)]


@pytest.mark.skipif(not available(), reason="no native kernels for this machine")
@pytest.mark.parametrize("warmup", [0, 1])
def test_kernels_and_the_program_are_made_before_the_first_timed_run(
    warmup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qrun.running.compiling import Compiler
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
    profile = session.profile(graph.feeds, runs=4, warmup=warmup)
    assert len(profile.prepare_ns) == 2
    assert len(profile.warmup_ns) == warmup
    last = max(place for place, what in enumerate(log) if what == "make")
    assert log[last:].count("run") == 4 + warmup
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
