"""Messages between qrun and a process that runs cases: JSON and raw bytes.
No package but the standard library is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

MOST = 1 << 31
"""Bytes that a message may have; a length beyond it is rubbish."""


def send(stream: BinaryIO, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """A message: how long the head is, the head, then the parts, whose lengths are in it."""
    text = json.dumps({**head, "lengths": [len(part) for part in parts]}).encode()
    stream.write(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """The next message. EOFError if the other side is gone, ValueError for what is no message."""
    length = int.from_bytes(_exactly(stream, 8), "little")
    if length > MOST:
        raise ValueError("this is no message")
    head = json.loads(_exactly(stream, length))
    return head, [_exactly(stream, size) for size in head["lengths"]]


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = stream.read(length - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
