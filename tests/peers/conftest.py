"""What the tests of the child process ask for by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import faulty_runtime

from qrun.child import process


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime that fails as it is told to."""
    process._end()
    monkeypatch.setattr(process, "SERVER", faulty_runtime.SERVER)
    yield
    process._end()
