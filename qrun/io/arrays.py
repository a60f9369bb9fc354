"""Reads .npy and .npz files without trusting their headers, and writes .npy data.

Format: numpy.lib.format, versions 1 to 3. Pickled objects are never loaded.
"""

from __future__ import annotations

import ast
import io
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from qrun.errors import CallError, absent, close_matches, some
from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.memory import Budget
from qrun.shapes import MOST_AXES

if TYPE_CHECKING:
    from zipfile import ZipInfo

NPY = b"\x93NUMPY"
ZIP = b"PK"
MAX_HEADER = 10_000
CHUNK = 1 << 24
DAMAGE = (NotImplementedError, EOFError, RuntimeError, OSError, ValueError)
"""Exceptions from reading a damaged .npz file, in addition to those of DAMAGE_MODULES."""
DAMAGE_MODULES = ("zipfile", "zlib", "_lzma", "_bz2")
FLOAT8_E5M2 = ("<f1", "|f1")
"""The types that np.save writes for ml_dtypes.float8_e5m2, and np.load does not read."""
_WRITTEN = {
    "": "write it with np.save",
    ".csv": "np.save('x.npy', np.loadtxt(FILE, np.float32, delimiter=','))",
    ".txt": "np.save('x.npy', np.loadtxt(FILE, np.float32))",
    ".onnx": "-i takes arrays; one model is given, two are compared: qrun compare A B",
    ".json": "-i x=[1,2] takes the values themselves",
    **dict.fromkeys((".gif", ".tif", ".tiff"), "qrun reads .png, .jpg, .jpeg, .bmp and .webp: convert the image"),
}
"""The fix for other files, by suffix: how to get an array from them."""


def bad_file(source: str, got: str, expected: str = "", *, fix: str = "", why: str = "") -> CallError:
    """The QR007 error of a file from which no array can be read."""
    facts = [(label, value) for label, value in (("expected", expected), ("got", got)) if value]
    return CallError(
        "QR007", f"cannot read an array from {source}", where=[source], facts=facts, why=why, fixes=[fix] if fix else []
    )


ARRAYS = (".npy", ".npz", ".pb")
"""The suffixes of array files."""


def no_such_file(path: Path | str, error: OSError | ValueError) -> CallError:
    """The error for an input file that cannot be opened. It names files of the same kind beside it."""
    path = Path(path)
    reason = getattr(error, "strerror", None) or str(error)
    try:
        beside = sorted(p.name for p in path.parent.iterdir() if p.suffix in (*ARRAYS, path.suffix) or p.is_dir())
    except (OSError, ValueError):
        beside = []
    near = close_matches(path.name, [name for name in beside if name != path.name])
    _, fix = absent(str(path))
    if not fix and near:
        fix = f"did you mean {path.parent / near[0]}?"
    elif not fix:
        kinds = ARRAYS if path.suffix in ARRAYS else (path.suffix or "/",)
        files = [name for name in beside if name.endswith(kinds)]
        folder = "the current folder" if path.parent == Path() else str(path.parent)
        fix = f"{', '.join(kinds)} in {folder}: {some(files)}" if files else "check the path"
    return CallError("QR004", f"cannot read {str(path)!r}: {reason}", where=[str(path)], fixes=[fix])


def read_npy(path: Path, budget: Budget) -> Array:
    """Read the array of a .npy file. Raises CallError if the file has anything else."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            regular = path.is_file()
            array = read_array(stream, str(path), budget, size if regular else None)
            if regular and stream.read(1):
                fix = "give several arrays as -i name=FILE each, or in one .npz"
                raise bad_file(
                    str(path), f"{size - stream.tell() + 1} more bytes after the array", "one array", fix=fix
                )
            return array
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None


class Npz:
    """An open .npz file, which reads an array on request. members: by key. Raises CallError for a damaged file."""

    def __init__(self, source: str, stream: IO[bytes]) -> None:
        from zipfile import ZipFile

        self.source = source
        self.members: dict[str, ZipInfo] = {}
        with _translate_damage(source):
            self._archive = ZipFile(stream)
        for info in self._archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key in self.members:
                raise bad_file(source, f"{key!r} twice", "every array once")
            self.members[key] = info

    def read(self, key: str, budget: Budget) -> Array:
        """Read the array of a key."""
        info = self.members[key]
        with _translate_damage(self.source), self._archive.open(info) as member:
            return read_array(member, f"{self.source}[{key}]", budget, info.file_size)

    def unpack(self, key: str, target: IO[bytes]) -> None:
        """Write the bytes of a member, a .npy file, to a stream."""
        with _translate_damage(self.source), self._archive.open(self.members[key]) as member:
            while block := member.read(CHUNK):
                target.write(block)


def read_npz(source: str, stream: IO[bytes], budget: Budget) -> dict[str, Array]:
    """Read the arrays of a .npz file by key, and hold them in the budget."""
    archive, arrays = Npz(source, stream), {}
    for key in archive.members:
        arrays[key] = archive.read(key, budget)
        budget.hold(arrays[key], f"{source}[{key}]")
    return arrays


@contextmanager
def _translate_damage(source: str) -> Iterator[None]:
    """Turn exceptions about a damaged file into QR007 errors."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, DAMAGE) and type(error).__module__.partition(".")[0] not in DAMAGE_MODULES:
            raise
        got = str(error) or type(error).__name__
        raise bad_file(source, got, "an .npz file", fix="write it again with np.savez") from None


def read_stream(stream: IO[bytes], source: str, budget: Budget) -> dict[str, Array] | list[Array]:
    """Read one .npz file, or one or more .npy files in a row, from a stream. The first bytes show which."""
    start = stream.read(len(NPY))
    if start.startswith(ZIP):
        rest = bytearray(start)
        while block := stream.read(CHUNK):
            rest += block
            budget.claim((len(rest),), 1, source)
        return read_npz(source, io.BytesIO(bytes(rest)), budget)
    arrays = []
    while start:
        arrays.append(read_array(stream, source, budget, None, start))
        budget.hold(arrays[-1])
        start = stream.read(len(NPY))
    if not arrays:
        raise bad_file(source, "nothing", "a .npy or .npz file")
    return arrays


def read_array(stream: IO[bytes], source: str, budget: Budget, size: int | None, start: bytes = b"") -> Array:
    """Read one array from a stream.

    size:  bytes in the stream, if known; the header's claim is compared with it before anything is allocated.
    start: bytes already taken from the stream.
    Raises CallError for anything that is not a whole array of numbers, MemoryLimitError above the budget.
    """
    dtype, shape, fortran, used = read_header(stream, source, start)
    nbytes = math.prod(shape) * dtype.itemsize
    if size is not None and nbytes > size - used:
        expected = f"{nbytes} bytes for {dtype} {shape_text(shape)}"
        fix = "the file is cut off or damaged: write it again"
        raise bad_file(source, f"{max(size - used, 0)} bytes after the header", expected, fix=fix)
    budget.claim(shape, dtype.itemsize, source)
    data = _exactly(stream, nbytes, source, f"{dtype} {shape_text(shape)}")
    try:
        array: Array = np.frombuffer(data, dtype, math.prod(shape))
        array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
    except ValueError as error:
        raise bad_file(source, f"shape {shape_text(shape)}: {error}", "a shape that numpy can hold") from None
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def read_header(stream: IO[bytes], source: str, start: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Read the header of a .npy file: type, shape, whether in Fortran order, length. `start` was read before."""
    magic = start + stream.read(8 - len(start))
    if magic[:6] != NPY[: len(magic)]:
        raise bad_file(source, _looks(magic), "a .npy file", fix=_WRITTEN.get(Path(source).suffix, _WRITTEN[""]))
    if len(magic) < 8 or magic[6] not in (1, 2, 3):
        raise bad_file(
            source, f"version {magic[6]}" if len(magic) > 6 else f"{len(magic)} bytes", "a .npy file, version 1 to 3"
        )
    digits = 2 if magic[6] == 1 else 4
    raw = stream.read(digits)
    length = int.from_bytes(raw, "little")
    if length > MAX_HEADER:
        raise bad_file(source, f"a header of {length} bytes", f"at most {MAX_HEADER}")
    text = stream.read(length)
    if len(raw) < digits or len(text) < length:
        raise bad_file(source, "a file that ends inside its header", "a .npy file", fix="write it again with np.save")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fields = ast.literal_eval(text.decode("latin1" if magic[6] < 3 else "utf-8").strip())
        descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > MOST_AXES:
            raise ValueError(f"shape {shape!r}")
        if not isinstance(descr, str):
            raise bad_file(source, "records with named fields", "an array of one element type")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dtype = np.dtype("V1" if descr in FLOAT8_E5M2 else descr)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise bad_file(
            source, f"a damaged header: {error}"[:200], "a .npy file", fix="write it again with np.save"
        ) from None
    if dtype.hasobject:
        why = "pickles run code when loaded, so qrun never loads them."
        fix = "save x.astype(str) if they are texts, x.astype(np.float32) if numbers; ragged lists are neither"
        raise bad_file(source, "pickled Python objects", "an array of numbers or texts", why=why, fix=fix)
    if dtype.kind not in "biufcUV" or dtype.names or dtype.subdtype or not dtype.itemsize:
        raise bad_file(source, f"elements of type {dtype}", "numbers, booleans or text")
    return dtype, shape, bool(fortran), 8 + digits + length


def _looks(start: bytes) -> str:
    """What a file's first bytes look like."""
    for magic, kind in ((ZIP, "a zip archive; .npz files end in .npz"), (b"\x80", "a pickle"), (b"", "")):
        if magic and start.startswith(magic):
            return kind
    return f"a file that starts with {start!r}" if start else "an empty file"


def _exactly(stream: IO[bytes], nbytes: int, source: str, what: str) -> bytes | bytearray:
    """Read exactly `nbytes`. Raises CallError if the file ends before."""
    data = stream.read(min(nbytes, CHUNK))
    if len(data) == nbytes:
        return data
    whole = bytearray(data)
    while len(whole) < nbytes:
        block = stream.read(min(nbytes - len(whole), CHUNK))
        if not block:
            raise bad_file(
                source, f"{len(whole)} bytes", f"{nbytes} bytes for {what}", fix="the file is cut off: write it again"
            )
        whole += block
    return whole


def write_npy(stream: IO[bytes], array: Array) -> None:
    """Write one array in .npy format. Its type must be one that `storable` returns."""
    # numpy asks a file object for its position, which a pipe does not have, but not an object that only has write().
    writer: Any = stream if stream.seekable() else SimpleNamespace(write=stream.write)
    np.lib.format.write_array(writer, np.asanyarray(array), allow_pickle=False)


def numbered_files(folder: Path, kind: str) -> Iterator[Path]:
    """Yield ``input_0.pb``, ``input_1.pb``, ... of a test_data_set folder, in order, until one is missing."""
    index = 0
    while (path := folder / f"{kind}_{index}.pb").exists():
        yield path
        index += 1
