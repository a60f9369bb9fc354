"""Memory of the native engine that nobody has written to holds poison: what is read before it is written differs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qrun.native.machine import memory
from qrun.native.plan.instance import Instance
from qrun.native.plan.program import Direct

POISON = 0xA5


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it, each run starts with arenas, buffers and results full of POISON."""
    run, at_once = Instance.run, Direct.run_with

    def forgetful(self: Instance, *args: object) -> object:
        self.forget()
        return run(self, *args)

    def direct(self: Direct, instance: Instance, *given: object) -> object:
        instance.forget()
        return at_once(self, instance, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "poison", POISON)
        patch.setattr(Instance, "run", forgetful)
        patch.setattr(Direct, "run_with", direct)
        yield
