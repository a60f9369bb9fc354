"""Memo: results that are computed once and kept with their owner."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Memo:
    """Results by key, computed on first request: for a node, the parts of its kernels that do not depend on shapes."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` for this key, computed now or before."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made


class Remembering(Protocol):
    """An object with a memo of its own."""

    @property
    def memo(self) -> Memo:
        """The memo that keeps results."""


R = TypeVar("R", bound=Remembering)


def memoize(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """A method whose results are kept in its owner's memo: each is computed once for the same arguments, which are
    hashable."""

    def found(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.memo.once((method.__name__, *args, *kwargs.items()), lambda: method(self, *args, **kwargs))

    found.__doc__ = method.__doc__
    return found
