"""Reads single rows of arrays in .npy and .npz files on request, so that files of any size take little memory.

Files are read, not mapped: a file that becomes shorter meanwhile is an error, where a mapped one would end the process.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any
from zipfile import ZIP_STORED

import numpy as np

from qrun.errors import CallError
from qrun.io.arrays import NPY, ZIP, Npz, bad_file, no_such_file, read_array, read_header
from qrun.ir import Array, TensorType
from qrun.ir.types import shape_text
from qrun.memory import Budget

_LOCAL = 30
"""The size in bytes of a .zip file's local header before the name (APPNOTE.TXT 6.3.10, section 4.3.7)."""
_SEEK = threading.Lock()


class RowFile:
    """An array in an open file, from `offset` on, in C order. The file stays open as long as this object lives.

    shape: the array's shape, whose leading axis is that of the rows. source: the file, for messages.
    """

    def __init__(
        self, stream: IO[bytes], offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], source: str
    ) -> None:
        self.dtype, self.shape, self.source = dtype.newbyteorder("="), shape, source
        self._stored, self._file, self._offset = dtype, os.dup(stream.fileno()), offset
        self._row = math.prod(shape[1:]) * dtype.itemsize

    def __del__(self) -> None:
        if (file := getattr(self, "_file", None)) is not None:
            os.close(file)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, start: int, stop: int) -> Array:
        """Read rows ``start .. stop - 1``. Raises CallError if the file has become shorter."""
        wanted = (stop - start) * self._row
        data = bytearray()
        while len(data) < wanted:
            part = _read_at(self._file, wanted - len(data), self._offset + start * self._row + len(data))
            if not part:
                got = f"it ends inside row {start + len(data) // self._row}"
                raise bad_file(self.source, got, f"{len(self)} rows", fix="write it again")
            data += part
        rows = np.frombuffer(data, self._stored, wanted // self._stored.itemsize)
        shaped: Array = rows.reshape(stop - start, *self.shape[1:])
        return shaped.astype(self.dtype, copy=False)


class RowArray(RowFile):
    """An array in memory with the same interface, such as one in Fortran order, whose rows are not contiguous."""

    def __init__(self, array: Array, source: str) -> None:
        self.dtype, self.shape, self.source, self._array = array.dtype, array.shape, source, array

    def read(self, start: int, stop: int) -> Array:
        """The rows from `start` to `stop`."""
        return np.ascontiguousarray(self._array[start:stop])


def _read_at(file: int, size: int, start: int) -> bytes:
    """Up to `size` bytes of an open file from `start` on, in any thread."""
    if hasattr(os, "pread"):
        return os.pread(file, size, start)
    with _SEEK:  # Windows reads only at the file's position, which all duplicates of a handle share
        os.lseek(file, start, os.SEEK_SET)
        return os.read(file, size)


def row_files(path: Path, budget: Budget) -> dict[str, RowFile]:
    """Open the arrays of a .npz file by key, or the array of a .npy file under the key "".

    Compressed members are unpacked once, to an unnamed temporary file.
    Raises CallError for anything else, and for an array without axes.
    """
    try:
        with open(path, "rb") as stream:
            return _rows(stream, str(path), budget)
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None


def _rows(stream: IO[bytes], source: str, budget: Budget) -> dict[str, RowFile]:
    """The arrays of an open .npz or .npy file, as `row_files` returns them."""
    start = stream.read(len(NPY))
    stream.seek(0)
    if not start.startswith(ZIP):
        return {"": _array(stream, source, budget)}
    archive = Npz(source, stream)
    return {key: _member(archive, key, stream, budget) for key in archive.members}


def one_row(
    file: str, number: int, spec: str, stated: Callable[[str], TensorType | None], budget: Budget
) -> dict[str, Array]:
    """Read one row of each array of a file, by key, with a leading axis of one, which is dropped if the input has one
    axis less. stated: returns the input of a key. spec: the SPEC, for messages. Raises CallError."""
    found = {}
    for key, rows in row_files(Path(file), budget).items():
        if number >= len(rows):
            raise bad_file(spec, f"{len(rows)} rows", f"a row from 0 to {len(rows) - 1}")
        row, value = rows.read(number, number + 1), stated(key)
        short = value is not None and value.shape is not None and len(value.shape) == row.ndim - 1
        found[key] = row[0] if short else row
    return found


def spool(stream: IO[bytes], source: str, budget: Budget) -> dict[str, RowFile]:
    """Open the arrays of a stream as `row_files` does; copies the stream to a temporary file first."""
    with tempfile.TemporaryFile(prefix="qrun-") as file:
        copyfileobj(stream, file, 1 << 20)
        file.seek(0)
        try:
            found = _rows(file, source, budget)
        except (CallError, OSError, ValueError) as error:
            got = dict(error.facts).get("got", error.message) if isinstance(error, CallError) else str(error)
            raise bad_file(source, got, "a .npy or .npz file") from None
    for key, rows in found.items():
        rows.source = f"{source}[{key}]" if key else source
    return found


def _array(stream: IO[bytes], source: str, budget: Budget, size: int | None = None) -> RowFile:
    """Open the array at the stream's position. size: bytes of header and array; None: up to the end of the file.

    Raises CallError if the header claims another size.
    """
    begin = stream.tell()
    limit = os.fstat(stream.fileno()).st_size - begin if size is None else size
    dtype, shape, fortran, used = read_header(stream, source, b"")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != limit - used:
        wanted = f"{claimed} bytes for {dtype} {shape_text(shape)}"
        got = f"{max(limit - used, 0)} bytes after the header"
        raise bad_file(source, got, wanted, fix="the file is cut off or damaged: write it again")
    if not shape:
        raise bad_file(
            source, "one number", "an array with a leading axis of samples", fix="np.save(path, [x, y, ...])"
        )
    if fortran and len(shape) > 1:
        stream.seek(begin)
        return RowArray(read_array(stream, source, budget, limit), source)
    return RowFile(stream, begin + used, dtype, shape, source)


def _member(archive: Npz, key: str, stream: IO[bytes], budget: Budget) -> RowFile:
    """The rows of an archive's array: read in place if stored, else unpacked to a temporary file."""
    info = archive.members[key]
    source = f"{archive.source}[{key}]"
    if info.compress_type == ZIP_STORED and not info.flag_bits & 1:
        stream.seek(info.header_offset)
        head = stream.read(_LOCAL)
        if len(head) == _LOCAL:
            name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
            stream.seek(info.header_offset + _LOCAL + name + extra)
            return _array(stream, source, budget, info.file_size)
    with tempfile.TemporaryFile(prefix="qrun-") as file:
        archive.unpack(key, file)
        file.seek(0)
        return _array(file, source, budget)
