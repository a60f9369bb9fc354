"""Every test starts from the same environment, whatever the shell or the test runner set."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator

import pytest
from helpers.poison import poisoned
from helpers.tiers import split_tests, write_table
from helpers.without_native import MISSING, REASON, needs_native

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
SECONDS: dict[str, float] = {}
"""What each test took so far, by its node id."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all cases of tests that take long, too, as CI does")
    parser.addoption("--measure", action="store_true", help="write in tests/slow.txt what the tests of this run take")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for: by --all, or by the names of files or tests."""
    chosen = any(".py" in arg for arg in config.args) or config.getoption("keyword") or config.getoption("markexpr")
    if not config.getoption("--all") and not chosen:
        items[:], left = split_tests(items)
        config.hook.pytest_deselected(items=left)


if MISSING:

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        collector: pytest.Collector,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Modules that import what needs llvmlite are skipped."""
        report = yield
        if report.failed and "llvmlite" in str(report.longrepr) and isinstance(collector, pytest.Module):
            report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {REASON}")
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tests that ask for native kernels are skipped."""
        report = yield
        if report.failed and call.excinfo and needs_native(call.excinfo.value, call.excinfo.tb):
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {REASON}")
        return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--measure") and not hasattr(session.config, "workerinput"):
        write_table(SECONDS)


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
