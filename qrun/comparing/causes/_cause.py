"""The declaration of a cause: a function that says what the other side would give if this were the reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from qrun.comparing.causes._suspect import Suspect
from qrun.declare.frozen import frozen, keys
from qrun.ir import Array


@frozen
class Hypothesis:
    """What the other side would give.

    array: its output; None for what needs no reproduction: it is seen as it is (a refusal, a missing output).
    text:  in a few words, what it does differently.
    """

    array: Array | None
    text: str


@frozen
class Cause:
    """A declared cause. rank: those of lower rank are tried first; the more specific ones."""

    KEYS = keys("cause=name summary source confirm fix=remedy")

    name: str
    rank: int
    source: str
    function: Callable[[Suspect], Iterator[Hypothesis]]

    @property
    def summary(self) -> str:
        return self._paragraphs[0]

    @property
    def confirm(self) -> str:
        """How a user sees that it is this."""
        return self._told("To confirm: ")

    @property
    def remedy(self) -> str:
        """What a user can do about it."""
        return self._told("To do: ")

    @property
    def _paragraphs(self) -> list[str]:
        return [" ".join(part.split()) for part in inspect.cleandoc(self.function.__doc__ or "").split("\n\n")]

    def _told(self, start: str) -> str:
        return next(part.removeprefix(start) for part in self._paragraphs if part.startswith(start))


CAUSES: dict[str, Cause] = {}


def cause(name: str, *, rank: int, source: str) -> Callable[[Callable[[Suspect], Iterator[Hypothesis]]], Cause]:
    """Declare a cause over a Suspect; it yields no hypothesis where it does not apply. The docstring sums it
    up, and has the paragraphs "To confirm: " and "To do: ".
    """

    def register(function: Callable[[Suspect], Iterator[Hypothesis]]) -> Cause:
        if name in CAUSES or any(known.rank == rank for known in CAUSES.values()):
            raise ValueError(f"cause {name}, rank {rank}, is declared twice")
        CAUSES[name] = Cause(name, rank, source, function)
        return CAUSES[name]

    return register
