"""The report of ``qrun cache``: the contents of the folder on disk, as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qrun.memory import human
from qrun.native.machine.cache import ObjectCache
from qrun.report.grid import Column, Grid
from qrun.report.text import plural

if TYPE_CHECKING:
    from qrun.native.machine.cache import Entry
    from qrun.report.screen import Screen

KINDS = {
    ".blob": "machine code",
    ".o": "machine code",
    ".proof": "constants of requantizations",
    ".model": "models",
    ".planned": "models",
    ".machine": "speeds of this machine",
}
"""The kind of an entry, by the suffix of its file."""


def print_cache(screen: Screen, store: ObjectCache, entries: Sequence[Entry], removed: int | None, every: bool) -> None:
    """Prints the folder, its size by kind, and with `every` each file. removed: bytes just deleted, or None."""
    folder, gap, sizes = cache_line(store, entries).rpartition("   ")
    screen.line((folder, "bold"), gap + sizes)
    if store.refused:
        screen.line(f"  not used: it {store.refused}")
    if removed is not None:
        screen.line(f"  {human(removed)} removed")
    kinds = [Column("kept"), Column("files", right=True), Column("size", right=True)]
    rows = [[kind, str(count), human(size)] for kind, (count, size) in by_kind(entries).items()]
    if rows:
        screen.line()
        screen.grid(Grid(kinds, rows, {}))
    if every and entries:
        screen.line()
        now = time.time()
        columns = [Column("file", shrink=1), Column("kept"), Column("size", right=True), Column("used", right=True)]
        listed = [[e.name, _kind(e), human(e.size), f"{_ago(now - e.used)} ago"] for e in entries]
        screen.grid(Grid(columns, listed, {}))


def cache_line(store: ObjectCache, entries: Sequence[Entry]) -> str:
    """``/home/me/.cache/qrun   12 MiB of at most 512 MiB``."""
    return f"{store.directory}   {human(sum(entry.size for entry in entries))} of at most {human(store.limit)}"


def cache_fields(store: ObjectCache, entries: Sequence[Entry], removed: int | None) -> dict[str, Any]:
    """The body of the JSON report."""
    return {
        "folder": str(store.directory) if store.directory else None,
        "refused": store.refused,
        "limit_bytes": store.limit,
        "bytes": sum(entry.size for entry in entries),
        "removed_bytes": removed,
        "kinds": {kind: {"files": count, "bytes": size} for kind, (count, size) in by_kind(entries).items()},
        "files": [{"name": e.name, "kind": _kind(e), "bytes": e.size, "used": e.used} for e in entries],
    }


def by_kind(entries: Sequence[Entry]) -> dict[str, tuple[int, int]]:
    """The number of files of each kind, and their bytes; the largest kind first."""
    found: dict[str, tuple[int, int]] = {}
    for entry in entries:
        count, size = found.get(_kind(entry), (0, 0))
        found[_kind(entry)] = count + 1, size + entry.size
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _kind(entry: Entry) -> str:
    return KINDS.get("." + entry.name.rpartition(".")[2], "others")


def _ago(seconds: float) -> str:
    """Formats a time in its largest unit."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return plural(int(seconds // length), unit)
    return "a moment"
