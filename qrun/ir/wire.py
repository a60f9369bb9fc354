"""Reads a model file without its large tensors; these are then read once, directly into their final memory.

protobuf would hold up to three copies of each: in the file's bytes, in the message, and in the array. So the large
`raw_data` of initializers is left out of the bytes that protobuf parses; a short stand-in replaces it. This works for
plain files only; for anything unusual the functions return None, and protobuf sees the whole file.

A process that will load a model can let a thread read it while it imports its modules (`read_ahead`). So this module
imports no numpy, and the thread makes few calls, each of which may have to wait for Python's lock.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from itertools import accumulate
from pathlib import Path

from qrun.declare.digest import Content
from qrun.declare.frozen import frozen

_LARGE = 4096
_FIELDS = 1 << 22
"""The most fields of a message that are examined one by one here; protobuf itself reads more of them."""
_WINDOW = 1 << 13
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Numbers of fields of ModelProto, GraphProto and TensorProto."""
_FIXED = {1: 8, 5: 4}
_BYTES = 2
_LINE = 64
_AT_ONCE, _BETWEEN = 500, 1 << 16
"""Payloads that one call reads, and the most bytes between two of them that it skips."""


@frozen
class Lifted:
    """proto: the file's bytes with stand-ins. payloads: bytes by stand-in, read-only, each on a boundary of 64. size:
    of the file. content: all its bytes, without the random mark of the stand-ins."""

    proto: bytes
    payloads: Mapping[bytes, memoryview]
    size: int
    content: Content


class _Unusual(Exception):
    pass


@frozen
class _Field:
    """start, end: of the whole field; value: where its content begins."""

    number: int
    kind: int
    start: int
    value: int
    end: int


class _File:
    def __init__(self, stream: FileIO) -> None:
        self.stream = stream
        self.size = os.fstat(stream.fileno()).st_size
        self._at, self._window = 0, b""

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`. Raises _Unusual if the file ends before."""
        self.stream.seek(start)
        data = self.stream.read(end - start)
        if len(data) != end - start:
            raise _Unusual
        return data

    def fill(self, start: int, left: memoryview) -> None:
        """Read bytes from `start` into memory."""
        self.stream.seek(start)
        while len(left):
            count = self.stream.readinto(left)
            if not count:
                raise _Unusual
            left = left[count:]

    def fields(self, position: int, end: int) -> Iterator[_Field]:
        """The fields of a message. Raises _Unusual for bytes that are no message, or one with very many fields."""
        left = _FIELDS
        while position < end:
            start, left = position, left - 1
            tag, position = self._varint(position)
            kind = tag & 7
            if not tag >> 3 or not left:
                raise _Unusual
            if kind == _BYTES:
                length, position = self._varint(position)
            elif kind == 0:
                length = self._varint(position)[1] - position
            else:
                length = _FIXED.get(kind, end)
            if position + length > end:
                raise _Unusual
            yield _Field(tag >> 3, kind, start, position, position + length)
            position += length

    def _varint(self, position: int) -> tuple[int, int]:
        """A varint of the file and the position after it."""
        offset = position - self._at
        if not 0 <= offset <= len(self._window) - 10:
            self._at, offset = position, 0
            self._window = self.read(position, min(position + _WINDOW, self.size))
        value = shift = 0
        for byte in self._window[offset : offset + 10]:
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, position
            shift += 7
        raise _Unusual


@frozen
class _Scanned:
    """A file whose large tensors were found but not read yet. mark: random bytes at the start of each stand-in."""

    file: _File
    proto: bytes
    mark: bytes
    lifted: Sequence[_Field]


class _Ahead:
    """A file that a thread is reading."""

    def __init__(self, scanned: _Scanned) -> None:
        self._scanned = scanned
        self._found: Lifted | None = None
        self._thread = threading.Thread(target=self._read, name="qrun reads a model", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        """Scan and digest the file, in a thread."""
        try:
            found = _read(self._scanned)
            _ = found.content.digest
            self._found = found
        except (OSError, ValueError, _Unusual):
            pass

    def take(self) -> Lifted | None:
        """Wait for the thread; None if the file is unusual."""
        self._thread.join()
        return self._found


_begun: dict[str, _Ahead] = {}


def read_ahead(path: str) -> None:
    """Start a thread that reads this file, which will be lifted, and computes the digest of its content."""
    try:
        scanned = _open(Path(path))
    except (OSError, ValueError, _Unusual):
        return
    if scanned is not None:
        _begun[path] = _Ahead(scanned)


def lift(path: Path) -> Lifted | None:
    """The model file without large tensors; None if it has none, or is not a regular file of the usual form."""
    begun = _begun.pop(os.fspath(path), None)
    try:
        if begun is not None:
            return begun.take()
        scanned = _open(path)
        return None if scanned is None else _read(scanned)
    except (OSError, ValueError, _Unusual):
        return None


def _open(path: Path) -> _Scanned | None:
    """Open and scan a model file; None if it is no file, or unusual."""
    if not path.is_file():
        return None
    stream = open(path, "rb", buffering=0)  # noqa: SIM115  # `_read` closes it
    try:
        scanned = _scan(_File(stream))
    except BaseException:
        stream.close()
        raise
    if scanned is None:
        stream.close()
    return scanned


def _scan(file: _File) -> _Scanned | None:
    """Find the large tensors of a model file, and read the rest; None if the file is unusual."""
    fields = list(file.fields(0, file.size))
    graphs = [field for field in fields if field.number == GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _BYTES:
        return None
    graph, mark = graphs[0], os.urandom(12)
    pieces: list[bytes] = []
    lifted: list[_Field] = []
    done = graph.value
    for field in file.fields(graph.value, graph.end):
        large = field.number == INITIALIZER and field.kind == _BYTES and field.end - field.value > _LARGE
        raw = _raw_data(file, field) if large else None
        if raw is None:
            continue
        stand_in = _stand_in(mark, len(lifted))
        lifted.append(raw)
        tensor = file.read(field.value, raw.start) + _field(RAW_DATA, stand_in) + file.read(raw.end, field.end)
        pieces += [file.read(done, field.start), _field(INITIALIZER, tensor)]
        done = field.end
    if not lifted:
        return None
    pieces.append(file.read(done, graph.end))
    around = file.read(0, graph.start), file.read(graph.end, file.size)
    return _Scanned(file, around[0] + _field(GRAPH, b"".join(pieces)) + around[1], mark, lifted)


def _read(scanned: _Scanned) -> Lifted:
    """The payloads, in one block of memory, each on a boundary of 64 bytes."""
    sizes = [field.end - field.value for field in scanned.lifted]
    ends = list(accumulate(-(-size // _LINE) * _LINE for size in sizes))
    block = memoryview(_memory(ends[-1]))
    pieces = [block[end:][:size] for end, size in zip([0, *ends], sizes, strict=False)]
    with scanned.file.stream:
        for first in range(0, len(pieces), _AT_ONCE):
            last = first + _AT_ONCE
            _fill(scanned.file, scanned.lifted[first:last], pieces[first:last])
    payloads = {_stand_in(scanned.mark, i): piece.toreadonly() for i, piece in enumerate(pieces)}
    rest = scanned.proto.replace(scanned.mark, b"")
    return Lifted(scanned.proto, payloads, scanned.file.size, Content(rest, repr(sizes).encode(), block.toreadonly()))


def _fill(file: _File, fields: Sequence[_Field], pieces: Sequence[memoryview]) -> None:
    """Read payloads, with one call where the system supports it and they lie near each other."""
    gaps = [after.value - field.end for field, after in zip(fields, fields[1:], strict=False)]
    if hasattr(os, "preadv") and max(gaps, default=0) <= _BETWEEN:
        passed = memoryview(bytearray(_BETWEEN))
        parts = [part for piece, gap in zip(pieces, [*gaps, 0], strict=True) for part in (piece, passed[:gap])]
        if os.preadv(file.stream.fileno(), parts, fields[0].value) == fields[-1].end - fields[0].value:
            return
    for piece, field in zip(pieces, fields, strict=True):
        file.fill(field.value, piece)


def _memory(nbytes: int) -> mmap.mmap:
    """`nbytes` of anonymous memory, private to this process."""
    if sys.platform == "win32":  # where mmap has no flags, and processes do not fork
        return mmap.mmap(-1, nbytes)
    return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _stand_in(mark: bytes, number: int) -> bytes:
    """The bytes that stand in a scanned model for a large tensor."""
    return mark + number.to_bytes(4, "little")


def _raw_data(file: _File, tensor: _Field) -> _Field | None:
    """The raw data of a tensor; None if it is small or stored otherwise."""
    found = [field for field in file.fields(tensor.value, tensor.end) if field.number == RAW_DATA]
    if len(found) == 1 and found[0].kind == _BYTES and found[0].end - found[0].value > _LARGE:
        return found[0]
    return None


def _field(number: int, value: bytes) -> bytes:
    """A field of kind bytes, or of a message."""
    return field_head(number, len(value)) + value


def field_head(number: int, size: int) -> bytes:
    """The bytes before the `size` bytes of such a field."""
    return _varint(number << 3 | _BYTES) + _varint(size)


def _varint(value: int) -> bytes:
    """A number as a protobuf varint."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
