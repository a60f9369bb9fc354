"""What the tests of the native engine ask for by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.emulation import emulation


@pytest.fixture(name="emulation")
def _emulation() -> Iterator[None]:
    """Engines can be created for the instruction sets that this CPU lacks as well."""
    with emulation():
        yield
