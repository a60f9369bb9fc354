"""Every test starts from the same environment, whatever the shell or the test runner set."""

from __future__ import annotations

import pytest

SCREEN = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "QRUN_MAX_MEMORY",
    "QRUN_CONFIG",
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SCREEN:
        monkeypatch.delenv(name, raising=False)
