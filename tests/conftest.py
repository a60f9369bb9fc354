"""Every test starts from the same environment, whatever the shell or the test runner set."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from helpers.poison import poisoned

SCREEN = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "QRUN_MAX_MEMORY",
    "QRUN_CONFIG",
    "QRUN_ISA",
    "QRUN_CACHE_DIR",
    "QRUN_CACHE_SIZE",
)
OBJECTS = "QRUN_TEST_OBJECTS"


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        os.environ[OBJECTS] = tempfile.mkdtemp(prefix="qrun-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[OBJECTS], ignore_errors=True)


@pytest.fixture(autouse=True)
def unwritten_memory() -> Iterator[None]:
    """Memory of native kernels that nobody has written to holds poison."""
    with poisoned():
        yield


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SCREEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ[OBJECTS])
