"""Objects that live in a process of their own, so that one can crash, or pin its threads, without harm to others."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from _engines import one_line

TIMEOUT = 600.0


class WorkerError(Exception):
    """What went wrong in a worker, in one line; its process is gone if `dead`."""

    def __init__(self, reason: str, dead: bool = True) -> None:
        super().__init__(reason)
        self.dead = dead


class Worker:
    """An object made by `make(*arguments)` in a new process with `environment` added; `ask` calls its methods."""

    def __init__(self, make: Any, *arguments: Any, environment: Mapping[str, str] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        before = dict(os.environ)
        os.environ.update(environment or {})
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, *arguments: Any) -> Any:
        """Raises WorkerError if the method raises, or the process ends or is silent for TIMEOUT seconds."""
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise WorkerError(self._end()) from None
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(TIMEOUT):
                raise WorkerError(f"no answer for {TIMEOUT:.0f} s")
            good, value = self._pipe.recv()
        except (EOFError, OSError):
            raise WorkerError(self._end()) from None
        if not good:
            raise WorkerError(value, dead=False)
        return value

    def _end(self) -> str:
        self._process.join(10)
        code = self._process.exitcode or 0
        try:
            return f"ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"ended with exit code {code}"


def _serve(pipe: Any, make: Any, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        good, worker = _try(make, arguments)
        pipe.send((good, None if good else worker))
        while good:
            method, given = pipe.recv()
            pipe.send(_try(getattr(worker, method), given))


def _try(function: Any, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except Exception as error:
        return False, one_line(error)
