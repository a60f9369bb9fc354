"""The processes that run cases: all of them end when the judgement does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, current_thread, main_thread
from typing import IO, Any

FIRST, AGAIN = 170, 51
"""What glibc writes into free memory in the process that runs all cases, and in the one that runs wrong cases again:
these codes, or in memory fresh from malloc their complements. So a runtime that reads memory without writing it first
gives no right answer by chance, and other answers in the two processes."""


class Stopped(Exception):
    """The judgement ends: no process starts any more."""


class Processes:
    """The processes of one judgement, which its threads share.

    answered: whether a program among them has answered a case.
    """

    def __init__(self) -> None:
        self.answered = False
        self._lock, self._stopped = Lock(), False
        self._running = set[subprocess.Popen[bytes]]()

    def start(
        self, words: Sequence[str], poison: int, *, stdin: int, stdout: int, stderr: int | IO[Any]
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own. poison: see `FIRST`. Raises OSError if it cannot be started, and
        Stopped after `stop`."""
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                words,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, "MALLOC_PERTURB_": str(poison)},
            )
            self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, or what is left of its group."""
        _kill(process)
        process.wait()
        with self._lock:
            self._running.discard(process)

    def stop(self) -> None:
        """Kill all processes, and start no other one."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)
                process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError, AttributeError):  # Windows has no groups
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


@contextmanager
def heed_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, and let it end this process after the block. Does nothing outside of the main
    thread, or where SIGTERM has a handler."""
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    got: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        if not got:
            got.append(number)
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if got:
            signal.raise_signal(signal.SIGTERM)
