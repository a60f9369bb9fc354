"""Names of bytes, by which the same are found again."""

from __future__ import annotations

from functools import cached_property

try:
    from _blake2 import blake2b  # hashlib loads OpenSSL: 3 ms and 3 MB
except ImportError:
    from hashlib import blake2b

Bytes = bytes | memoryview
_SIZE = 32


def digest(*parts: Bytes) -> str:
    """A name for these parts, in this order; other parts have another one."""
    found = blake2b(digest_size=_SIZE)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


class Content:
    """All bytes that something was made from, in parts; others have another digest, which is found when it is asked for."""

    def __init__(self, *parts: Bytes) -> None:
        self._parts = parts

    @cached_property
    def digest(self) -> str:
        found, self._parts = digest(*self._parts), ()
        return found

    def __add__(self, more: tuple[Bytes, ...]) -> Content:
        """This and more; the same where there is no more."""
        return Content(self.digest.encode(), *more) if more else self
