"""Runs tasks in several processes, each with its share of the CPUs; a process that dies loses no result."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from qrun.running.cpus import usable_cpus

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 2
"""Tasks submitted ahead for each process; this bounds the memory."""
TRIES = 3
"""The most starts of a task whose process dies each time."""


def run_in_crew(
    start: Callable[[int], Callable[[Task], Result]], tasks: Iterator[Task], jobs: int, lost: Callable[[Task], Result]
) -> Iterator[Result]:
    """The results of tasks, in the order in which they are ready. Tasks of a process that dies are done again.

    start: called in each process with its number of threads; returns the function that does a task. Like tasks and
           results it is pickled.
    lost:  makes the result of a task that was started three times and whose process died each time.
    """
    crew = _Crew(start, jobs)
    more = True
    try:
        while more or crew.busy:
            while more and crew.free:
                try:
                    crew.submit(next(tasks), 0)
                except StopIteration:
                    more = False
            yield from crew.wait_for_results(lost)
    finally:
        crew.end()


class _Crew(Generic[Task, Result]):
    """The pool of processes. Suspects: tasks that may have ended a process, and how often; they run one at a time."""

    def __init__(self, start: Callable[[int], Callable[[Task], Result]], jobs: int) -> None:
        self._start, self._jobs = start, jobs
        self._pending: dict[Future[Result], tuple[Task, int]] = {}
        self._suspects: list[tuple[Task, int]] = []
        self._pool = self._processes()

    @property
    def busy(self) -> bool:
        """Whether tasks are running or wait to be tried again."""
        return bool(self._pending or self._suspects)

    @property
    def free(self) -> bool:
        """Whether the pool takes another task now."""
        return not self._suspects and len(self._pending) < self._jobs * AHEAD

    def submit(self, task: Task, tries: int) -> None:
        """Give a task to the pool; `tries` counts its earlier attempts. A broken pool is replaced."""
        try:
            self._pending[self._pool.submit(_work, task)] = task, tries
        except BrokenProcessPool:
            self._suspects.append((task, tries))
            self._renew()

    def wait_for_results(self, lost: Callable[[Task], Result]) -> Iterator[Result]:
        """Wait until a task is done or a process has died; yield the results."""
        if self._suspects and not self._pending:
            task, tries = self._suspects.pop(0)
            if tries >= TRIES:
                yield lost(task)
                return
            self.submit(task, tries)
        broken = False
        for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
            task, tries = self._pending.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool:
                self._suspects.append((task, tries + 1))
                broken = True
        if broken:
            self._renew()

    def _renew(self) -> None:
        """Start a new pool: when one process dies, its whole pool is lost. Unfinished tasks become suspects."""
        self._suspects += [(task, tries + 1) for task, tries in self._pending.values()]
        self._pending.clear()
        self.end()
        self._pool = self._processes()

    def end(self) -> None:
        """Shut the pool down without waiting for its tasks."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _processes(self) -> ProcessPoolExecutor:
        """A new pool of worker processes."""
        context = get_context("spawn")
        counter = context.Value("i", 0)
        return ProcessPoolExecutor(self._jobs, context, _begin, (self._start, self._jobs, counter, os.getpid()))


_do: Callable[[Any], Any] | None = None


def _begin(start: Callable[[int], Callable[[Any], Any]], jobs: int, counter: Any, parent: int) -> None:
    """In a new process: take the next share of the CPUs, and end with the parent."""
    global _do
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    threads = max(usable_cpus() // jobs, 1)
    if hasattr(os, "sched_setaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
        share = cpus[number % jobs * len(cpus) // jobs : (number % jobs + 1) * len(cpus) // jobs]
        with suppress(OSError):
            os.sched_setaffinity(0, share or cpus)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _do = start(threads)


def _follow(parent: int) -> None:
    """End this process when its parent is gone: nobody would take its results."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(task: Any) -> Any:
    """Do one task, in a worker process."""
    assert _do is not None
    return _do(task)
