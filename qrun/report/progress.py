"""One line on stderr for long work: what, how far, time left. Only on a terminal, gone when the work is done."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from qrun.report.screen import Out, Screen

QUIET_FOR = 0.1
EVERY = 0.1


class Progress:
    """``with Progress(out, "profile") as progress: ... progress(done, total, seconds_left)``."""

    def __init__(self, out: Out, what: str, unit: str = "runs") -> None:
        self.screen: Screen = out.messages
        self.what = what
        self.unit = unit
        self.active = self.screen.terminal and not out.quiet
        self.next = monotonic() + QUIET_FOR
        self.shown = 0

    def __call__(self, done: int, total: int | None, left: float | None) -> None:
        if not self.active or monotonic() < self.next:
            return
        self.next = monotonic() + EVERY
        text = f"{self.what}: {done}{f' of {total}' if total else ''} {self.unit}"
        text += f", {left:.1f} s left" if left is not None else ""
        self.screen.stream.write("\r" + text.ljust(self.shown))
        self.screen.stream.flush()
        self.shown = len(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self.screen.stream.write("\r" + " " * self.shown + "\r")
            self.screen.stream.flush()
