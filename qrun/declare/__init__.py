"""Building blocks for declarations, at little cost to a process that starts.

`frozen` makes immutable records; a `Registry` finds the declarations in a package's modules, and imports only the
modules requested; `Later` defers the import of a module that most processes do not need; a class derived from
`InNotebook` looks in a notebook, and printed, as it does in the terminal; `grouped` collects the values of each key.

May be imported by everything. Knows nothing of qrun.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Later:
    """A module that is imported when one of its names is first accessed.

    For modules that only errors, or models of some kind, need::

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
    """The values of each key; keys, and values of one key, keep their order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class InNotebook:
    """An answer that `print` and a notebook show as the terminal does; `qrun.report.notebook` makes both on demand."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(import_module("qrun.report.notebook").text_of(self))

    def _repr_html_(self) -> str:
        """The object as HTML, for notebooks."""
        return str(import_module("qrun.report.notebook").html_of(self))
