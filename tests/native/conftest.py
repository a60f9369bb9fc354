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


@pytest.fixture(name="one_for_all")
def _one_for_all(emulation: None) -> Iterator[None]:
    """Kernels of the test are the same on all instruction sets whose vectors are as wide."""
    from helpers.widths import one_for_all

    with one_for_all():
        yield
