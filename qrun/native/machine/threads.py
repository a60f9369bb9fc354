"""Threads that help with runs, and one that compiles kernels while their users plan the next ones.

They do the work of concurrent.futures, without the modules that it imports to log.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

try:
    from _queue import SimpleQueue
except ImportError:
    from queue import SimpleQueue


class HelperCall:
    """A call that a thread will make, unless it is cancelled before it begins."""

    def __init__(self, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._call: tuple[Callable[..., object], tuple[object, ...]] | None = (call, arguments)
        self._error: BaseException | None = None
        self._begun, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()

    def cancel(self) -> bool:
        """Cancel the call if it has not begun; returns whether it is cancelled."""
        return self._begun.acquire(blocking=False)

    def wait(self) -> None:
        """Wait until the call has ended. Raises what it raised."""
        with self._ended:
            if self._error is not None:
                raise self._error

    def run(self) -> None:
        """Make the call unless it is cancelled, and drop all references to it."""
        if self._call is not None and self.cancel():
            call, arguments = self._call
            try:
                call(*arguments)
            except BaseException as error:
                self._error = error
            self._ended.release()
        self._call = None


class Helpers:
    """Up to `count` threads that make the calls submitted to them. One starts when none is idle.

    They end when the last reference to this object is gone, and with the process, which waits for the calls that have
    begun: these may be in compiled code, on memory that goes away then.

    Where there are processors for all of them, none wakes on that of the calling thread: Linux may put a thread there
    though others are idle, and then moves it only after milliseconds.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._apart: int | None = None
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[HelperCall | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        self._end = finalize(self, self._tasks.put, None)
        self._end.atexit = False

    def submit(self, call: Callable[..., object], *arguments: Any) -> HelperCall:
        """Run a function in a helper thread; starts one if all are busy."""
        task = HelperCall(call, arguments)
        if (here := _processor()) != self._apart:
            self._keep_apart(here)
        self._tasks.put(task)
        try:
            self._idle.pop()
        except IndexError:
            self._start()
        return task

    def end(self) -> None:
        """End the threads after the calls that were submitted."""
        self._end()

    def _start(self) -> None:
        """Start another thread, unless there are enough."""
        with self._lock:
            if len(self._threads) < self._count:
                thread = threading.Thread(target=_work, args=(self._tasks, self._idle), name="qrun", daemon=True)
                _queues[thread] = self._tasks
                thread.start()
                self._threads.append(thread)
                self._apart = None

    def _keep_apart(self, here: int | None) -> None:
        """Let the threads wake on other processors than this one."""
        self._apart = here
        with suppress(OSError):  # a sandbox may forbid it
            rest = os.sched_getaffinity(0) - {here} if here is not None else set()
            for thread in self._threads if len(rest) >= self._count else ():
                if thread.native_id and thread.is_alive():
                    os.sched_setaffinity(thread.native_id, rest)


_queues: WeakKeyDictionary[threading.Thread, SimpleQueue[HelperCall | None]] = WeakKeyDictionary()
"""The queue of each thread; None in it tells the thread to end."""


def _work(tasks: SimpleQueue[HelperCall | None], idle: deque[None]) -> None:
    """A helper thread: run the tasks of a queue until a None comes."""
    while (task := tasks.get()) is not None:
        task.run()
        del task
        if tasks.empty():
            idle.append(None)
    tasks.put(None)  # for the others


@atexit.register
def _wait() -> None:
    """End all helper threads when Python ends."""
    threads = list(_queues.items())
    for _, tasks in threads:
        tasks.put(None)
    for thread, _ in threads:
        thread.join()


def _processor() -> int | None:
    """The number of the processor that runs this thread, None where that is not known."""
    return ask() if (ask := _getcpu_function()) is not None else None


@cache
def _getcpu_function() -> Callable[[], int] | None:
    """The C library's function for the current CPU; None if threads cannot be pinned to CPUs."""
    return getattr(ctypes.CDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None


@cache
def yield_address() -> int:
    """The address of the system's function, int f(void), that yields this thread's processor; 0 where there is none."""
    try:
        function = ctypes.CDLL("kernel32").SwitchToThread if sys.platform == "win32" else ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def system_call() -> int:
    """The address of the C library's `syscall` on Linux; 0 elsewhere."""
    function = getattr(ctypes.CDLL(None), "syscall", None) if sys.platform == "linux" else None
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


T = TypeVar("T")
_SWITCH = 2e-4
"""Seconds after which Python gives the GIL to the compiling thread. It needs the GIL for a moment between two calls of
LLVM, and would otherwise wait 5 ms for it each time."""


class Awaited(Generic[T]):
    """A result that a thread will make, or that exists already.

    size: an estimate of the work.
    """

    def __init__(self, made: T | None = None, make: Callable[[], T] | None = None, size: int = 0) -> None:
        self.size = size
        self._made, self._make = made, make
        self._error: Exception | None = None
        self._begun, self._ended = threading.Lock(), threading.Lock()

    def get(self) -> T:
        """The result; made now if nobody has begun to make it. Raises what making it raised."""
        while self._make is not None:
            self.begin()
            with self._ended:
                pass
        if self._error is not None:
            raise self._error
        made: Any = self._made
        return made  # type: ignore[no-any-return]

    def begin(self) -> None:
        """Make the result now, unless somebody has begun. If Ctrl-C interrupts this, the result counts as not begun."""
        if not self._begun.acquire(blocking=False) or self._make is None:
            return
        try:
            with self._ended:
                try:
                    self._made = self._make()
                except Exception as error:
                    self._error = error
                self._make = None
        except BaseException:
            self._begun.release()
            raise

    @property
    def waits(self) -> bool:
        """Whether nobody has begun to make it."""
        return not self._begun.locked()


class Builder:
    """Makes results in a thread: requested ones in order, then those that may be needed, the least work first."""

    def __init__(self) -> None:
        self._helpers = Helpers(1)
        self._lock = threading.Lock()
        self._certain: list[Awaited[Any]] = []
        self._possible: list[Awaited[Any]] = []
        self._foreseeing = 0
        self._ended = False

    def run_later(self, make: Callable[[], T], size: int = 0, likely: bool = True) -> Awaited[T]:
        """The awaited result of `make`. likely: if False, the thread does not make it ahead inside `speculate`."""
        found: Awaited[T] = Awaited(make=make, size=size)
        with self._lock:
            if self._foreseeing and not likely:
                return found
            (self._possible if self._foreseeing else self._certain).append(found)
        self._wake()
        return found

    @contextmanager
    def speculate(self) -> Iterator[None]:
        """A context for requests of results that may not be needed. At its end the thread drops those that nobody has
        begun: a caller of `get` makes them itself."""
        with self._lock:
            self._foreseeing += 1
        try:
            yield
        finally:
            with self._lock:
                self._foreseeing -= 1
                if not self._foreseeing:
                    self._possible = []

    def finish(self, wanted: Sequence[Awaited[Any]]) -> None:
        """Wait until all of these are made; this thread helps, most work first. Raises what making one raised."""
        left = sorted((awaited for awaited in wanted if awaited.waits), key=lambda awaited: -awaited.size)
        with self._lock:
            self._certain[:0] = left
        for _ in left:
            self._wake()
        for awaited in left:
            awaited.begin()
        for awaited in wanted:
            awaited.get()

    def end(self) -> None:
        """End the thread; a result that nobody has begun is made by the first caller of `get`."""
        self._ended = True
        self._helpers.end()

    def _wake(self) -> None:
        """Let the thread make one more result, unless it has ended."""
        if not self._ended:
            _switching.begin()
            self._helpers.submit(self._next)

    def _next(self) -> None:
        """Make the next result, if any is left."""
        try:
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
        finally:
            _switching.end()


class _Switching:
    """Shortens Python's switch interval while the thread of a Builder has work, so that threads take turns often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._building, self._usual = 0, 0.0

    def begin(self) -> None:
        """Make Python switch threads more often while something is built."""
        with self._lock:
            if not self._building:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _SWITCH))
            self._building += 1

    def end(self) -> None:
        """Switch threads as before when nothing is built any more."""
        with self._lock:
            self._building -= 1
            if not self._building:
                sys.setswitchinterval(self._usual)


_switching = _Switching()
