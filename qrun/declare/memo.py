"""What is made once and kept beside its owner."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Memo:
    """Results by key, made when they are asked for first: what of a node's kernels does not depend on its shapes."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` made for this key, now or before."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made


class Remembering(Protocol):
    """What has a memo of its own."""

    @property
    def memo(self) -> Memo: ...


R = TypeVar("R", bound=Remembering)


def memoize(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """A method whose results are kept in its owner's memo:
    each is made once for the same arguments, which are hashable."""

    def found(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.memo.once((method.__name__, *args, *kwargs.items()), lambda: method(self, *args, **kwargs))

    found.__doc__ = method.__doc__
    return found
