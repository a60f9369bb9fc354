"""Reading a model file without its large tensors, which then are read once, to where they stay.

protobuf would hold three copies of each at times: in the file's bytes, in the message, and in the array. So large
`raw_data` of initializers is left out of the bytes that protobuf parses; a short stand-in takes its place. Only plain
files take this way; everything unusual returns None, and protobuf sees the whole file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen

_LARGE = 4096
_WINDOW = 1 << 13
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_FIXED = {1: 8, 5: 4}
_BYTES = 2


@frozen
class Lifted:
    """proto: the file's bytes with stand-ins. payloads: uint8 arrays by stand-in. size: of the file. rest: its bytes without
    the payloads, and without what differs each time that the file is read."""

    proto: bytes
    payloads: Mapping[bytes, np.ndarray[Any, np.dtype[np.uint8]]]
    size: int
    rest: bytes


class _Unusual(Exception):
    pass


@frozen
class _Field:
    """start, end: of the whole field; value: where what it holds begins."""

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
        self.stream.seek(start)
        data = self.stream.read(end - start)
        if len(data) != end - start:
            raise _Unusual
        return data

    def fill(self, start: int, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.stream.seek(start)
        left = memoryview(array)  # type: ignore[arg-type]
        while len(left):
            count = self.stream.readinto(left)
            if not count:
                raise _Unusual
            left = left[count:]

    def fields(self, position: int, end: int) -> Iterator[_Field]:
        """The fields of a message."""
        while position < end:
            start = position
            tag, position = self._varint(position)
            kind = tag & 7
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


def lift(path: Path) -> Lifted | None:
    """The model file without large tensors; None if it has none, or is not a regular file of the usual form."""
    try:
        if not path.is_file():
            return None
        with open(path, "rb", buffering=0) as stream:
            return _lift(_File(stream))
    except (OSError, ValueError, _Unusual):
        return None


def _lift(file: _File) -> Lifted | None:
    fields = list(file.fields(0, file.size))
    graphs = [field for field in fields if field.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _BYTES:
        return None
    graph, mark = graphs[0], os.urandom(12)
    pieces: list[bytes] = []
    lifted: list[_Field] = []
    done = graph.value
    for field in file.fields(graph.value, graph.end):
        large = field.number == _INITIALIZER and field.kind == _BYTES and field.end - field.value > _LARGE
        raw = _raw_data(file, field) if large else None
        if raw is None:
            continue
        stand_in = _stand_in(mark, len(lifted))
        lifted.append(raw)
        tensor = file.read(field.value, raw.start) + _field(_RAW_DATA, stand_in) + file.read(raw.end, field.end)
        pieces += [file.read(done, field.start), _field(_INITIALIZER, tensor)]
        done = field.end
    if not lifted:
        return None
    pieces.append(file.read(done, graph.end))
    around = file.read(0, graph.start), file.read(graph.end, file.size)
    payloads = {_stand_in(mark, i): array for i, array in enumerate(_payloads(file, lifted))}
    proto = around[0] + _field(_GRAPH, b"".join(pieces)) + around[1]
    return Lifted(proto, payloads, file.size, proto.replace(mark, b""))


def _stand_in(mark: bytes, number: int) -> bytes:
    return mark + number.to_bytes(4, "little")


def _raw_data(file: _File, tensor: _Field) -> _Field | None:
    found = [field for field in file.fields(tensor.value, tensor.end) if field.number == _RAW_DATA]
    if len(found) == 1 and found[0].kind == _BYTES and found[0].end - found[0].value > _LARGE:
        return found[0]
    return None


def _payloads(file: _File, fields: Sequence[_Field]) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """What the fields hold, in one block of memory, each on a boundary of 64 bytes."""
    sizes = [field.end - field.value for field in fields]
    ends = list(accumulate(-(-size // 64) * 64 for size in sizes))
    block = room(ends[-1])
    arrays = [block[end:][:size] for end, size in zip([0, *ends], sizes, strict=False)]
    for array, field in zip(arrays, fields, strict=True):
        file.fill(field.value, array)
    return arrays


def room(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """So many bytes, on a boundary of 64; not yet written to, they take no memory."""
    block = np.empty(nbytes + 64, np.uint8)
    return block[-block.ctypes.data % 64 :][:nbytes]


def _field(number: int, value: bytes) -> bytes:
    """A field of kind bytes, or of a message."""
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value


def _encoded(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
