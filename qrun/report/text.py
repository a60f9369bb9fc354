"""Text that is safe on any terminal, and numbers as people read them."""

from __future__ import annotations

import math
import unicodedata

ELLIPSIS = "…"
TWINS = {"…": "...", "█": "#", "±": "+/-"}
"""Symbols that reports use, and what replaces them where the encoding has none."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
SINGLE = EIGHTHS + ELLIPSIS


def safe(text: str, encoding: str = "utf-8") -> str:
    """The text on one line: control, format and unencodable characters as escapes; tabs and newlines too."""
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(c if _plain(c) else _escape(c) for c in text)
    if encoding.lower().replace("-", "").replace("_", "") == "utf8":
        return shown
    for symbol, twin in TWINS.items():
        if symbol in shown and not encodable(symbol, encoding):
            shown = shown.replace(symbol, twin)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _plain(char: str) -> bool:
    return char == " " or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii") if char != "\u00a0" else "\\xa0"


def width_of(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii() or all(c < "\u0300" or c in SINGLE for c in text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shorten(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """At most `width` columns. Of a path the first part and as many last parts as fit; else the end of the text."""
    if width_of(text) <= width:
        return text
    start = 1 if text.startswith("/") else 0
    head, *parts = text[start:].split("/")
    for kept in range(1, len(parts)):
        shown = f"{text[:start]}{head}/{ellipsis}/{'/'.join(parts[kept:])}"
        if width_of(shown) <= width:
            return shown
    room = width - width_of(ellipsis)
    if room <= 0:
        return ellipsis[: max(width, 0)]
    tail = text[-room:]
    while width_of(tail) > room:
        tail = tail[1:]
    at = tail.find("/")
    if 0 <= at <= len(tail) // 2:
        tail = tail[at:]
    return ellipsis + tail


def bar(share: float, width: int, encoding: str = "utf-8") -> str:
    """A bar of up to `width` columns, in eighths where the encoding has the blocks."""
    if not encodable(EIGHTHS, encoding):
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def duration(nanoseconds: float) -> str:
    """Three digits and a unit: ``5.21 ms``, ``41.8 ms``, ``212 ms``, ``1.20 s``, ``87.3 us``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size * 0.9995 or unit == "us":
            value = nanoseconds / size
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError


def number(value: float | int | bool | None) -> str:
    """Four digits for floats, integers in full, ``-`` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, (bool, int)):
        return str(int(value))
    if math.isfinite(value):
        return f"{value:.4g}"
    return "nan" if value != value else "inf" if value > 0 else "-inf"


def percent(share: float) -> str:
    return f"{share * 100:.1f}%"


def file_size(nbytes: int) -> str:
    """As file managers show it: ``3.6 MB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
