"""Limits on memory and time: what a run may use, and the account of what it uses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypedDict

from qrun.errors import MemoryLimitError, TimeLimitError

UNITS = {"": 1, "b": 1} | {
    unit: base**power
    for power, prefix in enumerate("kmgt", 1)
    for unit, base in ((f"{prefix}b", 1000), (prefix, 1024), (f"{prefix}ib", 1024))
}
"""Bytes by unit of a size, in lower case."""

ADDRESSABLE = 2**47
"""Bytes that a process can address."""
SMALL = 2**24
"""Up to this many bytes are taken without asking the system what is free, which takes longer than many nodes."""
LARGE = 2**28
"""A run that holds more checks once whether later nodes will need too much, because taking it takes seconds."""
_COUNTED = 2**70
"""Above this many bytes, only the power of two is shown."""


def human(nbytes: int) -> str:
    """Formats bytes in memory: ``20.3 GiB``; shapes that were never meant may ask for ``2**1240 B``."""
    if nbytes >= _COUNTED:
        return f"2**{nbytes.bit_length() - 1} B"
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def file_size(nbytes: int) -> str:
    """Formats the length of a file as file managers show it: ``3.6 MB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


class ResourceLimits(TypedDict, total=False):
    """Limits of a run: max_memory in bytes, None for 80 % of what is free; max_time in seconds, None for no limit."""

    max_memory: int | None
    max_time: float | None


def parse_size(text: str) -> int:
    """Converts ``8GiB``, ``500 MB``, ``1e9`` or ``4096`` to bytes. Raises ValueError if the text is none of these."""
    text = text.strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip()
    size = float(number) * UNITS[unit] if unit in UNITS and number else math.nan
    if not 0 < size < 2**62:
        raise ValueError(text)
    return int(size)


def available() -> int | None:
    """Bytes of memory that this process can still take (half of all memory if only that is known); None if unknown."""
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
    """80 % of what is free; 4 GiB if the system does not tell."""
    free = available()
    return 4 * 2**30 if free is None else free * 4 // 5


def _owner(array: Any) -> Any:
    """The array that owns the memory of which `array` is a view."""
    while isinstance(array.base, type(array)):
        array = array.base
    return array


def _round_up_size(nbytes: int) -> str:
    """A size of at least this many bytes, in the form that `parse_size` reads: ``21GiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= 4 * size or unit == "KiB":
            return f"{-(-nbytes // size)}{unit}"
    raise AssertionError


class Deadline:
    """The time by which a run must be over: `seconds` after this is made.

    It is checked between nodes, and between iterations of a graph inside a node. Of running kernels it
    interrupts only those of custom operators.
    """

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = perf_counter_ns() + int(seconds * 1e9)

    @property
    def left(self) -> float:
        """The seconds until then; negative if they have passed."""
        return (self._end - perf_counter_ns()) / 1e9

    @property
    def passed(self) -> bool:
        """Whether the time has passed."""
        return perf_counter_ns() >= self._end

    def check(self) -> None:
        """Raises TimeLimitError if the time is over."""
        if self.passed:
            raise out_of_time(self.seconds)


def out_of_time(seconds: float) -> TimeLimitError:
    """The error of a run that takes longer than this many seconds."""
    enough = max(2 * seconds, 1)
    return TimeLimitError(
        "QR016",
        "this run takes longer than allowed",
        facts=[("allowed", f"{seconds:g} s")],
        fixes=[f"--max-time {enough:g}s or none to allow it"],
        calls=[f"Session(model, max_time={enough:g}) or None to allow it"],
    )


class Budget:
    """The account of a run: the bytes it may hold at once and holds now, and how long it may take.

    limit: None means no limit; a function is called when the account first passes SMALL, and its result is then allowed
    in addition to what is held at that time. deadline: None means no limit of time.

    A tensor counts from `hold` to `release`, and once, however many arrays view it; so do the `elements` of a sequence.
    The model's own weights, which exist before and after the run, do not count. `claim` is called before a tensor is
    made, so that a small hostile model cannot take the machine down. Both raise MemoryLimitError.
    """

    __slots__ = ("_ahead", "_ceiling", "_limit", "_views", "deadline", "live", "peak")

    def __init__(self, limit: int | Callable[[], int] | None = None, deadline: Deadline | None = None) -> None:
        self._limit, self.deadline = limit, deadline
        self._ceiling: int = SMALL if callable(limit) else ADDRESSABLE if limit is None else limit
        self._ahead: Callable[[int], None] | None = None
        self.live = 0
        self.peak = 0
        self._views: dict[int, tuple[int, int]] = {}

    @property
    def limit(self) -> int | None:
        """The limit; if a function was given, it is called on first access."""
        if callable(self._limit):
            self._limit = self.live + self._limit()
        return self._limit

    def aside(self) -> Budget:
        """Another account with the same contents, for a trial, or for memory that is given back at the end."""
        made = Budget(self._limit, self.deadline)
        made.live, made._ceiling = self.live, self._ceiling
        return made

    def anew(self) -> Budget:
        """An empty account with the same limits, for another try of the same run."""
        return Budget(self._limit, self.deadline)

    def in_time(self) -> None:
        """Raises TimeLimitError if the run takes longer than allowed."""
        if self.deadline is not None:
            self.deadline.check()

    def look_ahead(self, look: Callable[[int], None]) -> None:
        """Makes the account call `look` with the limit, once, when it first passes LARGE. `look` may raise
        MemoryLimitError for what the run will need later."""
        self._ahead = look
        self._ceiling = min(self._ceiling, LARGE)

    def hold(self, array: Any, what: str = "output") -> None:
        """Counts an existing array, once with all views of it; what: its name."""
        owner = array if array.base is None else _owner(array)
        self._hold(id(owner), owner.nbytes, array, what)

    def hold_fed(self, array: Any, what: str) -> None:
        """Counts an array from the caller: a view counts no more than it shows, because the rest is not the run's."""
        nbytes, owner = array.nbytes, array
        if array.base is not None:
            owner = _owner(array)
            nbytes = min(nbytes, owner.nbytes)
        self._hold(id(owner), nbytes, array, what)
        for element in getattr(array, "elements", ()):
            self.hold_fed(element, what)

    def hold_made(self, array: Any, what: str) -> None:
        """Counts a kernel's result, unless it is a view of a weight, which is never writable."""
        owner = array if array.base is None else _owner(array)
        if owner.flags.writeable or id(owner) in self._views:
            self._hold(id(owner), owner.nbytes, array, what)
        for element in getattr(array, "elements", ()):
            self.hold_made(element, what)

    def _hold(self, key: int, nbytes: int, array: Any, what: str) -> None:
        """Count a view of memory; the first view of a block claims its bytes."""
        held = self._views.get(key)
        if held is None:
            self.reserve(nbytes, what, array.shape)
            held = 0, nbytes
        self._views[key] = held[0] + 1, held[1]

    def release(self, array: Any) -> None:
        """Undoes one `hold` of this array, or of another one in the same memory."""
        key = id(array if array.base is None else _owner(array))
        views, counted = self._views.pop(key, (0, 0))
        if views > 1:
            self._views[key] = views - 1, counted
        else:
            self.live -= counted
        for element in getattr(array, "elements", ()):
            self.release(element)

    def reserve(self, nbytes: int, what: str, shape: Sequence[int] = (), *, there: bool = False) -> None:
        """Counts memory for the rest of the run. there: it was taken before, so a limit based on free memory has left
        it out."""
        live = self.live + nbytes
        if live > self._ceiling and not (there and callable(self._limit)):
            self._pass(live, nbytes, shape or (nbytes,), what)
        self.live = live
        if live > self.peak:
            self.peak = live

    def claim(self, shape: Sequence[int], itemsize: int = 1, what: str = "output") -> None:
        """Raises MemoryLimitError if a tensor of this shape would pass the limit, or if numpy cannot index it."""
        nbytes = math.prod(shape) * itemsize
        if not nbytes:
            extent = math.prod(max(int(n), 1) for n in shape) * itemsize
            nbytes = extent if extent >= 2**63 else 0
        needed = self.live + int(nbytes)
        if needed > self._ceiling:
            self._pass(needed, int(nbytes), shape, what)
        self.peak = max(self.peak, needed)

    def _pass(self, needed: int, nbytes: int, shape: Sequence[int], what: str) -> None:
        """Raises the ceiling up to the limit, or raises an error if the limit is passed."""
        limit = self.limit
        allowed = ADDRESSABLE if limit is None else limit
        if needed > allowed:
            raise over_limit(what, shape, nbytes, needed, allowed)
        self._ceiling = allowed
        if self._ahead is not None and needed <= LARGE:
            self._ceiling = min(allowed, LARGE)
        elif self._ahead is not None:
            look, self._ahead = self._ahead, None
            look(allowed)


def over_limit(
    what: str, shape: Sequence[int], nbytes: int, needed: int, allowed: int, *, least: int = 0
) -> MemoryLimitError:
    """The error for a tensor of `nbytes` bytes, with which a run needs more than is allowed.

    least: what the run will need in all, if that was looked ahead.
    """
    dims = ",".join(str(n) for n in shape)
    enough = f"--max-memory {_round_up_size(max(needed, least))} is enough up to here, but later nodes may need more"
    if least:
        enough = f"--max-memory {_round_up_size(max(needed, least))} to allow it, or use smaller inputs"
    possible = max(needed, least) < ADDRESSABLE
    return MemoryLimitError(
        "QR010",
        "this run needs more memory than allowed",
        where=[what],
        facts=[
            ("tensor", f"{what} [{dims}], {human(nbytes)}"),
            ("needed", f"{human(needed)} with it"),
            ("allowed", human(allowed)),
        ],
        fixes=[enough if possible else "make it smaller: no machine has that much memory"],
        calls=[f"Session(model, max_memory={max(needed, least)}) to allow it, or use smaller inputs"]
        if possible
        else [],
    )
