"""Python's search for circles is held off while a program is planned, and goes on afterwards."""

from __future__ import annotations

import gc

import pytest

from qrun.declare.collector import without_collector


def test_it_goes_on_when_the_last_one_ends() -> None:
    with without_collector():
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="planned"), without_collector():
        raise ValueError("planned")
    assert gc.isenabled()


def test_a_process_that_does_without_is_left_so() -> None:
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
