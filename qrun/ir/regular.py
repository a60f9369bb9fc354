"""Files that a model, a test vector or a repository names: opened only if they are regular, read only up to a limit.

A link may lead to /dev/zero, which never ends, or to a pipe to which nobody writes.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

from qrun.memory import Budget

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_HANDLES = ("/dev/", "/proc/")
"""Where open files of this process have names, such as /dev/stdin, or /dev/fd/63 for ``<(COMMAND)`` of a shell."""


def open_regular(path: Path, pipes: bool = False) -> FileIO:
    """Open a regular file for reading, without waiting for whoever writes to a pipe.

    pipes: also open a pipe that this process was started with.
    Raises OSError for anything else.
    """
    handle = os.open(path, _FLAGS)
    try:
        mode = os.fstat(handle).st_mode
        if pipes and stat.S_ISFIFO(mode) and os.path.realpath(path).startswith(_HANDLES):
            os.set_blocking(handle, True)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except BaseException:
        os.close(handle)
        raise
    return FileIO(handle, "rb")


def read_regular(path: Path, budget: Budget) -> bytes:
    """The content of a regular file.

    Raises OSError where it cannot be read, MemoryLimitError, before anything is read, where it is too large.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        budget.claim((size,), 1, str(path))
        return stream.read(size)
