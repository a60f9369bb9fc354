"""A thread that compiles, while those who want kernels plan the next ones."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from qrun.native.machine.helpers import Helpers

T = TypeVar("T")
_SWITCH = 2e-4
"""Seconds after which Python lets the thread have its lock: it wants it for a moment between two calls of LLVM, and would
wait 5 ms for it each time."""


class Awaited(Generic[T]):
    """What a thread makes, or somebody has made.

    size: about how much work it is. after: called when it is made, or cannot be.
    """

    def __init__(
        self,
        made: T | None = None,
        make: Callable[[], T] | None = None,
        size: int = 0,
        after: Callable[[Awaited[T]], None] | None = None,
    ) -> None:
        self.size = size
        self._made, self._make, self._after = made, make, after
        self._error: Exception | None = None
        self._begun, self._ended = threading.Lock(), threading.Lock()

    def get(self) -> T:
        """It: made now, if nobody has begun. Raises what making it raised."""
        while self._make is not None:
            self.begin()
            with self._ended:
                pass
        if self._error is not None:
            raise self._error
        made: Any = self._made
        return made  # type: ignore[no-any-return]

    def begin(self) -> None:
        """Make it now, unless somebody did, or does. Ctrl-C meanwhile leaves it as if nobody had begun."""
        if not self._begun.acquire(blocking=False) or self._make is None:
            return
        try:
            with self._ended:
                try:
                    self._made = self._make()
                except Exception as error:
                    self._error = error
                finally:
                    if self._after is not None:
                        self._after(self)
                self._make = self._after = None
        except BaseException:
            self._begun.release()
            raise

    @property
    def waits(self) -> bool:
        """Whether nobody has begun to make it."""
        return not self._begun.locked()


class Builder:
    """Makes in a thread what was asked for, one after the other; then what may be needed, least work first."""

    def __init__(self) -> None:
        self._helpers = Helpers(1)
        self._lock = threading.Lock()
        self._certain: list[Awaited[Any]] = []
        self._possible: list[Awaited[Any]] = []
        self._counted: set[Awaited[Any]] = set()
        self._foreseeing = 0

    def later(self, make: Callable[[], T], size: int = 0, likely: bool = True) -> Awaited[T]:
        """What is made, by the thread or by who cannot wait for it. likely: whether what may be needed mostly is."""
        found: Awaited[T] = Awaited(make=make, size=size, after=self._forget)
        with self._lock:
            if self._foreseeing and not likely:
                return found
            (self._possible if self._foreseeing else self._certain).append(found)
            self._counted.add(found)
            _switching.begin()
        self._helpers.submit(self._next)
        return found

    @contextmanager
    def foreseeing(self) -> Iterator[None]:
        """Meanwhile it is not certain that what is asked for will be needed; at the end what nobody has begun is left to who
        waits for it."""
        with self._lock:
            self._foreseeing += 1
        try:
            yield
        finally:
            with self._lock:
                self._foreseeing -= 1
                left, self._possible = ([], self._possible) if self._foreseeing else (self._possible, [])
            for awaited in left:
                self._forget(awaited)

    def finish(self, wanted: Sequence[Awaited[Any]]) -> None:
        """Until all of these are made, by this thread too, most work first. Raises what making one raised."""
        left = sorted((awaited for awaited in wanted if awaited.waits), key=lambda awaited: -awaited.size)
        with self._lock:
            self._certain[:0] = left
        for _ in left:
            self._helpers.submit(self._next)
        for awaited in left:
            awaited.begin()
        for awaited in wanted:
            awaited.get()

    def _next(self) -> None:
        """Make what is to be made next, if anything is left."""
        with self._lock:
            self._certain = [awaited for awaited in self._certain if awaited.waits]
            self._possible = [awaited for awaited in self._possible if awaited.waits]
            if self._certain:
                found = self._certain.pop(0)
            elif self._possible:
                found = min(self._possible, key=lambda awaited: awaited.size)
            else:
                return
        found.begin()

    def _forget(self, awaited: Awaited[Any]) -> None:
        """It is made, or nobody may ever want it."""
        with self._lock:
            if awaited in self._counted:
                self._counted.remove(awaited)
                _switching.end()


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
