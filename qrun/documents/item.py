"""JSON files that qrun wrote, read without trusting them: every value is fetched with the kind it must have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qrun.declare.frozen import frozen
from qrun.errors import CallError
from qrun.io.arrays import CHUNK, no_such_file
from qrun.memory import Budget, default_limit

EXPANSION = 16
"""Bytes in memory for each byte of a JSON text, at most about."""
MAJOR = 1
_ODD = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@frozen
class Item:
    """A value in a document; place: where, such as ``nodes[3].op``. Each accessor raises CallError for another kind."""

    value: Any
    source: str
    place: str = ""

    def __getitem__(self, key: str) -> Item:
        found = self.find(key)
        if found is None:
            raise self._bad(f"a key {key!r}", "none")
        return found

    def find(self, key: str) -> Item | None:
        """The value of a key, or None if it is missing or null."""
        if not isinstance(self.value, dict):
            raise self._bad("an object", kind(self.value))
        inner = self.value.get(key)
        return None if inner is None else Item(inner, self.source, f"{self.place}.{key}".lstrip("."))

    def __iter__(self) -> Iterator[Item]:
        if not isinstance(self.value, list):
            raise self._bad("a list", kind(self.value))
        return (Item(v, self.source, f"{self.place}[{at}]") for at, v in enumerate(self.value))

    @property
    def keys(self) -> tuple[str, ...]:
        if not isinstance(self.value, dict):
            raise self._bad("an object", kind(self.value))
        return tuple(self.value)

    @property
    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._bad("a string", kind(self.value))
        return self.value

    @property
    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self._bad("true or false", kind(self.value))
        return self.value

    @property
    def whole(self) -> int:
        if type(self.value) is not int:
            raise self._bad("an integer", kind(self.value))
        return self.value

    @property
    def size(self) -> int:
        """An integer of 0 or more that an array dimension or a count can be."""
        if not 0 <= self.whole < 2**62:
            raise self._bad("an integer from 0 to 2^62", str(self.value)[:30])
        return self.whole

    @property
    def real(self) -> float:
        """A number as float; the strings nan, inf and -inf are numbers."""
        if isinstance(self.value, str) and self.value in _ODD:
            return _ODD[self.value]
        if type(self.value) not in (int, float):
            raise self._bad("a number", kind(self.value))
        try:
            return float(self.value)
        except OverflowError:
            raise self._bad("a number", f"{str(self.value)[:20]}...") from None

    @property
    def number(self) -> int | float:
        """A number; an integer of up to 64 bits as it is."""
        real = self.real
        return self.value if isinstance(self.value, int) and abs(real) <= 2**64 else real

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(item.size for item in self)

    def _bad(self, expected: str, got: str) -> CallError:
        return damaged(self.source, f"{self.place or 'the document'}: {expected}", got)


def kind(value: Any) -> str:
    """What a JSON value is: ``a string``."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def damaged(source: str, expected: str, got: str, fix: str = "write the file again") -> CallError:
    facts = [("expected", expected), ("got", got)]
    return CallError("QR007", f"{source} is not as qrun writes it", where=[source], facts=facts, fixes=[fix])


def read_document(path: Path, kinds: tuple[str, ...], fix: str) -> tuple[str, Item]:
    """The kind of a document (the NAME of its schema ``qrun/NAME/1.x``) and its content.

    kinds: those that are allowed; fix: how such a file is made.
    Raises CallError if the file cannot be read, is not JSON, is of another kind or a later major version, or tells of a
    failure; MemoryLimitError if it is too large.
    """
    item = Item(_parse(path, fix), str(path))
    expected = " or ".join(f"qrun/{name}/{MAJOR}.x" for name in kinds)
    schema = item.value.get("schema") if isinstance(item.value, dict) else None
    if not isinstance(schema, str):
        raise damaged(str(path), f"a document with a schema, {expected}", f"{kind(item.value)} without one", fix)
    name, major = _schema(schema)
    if name not in kinds:
        raise damaged(str(path), expected, f"schema {schema!r}"[:80], fix)
    if major != MAJOR:
        raise damaged(
            str(path),
            f"qrun/{name}/{MAJOR}.x, which this version of qrun reads",
            f"{schema!r}"[:80],
            "use the version of qrun that wrote it, or write it again",
        )
    error = item.find("error")
    if error is not None:
        message = error.find("message")
        raise damaged(str(path), "a result", f"a failure: {message.text if message else '?'}"[:200], fix)
    return name, item


def _schema(text: str) -> tuple[str, int]:
    """NAME and MAJOR of ``qrun/NAME/MAJOR.MINOR``; "" and 0 if it is not of this form."""
    parts = text.split("/")
    if len(parts) != 3 or parts[0] != "qrun":
        return "", 0
    major, dot, minor = parts[2].partition(".")
    valid = dot and all(p.isascii() and p.isdigit() and len(p) < 6 for p in (major, minor))
    return (parts[1], int(major)) if valid else ("", 0)


def _parse(path: Path, fix: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    budget, data = Budget(default_limit), bytearray()
    try:
        with open(path, "rb") as stream:
            while block := stream.read(CHUNK):
                budget.claim((len(data) + len(block),), EXPANSION, str(path))
                data += block
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None
    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        start = f"; it starts with {bytes(data[:12])!r}" if data else "; it is empty"
        raise damaged(str(path), "a JSON document", f"{error}{start}"[:160], fix) from None
