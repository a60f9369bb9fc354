"""Digests of bytes, by which equal bytes are found again."""

from __future__ import annotations

from functools import cached_property
from threading import Thread

try:
    from _blake2 import blake2b  # hashlib loads OpenSSL: 3 ms and 3 MB
except ImportError:
    from hashlib import blake2b

Bytes = bytes | memoryview
_SIZE = 32
_PIECE = 1 << 20
"""Pieces of this many bytes of a long part have own digests: two threads compute them, a GB in a second each."""


def digest(*parts: Bytes) -> str:
    """The digest of these parts, in this order; different parts have different digests."""
    found = blake2b(digest_size=_SIZE)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part if len(part) < 2 * _PIECE else b"".join(_pieces(part)))
    return found.hexdigest()


def _pieces(part: Bytes) -> list[bytes]:
    """The digests of a part's pieces, computed by two threads."""
    view = memoryview(part)
    made = [b""] * -(-len(view) // _PIECE)

    def every_other(first: int) -> None:
        for number in range(first, len(made), 2):
            made[number] = blake2b(view[number * _PIECE :][:_PIECE], digest_size=_SIZE).digest()

    other = Thread(target=every_other, args=(1,))
    try:
        other.start()
    except RuntimeError:  # there may be no more threads
        every_other(1)
    every_other(0)
    if other.ident is not None:
        other.join()
    return made


class Content:
    """All bytes from which something was made, in parts; different bytes have another digest, computed on first
    access."""

    def __init__(self, *parts: Bytes) -> None:
        self._parts = parts

    @cached_property
    def digest(self) -> str:
        """The digest of the content; computed once."""
        found, self._parts = digest(*self._parts), ()
        return found

    def __add__(self, more: tuple[Bytes, ...]) -> Content:
        """The content with `more` appended; the same object if there is no more."""
        return Content(self.digest.encode(), *more) if more else self
