"""Threads that help with runs: what concurrent.futures has of it, without the modules that it imports to log."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
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
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = 0
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[HelperCall | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        self._end = finalize(self, self._tasks.put, None)
        self._end.atexit = False

    def submit(self, call: Callable[..., object], *arguments: Any) -> HelperCall:
        task = HelperCall(call, arguments)
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
