"""One line on stderr during long work: the work, how much is done, the time left. It appears only on a terminal, and is
erased before anything else is written."""

from __future__ import annotations

from threading import Event, Lock, Thread
from time import monotonic
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from qrun.report.screen import Out, Screen
from qrun.report.text import encodable

if TYPE_CHECKING:
    from threading import Thread

QUIET_FOR = 0.8
"""Seconds without any output after which the line appears."""
EVERY = 0.25
LONG = 30
"""Columns of the bar, at most."""


class ProgressLine:
    """The line of a process: ``with ProgressLine(out, "compare")``. A thread draws it while other threads work.

    Writing to a screen of `out` clears the line first.
    """

    def __init__(self, out: Out, what: str) -> None:
        self.screen: Screen = out.messages
        self.out, self.what, self.unit = out, what, ""
        self.state: tuple[int, int | None, float | None] | None = None
        self.active = self.screen.terminal and not out.quiet
        self.shown = 0
        self._thread: Thread | None = None

    def __enter__(self) -> ProgressLine:
        if not self.active:
            return self

        self._begun = self._quiet = monotonic()
        self._lock, self._ended = Lock(), Event()
        self._streams = [
            (screen, screen.stream) for screen in {id(s): s for s in (self.out.result, self.screen)}.values()
        ]
        self._bare = self.screen.stream
        for screen, stream in self._streams:
            screen.stream = cast("IO[str]", _Clearing(stream, self))
        self.out.progress = self
        self._thread = Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self.clear()
        self.out.progress = None
        for screen, stream in self._streams:
            screen.stream = stream

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            with self._lock:
                if monotonic() - self._quiet >= QUIET_FOR:
                    self._draw()

    def _draw(self) -> None:
        text = self.text(monotonic() - self._begun)
        self._bare.write("\r" + text.ljust(self.shown))
        self._bare.flush()
        self.shown = len(text)

    def clear(self) -> None:
        """Erases the line; it comes back when nothing else has been written for a while."""
        with self._lock:
            if self.shown:
                self._bare.write("\r" + " " * self.shown + "\r")
                self._bare.flush()
            self.shown, self._quiet = 0, monotonic()

    def text(self, seconds: float) -> str:
        """The line's text after that many seconds, cut to one line of the screen."""
        if self.state is None:
            return f"{self.what}: {_time(seconds)}"[: self._room]
        done, total, left = self.state
        count = f"{done}{f' of {total}' if total else ''} {self.unit}"
        rest = f", {_time(left)} left" if left is not None else ""
        width = min(LONG, self._room - len(f"{self.what}:  {count}{rest}") - 1)
        bar = f"{self._bar(done / total, width)} " if total and width > 4 else ""
        return f"{self.what}: {bar}{count}{rest}"[: self._room]

    @property
    def _room(self) -> int:
        return (self.screen.width or 80) - 1

    def _bar(self, share: float, width: int) -> str:
        full, empty = ("━", "─") if encodable("━─", self.screen.encoding) else ("#", "-")
        filled = round(min(max(share, 0.0), 1.0) * width)
        return full * filled + empty * (width - filled)


class _Clearing:
    """A stream that clears the line before each write."""

    def __init__(self, stream: IO[str], line: ProgressLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        self._line.clear()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """Reports the progress of one part of a command's work to the line: ``with Progress(out, "profile") as progress:
    ... progress(done, total, left)``."""

    def __init__(self, out: Out, what: str, unit: str = "runs") -> None:
        self.line, self.what, self.unit = out.progress, what, unit

    def __call__(self, done: int, total: int | None, left: float | None) -> None:
        """done: how much is done of `total`, None if unknown; left: seconds, None if unknown."""
        if self.line is not None:
            self.line.state = (done, total, left)

    def __enter__(self) -> Progress:
        if self.line is not None:
            self._before = self.line.what, self.line.unit, self.line.state
            self.line.what, self.line.unit, self.line.state = self.what, self.unit, None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.line is not None:
            self.line.what, self.line.unit, self.line.state = self._before


def _time(seconds: float) -> str:
    """``9.5 s``, ``42 s``, ``2 min 5 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
