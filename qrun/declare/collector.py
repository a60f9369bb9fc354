"""Python's search for circles of objects, held off while many are made that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_holding = 0


@contextmanager
def uncollected() -> Iterator[None]:
    """Meanwhile circles of objects are not looked for, in no thread.

    A plan is ten thousands of objects, all of which stay: looking through them, and through all that the process had
    before, again and again took a tenth to a fifth of the time that planning takes. A process that does without anyway
    is left so.
    """
    global _holding
    with _lock:
        if not (_holding or gc.isenabled()):
            held = False
        else:
            held = True
            _holding += 1
            gc.disable()
    try:
        yield
    finally:
        if held:
            with _lock:
                _holding -= 1
                if not _holding:
                    gc.enable()
