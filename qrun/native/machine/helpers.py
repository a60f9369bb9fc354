"""Threads that help with runs: what concurrent.futures has of it, without the modules that it imports to log."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
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
        """Whether the call has not begun, and now never will."""
        return self._begun.acquire(blocking=False)

    def wait(self) -> None:
        """Until the call has ended. Raises what it raised."""
        with self._ended:
            if self._error is not None:
                raise self._error

    def run(self) -> None:
        """Make the call unless it is cancelled, and hold nothing of it any longer."""
        if self._call is not None and self.cancel():
            call, arguments = self._call
            try:
                call(*arguments)
            except BaseException as error:
                self._error = error
            self._ended.release()
        self._call = None


class Helpers:
    """Up to `count` threads that make the calls handed to them. One starts when none is idle.

    They end when nobody holds this object any more, and with the process. That waits for the calls that have begun: these
    may be in compiled code, on memory that goes away then.

    Where there are processors for all of them, none wakes on that of the thread that calls: Linux may put a thread there though
    others are idle, and then moves it after milliseconds.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = 0
        self._threads: list[threading.Thread] = []
        self._apart: int | None = None
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[HelperCall | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        self._end = finalize(self, self._tasks.put, None)
        self._end.atexit = False

    def submit(self, call: Callable[..., object], *arguments: Any) -> HelperCall:
        task = HelperCall(call, arguments)
        if (here := _processor()) != self._apart:
            self._keep_apart(here)
        self._tasks.put(task)
        try:
            self._idle.pop()
        except IndexError:
            self._start()
        return task

    def _start(self) -> None:
        with self._lock:
            if self._started < self._count:
                self._started += 1
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
"""Where each thread waits for calls; None among them tells it to end."""


def _work(tasks: SimpleQueue[HelperCall | None], idle: deque[None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task
        if tasks.empty():
            idle.append(None)
    tasks.put(None)  # for the others


@atexit.register
def _wait() -> None:
    threads = list(_queues.items())
    for _, tasks in threads:
        tasks.put(None)
    for thread, _ in threads:
        thread.join()


def _processor() -> int | None:
    """The number of the processor on which this thread is, None where that is not known."""
    ask = _asking()
    return ask() if ask is not None else None


@cache
def _asking() -> Callable[[], int] | None:
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)


@cache
def yielding() -> int:
    """The address of the system's function that lets other threads have this one's processor: without operands, it returns an
    int. 0 where there is none."""
    try:
        function = ctypes.CDLL("kernel32").SwitchToThread if sys.platform == "win32" else ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
