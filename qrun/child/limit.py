"""A limit on the memory that a runtime takes, where the system can set one: on Linux."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WORDS = re.compile(
    r"MemoryError|bad_alloc|bad allocation|failed to allocate memory|cannot allocate memory", re.IGNORECASE
)


@contextmanager
def limited(nbytes: int | None) -> Iterator[None]:
    """Let this process take no more than `nbytes` on top of what it has; None: as much as there is."""
    if nbytes is None or sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
    allowed = used + nbytes if before[1] == resource.RLIM_INFINITY else min(used + nbytes, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def out_of_memory(words: str) -> bool:
    """Do these words say that there was no memory left?"""
    return bool(_WORDS.search(words))
