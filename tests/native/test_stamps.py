"""What the notes of a program's threads say about the time of each item."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.native import OBJECTS

from qrun.native.machine.engine import Engine
from qrun.native.machine.meter import Meter
from qrun.native.plan.stamps import Segment, Stamp, helped, times

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
    assert helped([stamp(helper)], [0, 0, 2]) == {0: [(1, 1010, 30)], 2: [(1, 1124, 16)]}


def test_a_helper_that_was_not_there_left_old_notes() -> None:
    old = [[10, 40], [45, 50], [60, 70], [80, 80]]
    there = [[101, 111], [140, 140], [162, 162], [175, 175]]
    assert helped([stamp(old, there)], [0, 0, 2]) == {0: [(2, 1002, 20)]}


def test_a_clock_that_goes_back_leaves_times_near_the_run() -> None:
    ticks = 10**15 + np.array([[[5, 6], [9, 9], [1, 1], [2, 2]], [[-(10**15)] * 2] * 4])
    found = Stamp(Segment(0, 3), 3 * 10**13, 3 * 10**13 + 10**9, ticks, 10**9 / 3).nanoseconds
    assert abs(found - 3 * 10**13).max() <= 2 * 10**9
