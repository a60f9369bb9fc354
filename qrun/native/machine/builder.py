"""A thread that compiles, while those who want kernels plan the next ones."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from qrun.native.machine.helpers import HelperCall, Helpers

T = TypeVar("T")
_SWITCH = 2e-4
"""Seconds after which Python lets the thread have its lock: it wants it for a moment between two calls of LLVM, and would
wait 5 ms for it each time."""


class Awaited(Generic[T]):
    """What a thread makes, or somebody has made."""

    def __init__(self, made: T | None = None, call: HelperCall | None = None) -> None:
        self._made, self._call = made, call

    def get(self) -> T:
        """It, when it is made. Raises what making it raised."""
        if self._call is not None:
            self._call.wait()
        made: Any = self._made
        return made  # type: ignore[no-any-return]

    def _make(self, make: Callable[[], T]) -> None:
        try:
            self._made = make()
        finally:
            _switching.end()


class Builder:
    """Makes one thing after the other, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._helpers = Helpers(1)

    def later(self, make: Callable[[], T]) -> Awaited[T]:
        found: Awaited[T] = Awaited()
        _switching.begin()
        found._call = self._helpers.submit(found._make, make)
        return found


class _Switching:
    """Lets threads take turns often as long as somebody builds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._building, self._usual = 0, 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._building:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _SWITCH))
            self._building += 1

    def end(self) -> None:
        with self._lock:
            self._building -= 1
            if not self._building:
                sys.setswitchinterval(self._usual)


_switching = _Switching()
