"""What is made once and kept beside its owner."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


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
