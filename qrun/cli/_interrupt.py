"""Ctrl-C of the command from its first line to its last: `qrun` itself holds it until `heed`,
after `finish` it ends the process at once.

Only in a process of the command is anything changed; whoever calls `main` keeps their handler.
`main` may be called again.
"""

from __future__ import annotations

import os
import signal

import qrun


def heed() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt; now, if it came before."""
    if signal.getsignal(signal.SIGINT) in (qrun._hold, _end):
        signal.signal(signal.SIGINT, _raise)
        if qrun._held:
            qrun._held.clear()
            raise KeyboardInterrupt


def finish() -> None:
    """From here on Ctrl-C ends the process at once: all that is left is printing."""
    if signal.getsignal(signal.SIGINT) is _raise:
        signal.signal(signal.SIGINT, _end)


def _raise(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
