"""Values of JSON reports by key, with a default where a key is missing or null."""

from __future__ import annotations

import math
from collections.abc import Iterable

from qrun.comparing.documents import Item


def items(item: Item | None, key: str) -> Iterable[Item]:
    found = item.find(key) if item else None
    return found or ()


def text(item: Item, key: str, default: str = "") -> str:
    found = item.find(key)
    return found.text if found else default


def real(item: Item | None, key: str) -> float | None:
    """A finite number; None where there is none."""
    found = item.find(key) if item else None
    value = found.real if found else math.nan
    return value if math.isfinite(value) else None


def rounded(milliseconds: float | None) -> float | None:
    """To whole nanoseconds."""
    return None if milliseconds is None else round(milliseconds, 6)


def size(item: Item, key: str) -> int | None:
    found = item.find(key)
    return found.size if found else None
