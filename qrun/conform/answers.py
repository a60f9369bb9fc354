"""The lines of JSON that qrun and a program of ``batch:`` exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set

from qrun.conform.runtimes import REFUSED, UNSUPPORTED

Answer = dict[str, str]
"""``{}``, or ``{"refused": reason}``, or ``{"unsupported": reason}``."""
ROOM = 1 << 20
"""Bytes that a program may write without an answer, or beyond twice the size of the expected outputs."""
TWICE = "answered twice"


def request_line(request: Mapping[str, str]) -> bytes:
    """The line that asks for a case."""
    return json.dumps(request).encode() + b"\n"


class AnswerReader:
    """Finds the answer to the request `id` in what a program writes to stdout. asked: the ids up to now; size: the
    bytes so far.

    The answer is a line: an object as in `Answer`, perhaps with the id, or with ``"ok": true``. Lines that are not
    JSON objects, and late answers with an earlier id, are ignored.
    """

    def __init__(self, id: str, asked: Set[str]) -> None:
        self._id, self._asked, self._rest = id, asked, b""
        self.size = 0

    def add(self, data: bytes) -> Answer | str | None:
        """Add bytes. Returns the answer once its line is complete, or what is wrong with it."""
        self.size += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = [answer for line in lines if (answer := self._read_line(line)) is not None]
        return TWICE if len(found) > 1 and isinstance(found[0], dict) else found[0] if found else None

    def _read_line(self, line: bytes) -> Answer | str | None:
        """The answer in a line, or what is wrong with it. None for a line that is not a JSON object, and for an answer
        to an earlier request."""
        if not line.lstrip().startswith(b"{"):
            return None
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return None
        id = found.pop("id", self._id)
        if id != self._id:
            return None if isinstance(id, str) and id in self._asked else f"answered for case {shorten(str(id))}"
        if not found:
            return {}
        ((key, value),) = found.items() if len(found) == 1 else [("", None)]
        if key == "ok" and value is True:
            return {}
        if key in (REFUSED, UNSUPPORTED) and isinstance(value, str):
            return {key: value}
        got = shorten(line.decode(errors="replace"), 100)
        return f'answered \'{got}\', which is none of {{}}, {{"refused": ...}}, {{"unsupported": ...}}'


def shorten(text: str, most: int = 400) -> str:
    """A text in one line of at most `most` characters."""
    return " ".join(text[: 4 * most].split())[:most]
