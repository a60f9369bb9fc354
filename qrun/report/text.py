"""Text that is safe on any terminal, and numbers as people read them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

from qrun.errors import percent as percent
from qrun.memory import file_size as file_size

ELLIPSIS = "…"
TWINS = {"…": "...", "█": "#", "±": "+/-"}
"""Symbols that reports use, and what replaces them where the encoding has none."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
SINGLE = EIGHTHS + ELLIPSIS

_LAYER = re.compile(r"(?:^|[._])\d+$")
"""A folder in a name that identifies the layer: ``layers.0``, ``layer_3``, ``7``."""
_END = 4
"""The fewest columns of a path's end that are worth showing."""

CI = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
"""Environment variables of the CI runners that read commands from a job's log."""
BRACKETS = re.compile(r"##(?=\w*\[)")
"""The start of a command anywhere in a line: ``##[group]``, ``##vso[task...]``, ``##teamcity[...]``."""
_COLONS = re.compile(r"^((?:[^\S\n]|\x1b\[[0-9;]*m)*):(?=:)", re.MULTILINE)
"""The start of a command at the beginning of a line, after blanks and colours: ``::error::``."""


def safe(text: str, encoding: str = "utf-8") -> str:
    """The text on one line, with control, format and unencodable characters escaped; tabs and newlines too."""
    if text.isascii() and text.isprintable():
        return text
    shown = text.translate(_SHOWN)
    if encoding.lower().replace("-", "").replace("_", "") == "utf8":
        return shown
    for symbol, twin in TWINS.items():
        if symbol in shown and not encodable(symbol, encoding):
            shown = shown.replace(symbol, twin)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def no_command(text: str) -> str:
    """Escapes a log's text so that the runner of a CI job takes none of its lines for a command."""
    if "::" not in text and "##" not in text:
        return text
    return _COLONS.sub(r"\1\\x3a", BRACKETS.sub(r"#\\x23", text))


def encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _Shown(dict[int, str]):
    """What `safe` shows for a character code. Cached: a text of 64 million newlines looks it up often."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        plain = char == " " or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")
        self[code] = char if plain else "\\xa0" if char == "\u00a0" else char.encode("unicode_escape").decode("ascii")
        return self[code]


_SHOWN = _Shown()


def width_of(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii() or all(c < "\u0300" or c in SINGLE for c in text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shorten(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """Shortens a text to at most `width` columns. A path keeps its first part and as many last parts as fit; if the
    last part alone is too long, the folder that identifies the layer, and the end. Other texts keep both ends."""
    if width_of(text) <= width:
        return text
    start = 1 if text.startswith("/") else 0
    head, *parts = text[start:].split("/")
    for kept in range(1, len(parts)):
        shown = f"{text[:start]}{head}/{ellipsis}/{'/'.join(parts[kept:])}"
        if width_of(shown) <= width:
            return shown
    if layer := next(filter(_LAYER.search, reversed(parts[:-1])), ""):
        front = f"{ellipsis}/{layer}/"
        if width_of(front) + width_of(ellipsis) + _END <= width:
            return front + _cut(parts[-1], width - width_of(front), ellipsis, 0)
    return _cut(text, width, ellipsis, (width - width_of(ellipsis)) * 2 // 5)


def shorten_all(texts: Sequence[str], width: int, ellipsis: str = ELLIPSIS) -> list[str]:
    """Shortens the texts such that different ones stay different: cuts where they keep what distinguishes them, all in
    the same way if one way works for all."""
    chosen: dict[str, str] = {}
    left = list(dict.fromkeys(texts))
    for cut in _cuts(left, width, ellipsis):
        if len({cut(text) for text in left}) == len(left):
            return [cut(text) for text in texts]
    for cut in _cuts(left, width, ellipsis):
        tried = {text: cut(text) for text in left}
        taken = Counter([*tried.values(), *chosen.values()])
        chosen |= {text: shown for text, shown in tried.items() if taken[shown] == 1}
        left = [text for text in left if text not in chosen]
    used, numbers = set(chosen.values()), count(1)
    for text in left:
        marked = (shorten(text, width - len(f"~{n}"), ellipsis) + f"~{n}" for n in numbers)
        chosen[text] = next(shown for shown in marked if shown not in used)
    return [chosen[text] for text in texts]


def _cuts(texts: Sequence[str], width: int, ellipsis: str) -> Iterator[Callable[[str], str]]:
    """Ways to cut, the best first: `shorten`, then at other places, then around the place where the texts differ."""
    room = width - width_of(ellipsis)
    yield lambda text: shorten(text, width, ellipsis)
    for front in (room // 2, 0, room * 3 // 4, room):
        yield partial(_cut, width=width, ellipsis=ellipsis, front=front)
    same = same_start([text for text in texts if width_of(text) > width])
    yield lambda text: text if width_of(text) <= width else ellipsis + _cut(text[same:], room, ellipsis, room)


def same_start(texts: Sequence[str]) -> int:
    """The number of characters that all texts have in common at their start."""
    low, high = min(texts, default=""), max(texts, default="")
    return next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))


def _cut(text: str, width: int, ellipsis: str, front: int) -> str:
    """At most `width` columns: `front` columns of the beginning, the ellipsis, and the end."""
    if width_of(text) <= width:
        return text
    room = width - width_of(ellipsis)
    if room <= 0:
        return ellipsis[: max(width, 0)]
    head = _upto(text, min(front, room))
    tail = _upto(text[::-1], room - width_of(head))[::-1]
    return head + ellipsis + tail


def _upto(text: str, width: int) -> str:
    """The longest beginning of the text that fits into `width` columns."""
    shown = text[: max(width, 0)]
    while shown and width_of(shown) > width:
        shown = shown[:-1]
    return shown


def words(text: str) -> list[str]:
    """The text between spaces; a number and its unit are one word."""
    return _BREAK.split(text)


_BREAK = re.compile(r"(?<!\d) | (?!(?:%|dB|[mu]?s|[kMG]B|[KMG]iB)(?:\W|$))")


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at spaces; a word longer than a line is broken after a sign."""
    lines = [""]
    for word in words(text):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if width_of(joined) <= width:
            lines[-1] = joined
            continue
        lines += [word] if lines[-1] else []
        lines[-1] = word
        while width_of(lines[-1]) > width and (part := _upto(lines[-1], width)):
            part = part[: max(part.rfind(sign) for sign in "/:._-") + 1] or part
            lines[-1:] = [part, lines[-1][len(part) :]]
    return lines


def bar(share: float, width: int, encoding: str = "utf-8") -> str:
    """A bar of up to `width` columns, in eighths if the encoding has block characters."""
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


def decibel(value: float | None) -> str:
    """``37.3 dB``; ``exact`` without any noise."""
    if value is None or value != value:
        return "-"
    return (
        "exact"
        if value == float("inf")
        else "no signal"
        if value == float("-inf")
        else f"{round(value, 1) + 0.0:.1f} dB"
    )


def ratio_text(ratio: float) -> str:
    """Two digits after the point; for a small ratio, two significant digits: ``10.22``, ``0.50``, ``0.0033``."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def short_names(labels: Sequence[str]) -> list[str]:
    """Paths cut to the folders that tell them apart; other names unchanged."""
    parts = [label.split("/") for label in labels]
    for length in range(1, max(map(len, parts), default=1) + 1):
        tails = ["/".join(part[-length:]) for part in parts]
        if len(set(tails)) == len(set(labels)):
            return tails
    return list(labels)
