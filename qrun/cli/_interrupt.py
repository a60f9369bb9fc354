"""Ctrl-C of the command from its first line to its last: `qrun` itself holds it until `heed`, after `finish` it ends the process at once.

Only in a process of the command is anything changed; whoever calls `main` keeps their handler.
"""

from __future__ import annotations

import signal

import qrun


def heed() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt; now, if it came before."""
    if signal.getsignal(signal.SIGINT) is qrun._hold:
        signal.signal(signal.SIGINT, _raise)
        if qrun._held:
            raise KeyboardInterrupt


def finish() -> None:
    """From here on Ctrl-C ends the process at once: all that is left is printing."""
    if signal.getsignal(signal.SIGINT) is _raise:
        qrun._held.append(signal.SIGINT)
        signal.signal(signal.SIGINT, qrun._hold)


def _raise(number: int, frame: object) -> None:
    raise KeyboardInterrupt
