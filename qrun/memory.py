"""The memory guard: how much a run may use, and the account of what it uses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qrun.errors import MemoryLimitError

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip

ADDRESSABLE = 2**47
"""Bytes that a process can address."""
SMALL = 2**24
"""Up to so many bytes are taken without asking the system what is free, which takes longer than many nodes."""


def human(nbytes: int) -> str:
    """A count of bytes in memory for people: ``20.3 GiB``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def file_size(nbytes: int) -> str:
    """A length of a file for people, as file managers show it: ``3.6 MB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def parse_size(text: str) -> int:
    """``8GiB``, ``500 MB``, ``1e9`` or ``4096`` in bytes; ValueError if it is none of these."""
    text = text.strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip()
    size = float(number) * UNITS[unit] if unit in UNITS and number else math.nan
    if not 0 < size < 2**62:
        raise ValueError(text)
    return int(size)


def available() -> int | None:
    """Bytes of memory that this process can still take (half of all memory where only that is known), or None."""
    found: list[int] = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return max(min(found), 0) if found else None


def default_limit() -> int:
    """80 % of what is free; 4 GiB where the system does not tell."""
    free = available()
    return 4 * 2**30 if free is None else free * 4 // 5


def _owner(array: Any) -> Any:
    """The array that owns the memory which `array` views."""
    while isinstance(array.base, type(array)):
        array = array.base
    return array


def _rounded_up(nbytes: int) -> str:
    """A size of at least so many bytes, as `parse_size` reads it: ``21GiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= 4 * size or unit == "KiB":
            return f"{-(-nbytes // size)}{unit}"
    raise AssertionError


class Budget:
    """What a run may hold at once, in bytes, and what it holds now.

    `limit` None means no limit. `hold` and `release` count each buffer once, however many arrays view it.
    `claim` is called by a kernel before it makes a tensor that its inputs do not bound, so that a small hostile
    model cannot take the machine down.
    """

    __slots__ = ("_limit", "_views", "live", "peak")

    def __init__(self, limit: int | Callable[[], int] | None = None) -> None:
        self._limit = limit
        self.live = 0
        self.peak = 0
        self._views: dict[int, int] = {}

    @property
    def limit(self) -> int | None:
        """Found out when first asked for, if a function was given."""
        if callable(self._limit):
            self._limit = self._limit()
        return self._limit

    def hold(self, array: Any) -> None:
        owner = _owner(array)
        views = self._views.get(id(owner), 0)
        self._views[id(owner)] = views + 1
        if not views:
            self.live += owner.nbytes
            self.peak = max(self.peak, self.live)

    def release(self, array: Any) -> None:
        owner = _owner(array)
        self._views[id(owner)] -= 1
        if not self._views[id(owner)]:
            del self._views[id(owner)]
            self.live -= owner.nbytes

    def count(self, nbytes: int) -> None:
        """Take scratch memory that is there already into the account; MemoryLimitError if it passes a limit that was set."""
        if callable(self._limit):
            self.peak = max(self.peak, self.live + nbytes)
        else:
            self.claim((nbytes,), 1, "native program")

    def claim(self, shape: Sequence[int], itemsize: int = 1, what: str = "output") -> None:
        """Raise MemoryLimitError if a tensor of this shape would pass the limit, or is one that numpy cannot index."""
        nbytes = math.prod(int(n) for n in shape) * itemsize
        extent = math.prod(max(int(n), 1) for n in shape) * itemsize
        if extent >= 2**63:
            nbytes = extent
        if callable(self._limit) and self.live + nbytes <= SMALL:
            limit = SMALL
        else:
            limit = self.limit if self.limit is not None else ADDRESSABLE
        if self.live + nbytes > limit:
            dims = ",".join(str(n) for n in shape)
            needed = self.live + nbytes
            enough = f"--max-memory {_rounded_up(needed)} is enough up to here, though later nodes may need more"
            raise MemoryLimitError(
                "QR010",
                "memory-limit",
                "this run needs more memory than allowed",
                where=[what],
                facts=[
                    ("tensor", f"{what} [{dims}], {human(nbytes)}"),
                    ("needed", f"{human(needed)} with it"),
                    ("allowed", human(limit)),
                ],
                fixes=[enough if needed < ADDRESSABLE else "make it smaller: no machine has that much memory"],
            )
        self.peak = max(self.peak, self.live + nbytes)
