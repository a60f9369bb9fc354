"""Names of bytes, by which the same are found again."""

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
"""Bytes of a long part that have a digest of their own: two threads make them, a GB in a second each."""


def digest(*parts: Bytes) -> str:
    """A name for these parts, in this order; other parts have another one."""
    found = blake2b(digest_size=_SIZE)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part if len(part) < 2 * _PIECE else b"".join(_pieces(part)))
    return found.hexdigest()


def _pieces(part: Bytes) -> list[bytes]:
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
    """All bytes that something was made from, in parts; others have another digest,
    which is found when it is asked for."""

    def __init__(self, *parts: Bytes) -> None:
        self._parts = parts

    @cached_property
    def digest(self) -> str:
        found, self._parts = digest(*self._parts), ()
        return found

    def __add__(self, more: tuple[Bytes, ...]) -> Content:
        """This and more; the same where there is no more."""
        return Content(self.digest.encode(), *more) if more else self
