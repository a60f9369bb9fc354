"""Messages on a pipe: how many parts, their lengths, then the parts:
a pickle and the arrays' bytes, which it refers to."""

from __future__ import annotations

import pickle
import struct
from typing import Any, BinaryIO


def write(stream: BinaryIO, message: object) -> None:
    """Send a message of plain data and arrays. What cannot be pickled raises before anything is sent."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, 5, buffer_callback=buffers.append)
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    stream.write(struct.pack(f"<{len(parts) + 1}Q", len(parts), *(part.nbytes for part in parts)))
    for part in parts:
        stream.write(part)
    stream.flush()


def read(stream: BinaryIO) -> Any:
    """The next message; its arrays can be written to. EOFError if the other side has closed the pipe."""
    (count,) = struct.unpack("<Q", _exactly(stream, 8))
    lengths = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    body, *buffers = [_exactly(stream, length) for length in lengths]
    return pickle.loads(body, buffers=buffers)


def _exactly(stream: BinaryIO, length: int) -> bytearray:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        more = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not more:
            raise EOFError
        done += more
    return data
