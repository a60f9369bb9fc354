"""How the rest is declared, at little cost to a process that starts.

`frozen` makes immutable records; a `Registry` finds what the modules of a package declare, and imports only those asked
for; `Later` stands for a module that most processes do not need; an answer whose class derives from `InNotebook` looks
in a notebook as it does in the terminal; `grouped` collects the values of each key.

May be imported by everything. Knows nothing of qrun.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Later:
    """A module that is imported when the first of its names is asked for.

    For what only errors, or models of some kind, need::

        if TYPE_CHECKING:
            from qrun.io import inputerrors
        else:
            inputerrors = Later("qrun.io.inputerrors")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; keys, and values of one, in the order in which they come."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class InNotebook:
    """An answer that a notebook shows as HTML, which `qrun.report.notebook` makes when one asks for it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module("qrun.report.notebook").html_of(self))
