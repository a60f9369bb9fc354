"""What a runtime gave for a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from qrun.conform.suite import Case
from qrun.declare.frozen import frozen
from qrun.ir import Array

REFUSED, UNSUPPORTED, CRASHED, HUNG = "refused", "unsupported", "crashed", "hung"


@frozen
class Response:
    """An answer.

    outputs: by name, None for one that was not given; empty unless it ran.
    failed:  "" if it ran, else refused, unsupported, crashed or hung.
    message: the runtime's own words, or how it ended.
    """

    outputs: Mapping[str, Array | None]
    failed: str = ""
    message: str = ""


class CaseRunner(Protocol):
    """Something that runs cases, one after the other."""

    @property
    def version(self) -> str:
        """Of the runtime, as it says; "" if it does not."""
        ...

    def run(self, case: Case, limit: float) -> Response:
        """One case, in at most so many seconds."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...
