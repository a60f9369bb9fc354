"""Threads that help: started when needed, ended when nobody holds them; and what their notes say about times."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from helpers.native import OBJECTS

import qrun.native.machine.threads as module
from qrun.native.machine.engine import Engine
from qrun.native.machine.meter import Meter
from qrun.native.machine.threads import Helpers
from qrun.native.plan.stamps import Segment, Stamp, helper_spans, times

SOON = 20.0


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "qrun"}


def test_calls_are_made_by_as_many_threads_as_there_may_be() -> None:
    helpers, barrier, made = Helpers(3), threading.Barrier(3), []

    def call(number: int) -> None:
        barrier.wait(SOON)
        made.append((number, threading.get_ident()))

    for task in [helpers.submit(call, number) for number in range(9)]:
        task.wait()
    assert sorted(number for number, _ in made) == list(range(9))
    assert len({thread for _, thread in made}) == 3


def test_an_idle_thread_is_taken_again() -> None:
    helpers, made = Helpers(8), []
    for _ in range(5):
        helpers.submit(lambda: made.append(threading.get_ident())).wait()
        until(lambda: bool(helpers._idle))
    assert (len(made), len(set(made))) == (5, 1)


def test_errors_come_to_who_waits_and_end_no_thread() -> None:
    helpers = Helpers(1)
    with pytest.raises(ZeroDivisionError):
        helpers.submit(lambda: 1 / 0).wait()
    helpers.submit(lambda: None).wait()


def test_a_cancelled_call_is_never_made() -> None:
    helpers, gate, made = Helpers(1), threading.Event(), []
    first, second, third = (
        helpers.submit(call) for call in (lambda: gate.wait(SOON), lambda: made.append(2), lambda: None)
    )
    assert second.cancel()
    gate.set()
    third.wait()
    first.wait()
    assert made == []
    assert not first.cancel()
    assert not second.cancel()


def test_threads_end_with_their_owner_and_hold_nothing_meanwhile() -> None:
    class Held:
        pass

    before = threads()
    helpers, held = Helpers(2), Held()
    gone = weakref.ref(held)
    for task in [helpers.submit(lambda *_: time.sleep(0.01), held) for _ in range(2)]:
        task.wait()
    del held, task
    until(lambda: gone() is None)
    assert threads() - before
    del helpers
    gc.collect()
    until(lambda: not threads() - before)


def test_the_process_waits_for_calls_that_have_begun() -> None:
    script = """
import sys, threading, time
import qrun.native.machine.threads as module
from qrun.native.machine.threads import Helpers

helpers, begun = Helpers(2), threading.Event()

def call():
    begun.set()
    time.sleep(0.3)
    sys.stdout.write("ended\\n")

helpers.submit(lambda: None).wait()
helpers.submit(call)
begun.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="threads cannot be kept apart here, or there is one processor",
)
def test_a_thread_wakes_on_another_processor_than_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    helpers, told = Helpers(1), []
    helpers.submit(int).wait()
    usable = os.sched_getaffinity(0)
    for here in sorted(usable):
        monkeypatch.setattr(module, "_processor", lambda here=here: here)
        helpers.submit(lambda: told.append(os.sched_getaffinity(0))).wait()
    assert told == [usable - {here} for here in sorted(usable)]
    assert os.sched_getaffinity(0) == usable


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be kept apart here")
def test_threads_help_where_nothing_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(thread: int, processors: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    helpers, made = Helpers(1), []
    for here in (0, 1, None):
        monkeypatch.setattr(module, "_processor", lambda here=here: here)
        helpers.submit(made.append, here).wait()
    assert made == [0, 1, None]


LEADER = [[100, 130], [140, 150], [160, 165], [180, 180]]
"""Ticks: came to a call, ended its own work on it; then the end."""


def stamp(*helpers: list[list[int]], step: float = 0.0) -> Stamp:
    return Stamp(Segment(0, 3), 1000, 1200, np.array([LEADER, *helpers], np.int64), 2.0, step)


def test_a_call_takes_until_the_leader_comes_to_the_next() -> None:
    assert times([stamp()], [0, 0, 2], 4) == ([1000, 1120, 1120, 1160], [120, 0, 40, 0])


def test_what_an_empty_call_takes_is_not_the_call_s() -> None:
    assert times([stamp(step=15)], [0, 0, 2], 4)[1] == [90, 0, 25, 0]


def test_a_tick_is_measured_over_more_than_one_run() -> None:
    """The time around a short run is that of Python, too: here 10 us around calls of 4000 ticks at 2 ticks a ns."""
    meter = Meter(None, 0, 10**6, 500)
    assert meter.tick(3 * 10**6, 3 * 10**6 + 10**4, 4 * 10**6, 4 * 10**6 + 4000) == pytest.approx(0.5, rel=0.01)
    assert meter.tick(3 * 10**6, 3 * 10**6 + 10**4, 100, 4100) == 2.5, "another processor's clock tells only the most"


def test_an_empty_step_takes_a_few_ticks() -> None:
    engine = Engine.create("", OBJECTS)
    meter = engine.runner.meter
    assert 0 < meter.step < 10_000


def test_what_runs_elsewhere_takes_the_whole_stretch() -> None:
    assert times([Stamp(Segment(0, 0, 1), 50, 70, np.zeros((1, 1, 2), np.int64))], [], 2) == ([50, 50], [0, 20])


def test_a_helper_has_times_where_it_worked() -> None:
    helper = [[105, 120], [140, 140], [162, 170], [175, 175]]
    assert helper_spans([stamp(helper)], [0, 0, 2]) == {0: [(1, 1010, 30)], 2: [(1, 1124, 16)]}


def test_a_helper_that_was_not_there_left_old_notes() -> None:
    old = [[10, 40], [45, 50], [60, 70], [80, 80]]
    there = [[101, 111], [140, 140], [162, 162], [175, 175]]
    assert helper_spans([stamp(old, there)], [0, 0, 2]) == {0: [(2, 1002, 20)]}


def test_a_clock_that_goes_back_leaves_times_near_the_run() -> None:
    ticks = 10**15 + np.array([[[5, 6], [9, 9], [1, 1], [2, 2]], [[-(10**15)] * 2] * 4])
    found = Stamp(Segment(0, 3), 3 * 10**13, 3 * 10**13 + 10**9, ticks, 10**9 / 3).nanoseconds
    assert abs(found - 3 * 10**13).max() <= 2 * 10**9
