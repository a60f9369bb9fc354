"""qrun's side of the child process: starts it, sends requests, and reports how it ended."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, Lock, RLock, Thread
from typing import IO, Any

from qrun.child.serve import out_of_memory, read, write

SERVER = "import sys; sys.path[:] = sys.argv[1:]; from qrun.child.serve import main; main()"
"""The code that the child executes; it finds modules where this process does."""
_ENDING = 10.0
"""Seconds to wait for a child that has closed its pipe to end."""
_NUMBERS = count()


class Failed(Exception):
    """The runtime raised an exception of its own, as ``Type: text``."""

    @property
    def memory(self) -> bool:
        """Whether it ran out of memory."""
        return out_of_memory(str(self))


class Crash(Exception):
    """The child ended before it answered.

    how: a word, such as ``crashed``. sign: ``SIGSEGV``, ``exit code 3``. last: its last line on stderr, or "".
    """

    def __init__(self, how: str, sign: str, last: str = "") -> None:
        super().__init__(f"{how} ({sign})")
        self.how = how
        self.sign = sign
        self.last = last

    @property
    def memory(self) -> bool:
        """Whether it ran out of memory."""
        return out_of_memory(self.last)


class Slow(Exception):
    """The child did not answer in time. It has been ended."""


class Child:
    """A process that runs other runtimes. It ends when this process does, however that ends. Raises Crash if it cannot
    start."""

    def __init__(self) -> None:
        self._log = _log()
        self._lock = Lock()
        self._dropped: list[int] = []
        self._answers: SimpleQueue[tuple[int, bool, Any] | None] = SimpleQueue()
        paths = [path for path in sys.path if isinstance(path, str)]
        try:
            self._process = subprocess.Popen(
                [sys.executable or "python", "-W", "ignore", "-c", SERVER, *paths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log or subprocess.DEVNULL,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as error:
            raise Crash("could not be started", str(error)) from error
        Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, name: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Sends a request and returns the answer. Raises Failed with the runtime's words, Crash if the child ends
        before it answers, Slow if it takes longer than `seconds`.

        Ctrl-C during the wait leaves the child at work; its answer is then ignored.
        """
        with self._lock:
            number = self._send(name, arguments)
            while True:
                try:
                    answer = self._answers.get(timeout=None if seconds is None else min(seconds, TIMEOUT_MAX))
                except Empty:
                    self.close()
                    raise Slow from None
                if answer is None:
                    raise self._reap()
                if answer[0] == number:
                    break
        if not answer[1]:
            raise Failed(answer[2])
        return answer[2]

    def tell(self, name: str, *arguments: Any) -> None:
        """Sends a request without waiting for the answer."""
        with self._lock, suppress(Crash):
            self._send(name, arguments)

    def drop(self, handle: int) -> None:
        """Makes the child forget an object: now, or with the next request if one is under way.

        Else threads of an unused session would go on spinning. The garbage collector calls this, anywhere.
        """
        self._dropped.append(handle)
        if self in _children and self._lock.acquire(blocking=False):
            try:
                with suppress(Crash):
                    self._send("drop", ())
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends the process, now."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._log):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def leave(self) -> None:
        """Gives up the parent's child in a forked process. Data that this process still has to write to that child's
        pipe goes nowhere."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._process.stdin.fileno())

    def _send(self, name: str, arguments: tuple[Any, ...]) -> int:
        """Send a request; returns its number. Raises Crash."""
        number, dropped = next(_NUMBERS), self._dropped[:]
        assert self._process.stdin is not None
        try:
            write(self._process.stdin, (number, dropped, name, arguments))  # type: ignore[arg-type]
        except (OSError, ValueError):
            raise self._reap() from None
        except BaseException:
            self.close()
            raise
        del self._dropped[: len(dropped)]
        return number

    def _reap(self) -> Crash:
        """Wait for the process that ended; returns how it did."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)
        code = self._process.poll()
        crash = Crash(*_how(code), _last_line(self._log))
        self.close()
        return crash


class RemoteObject:
    """An object that the child keeps under a number for later requests: a loaded model, or feeds.

    A request makes it. If the child has ended since, the request is sent again to the new child, with arguments that
    `arguments` makes anew. answer: the answer to the request. Raises Failed and Crash.
    """

    def __init__(self, name: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
        self._name = name
        self._arguments = arguments
        self._child: Child | None = None
        self._make()

    @property
    def handle(self) -> int:
        """Its number in the child that runs now."""
        with alone():
            if self._child is not current_child():
                self._make()
            return self._handle

    def forget(self) -> None:
        """Makes the child drop the object; the next request makes it anew."""
        self._finalizer()
        self._child = None

    def _make(self) -> None:
        """Make the object in the current child process."""
        with alone():
            self._child, self._handle = current_child(), next(_NUMBERS)
            self._finalizer = weakref.finalize(self, self._child.drop, self._handle)
            self._finalizer.atexit = False
            self.answer = self._child.ask(self._name, self._handle, *self._arguments())


_children: list[Child] = []
"""The child of this process, if any."""
_turn = RLock()


def alone() -> RLock:
    """The lock for requests that need the same child: while a thread holds it, no other thread can start another child
    or learn that this one has ended."""
    return _turn


def current_child() -> Child:
    """The child of this process; starts another one if it has ended."""
    with alone():
        if _children and not _children[0].alive:
            _children.pop().close()
        if not _children:
            _children.append(Child())
        return _children[0]


def start(runtime: str) -> None:
    """Makes the child import a runtime in the background, if no child exists yet."""
    if not _children:
        with suppress(Crash):
            current_child().tell("version", runtime)


def _end() -> None:
    """End all child processes."""
    while _children:
        _children.pop().close()


def _reset_after_fork() -> None:
    """Runs in a forked process: it gets a child of its own, and does not keep the pipe of the parent's child open."""
    global _turn
    _turn = RLock()
    while _children:
        _children.pop().leave()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _listen(stream: Any, answers: SimpleQueue[tuple[int, bool, Any] | None]) -> None:
    """Puts every message of the child into `answers`; runs in a thread, so that Ctrl-C never cuts a message in two."""
    with stream, suppress(OSError, EOFError):
        while True:
            answers.put(read(stream))
    answers.put(None)


def _log() -> IO[bytes] | None:
    """An unnamed file for the output of the child's libraries."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return None


def _last_line(log: IO[bytes] | None) -> str:
    """The last line of a child's log."""
    if log is None or log.closed:
        return ""
    log.seek(max(log.seek(0, os.SEEK_END) - 4096, 0))
    lines = log.read().decode(errors="replace").split("\n")
    return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")


def _how(code: int | None) -> tuple[str, str]:
    """Describes an exit code: of POSIX, where those of signals are negative, or of Windows."""
    if code is None:
        return "was stopped", "it closed its pipe"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return "was killed" if name in ("SIGKILL", "SIGTERM") else "crashed", name
    return ("crashed", f"exit code {code:#010x}") if code >= 2**31 else ("ended", f"exit code {code}")
