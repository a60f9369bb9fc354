"""Opens files that a model, a test vector or a repository names: only regular files, and reads only up to a limit. A
link may lead to /dev/zero, which never ends, or to a pipe to which nobody writes.

External data stays as it was when the model was loaded. Large tensors are read when they are needed, from files that
stay open and must not have changed by then; they are not mapped, as truncating the file would end the process.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import FileIO
from operator import itemgetter
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from qrun.errors import MemoryLimitError, ModelError
from qrun.memory import Budget, default_limit, human

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_HANDLES = ("/dev/", "/proc/")
"""Where open files of this process have names, such as /dev/stdin, or /dev/fd/63 for ``<(COMMAND)`` of a shell."""


def open_regular(path: Path, pipes: bool = False) -> FileIO:
    """Open a regular file for reading, without waiting for a writer of a pipe.

    pipes: also open a pipe that this process was started with.
    Raises OSError for anything else.
    """
    handle = os.open(path, _FLAGS)
    try:
        mode = os.fstat(handle).st_mode
        if pipes and stat.S_ISFIFO(mode) and os.path.realpath(path).startswith(_HANDLES):
            os.set_blocking(handle, True)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except BaseException:
        os.close(handle)
        raise
    return FileIO(handle, "rb")


def read_regular(path: Path, budget: Budget) -> bytes:
    """The content of a regular file.

    Raises OSError where it cannot be read, and MemoryLimitError, before anything is read, where it is too large.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        budget.claim((size,), 1, str(path))
        return stream.read(size)


_TICK = 2_000_000_000
"""Nanoseconds between ticks that no file system's clock exceeds: FAT's clock ticks every two seconds."""
_LARGE = 1 << 20
"""Tensors from this size on, in bytes, are read when they are needed."""
_OPEN = 16
"""The most files of a model that stay open for this."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class External:
    """Reads the external data of one model: only inside `folder`; data that several tensors share is read once.

    payloads: the contents of `raw_data` where it holds a stand-in (wire.py).
    spared:   the bytes of a missing file are 0, and the file is added to `missing`; otherwise it is refused.
    budget:   the account that counts the data read; None: one of its own.
    Source: ONNX IR, "External Tensor Data".
    """

    def __init__(
        self,
        folder: Path | None,
        payloads: Mapping[bytes, memoryview] | None = None,
        spared: bool = False,
        budget: Budget | None = None,
    ) -> None:
        self.folder = folder.resolve() if folder else None
        self.payloads = payloads or {}
        self.files: dict[str, _File] = {}
        self.missing: set[str] = set()
        self._spared, self._zeros = spared, _room(0)
        self._own = budget is None
        self._budget = budget or Budget(default_limit)

    def read(self, location: str, tensor: str, start: int, length: int) -> Bytes:
        """The bytes of a tensor, perhaps shared with others.

        Raises ModelError where they cannot be read, MemoryLimitError where they take more than 80 % of the free memory.
        """
        if self.folder is None and self._spared:
            return self._none(location, length)
        with self._explain_errors(location, tensor, length):
            try:
                return self._file(location, tensor).read(start, length, tensor, self._budget)
            except FileNotFoundError:
                if not self._spared:
                    raise
                return self._none(location, length)

    def read_later(self, location: str, tensor: str, start: int, length: int) -> Callable[[memoryview], None] | None:
        """A function that reads the bytes of a large tensor when they are needed; None where `read` must do it now.

        Raises what `read` raises; the function raises ModelError if the file has changed.
        """
        if length < _LARGE or self.folder is None or self._spared or not hasattr(os, "preadv"):
            return None
        with self._explain_errors(location, tensor, length):
            file = self._file(location, tensor)
            if file.open is None and sum(other.open is not None for other in self.files.values()) >= _OPEN:
                return None
            opened = file.stays(start, length, tensor, self._budget)
        return partial(_read_again, opened, location, tensor, start) if opened else None

    def _file(self, location: str, tensor: str) -> _File:
        """The opened external file of a tensor. Raises ModelError."""
        if location not in self.files:
            if self.folder is None:
                reason = "the model did not come from a file, so its folder is unknown"
                raise _external(tensor, location, reason)
            self.files[location] = _File(self._inside(location, tensor))
        return self.files[location]

    @contextmanager
    def _explain_errors(self, location: str, tensor: str, length: int) -> Iterator[None]:
        """Translate errors into words for the user."""
        try:
            yield
        except MemoryLimitError as error:
            raise _no_room(error, self._budget.live + length) if self._own else error from None
        except _Short as short:
            start, end, size = short.args
            what = f"{location} is shorter than the model says"
            facts = [("expected", f"bytes {start} to {end}"), ("got", f"{location}, {size} bytes")]
            fixes = [f"copy {location} again; it belongs next to the model"]
            raise ModelError("QR104", what, where=[f"tensor {tensor}"], facts=facts, fixes=fixes) from None
        except _Refused as reason:
            raise _external(tensor, location, str(reason)) from None
        except OSError as error:
            fix = f"copy {location} next to the model"
            raise _external(tensor, location, error.strerror or str(error), fix=fix) from None

    def zeros(self, tensor: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
        """A tensor that the file does not store element by element. Raises MemoryLimitError as `read` does."""
        what = f"tensor {tensor}"
        try:
            self._budget.claim(shape, dtype.itemsize, what)
        except MemoryLimitError as error:
            raise _no_room(error, self._budget.live + math.prod(shape) * dtype.itemsize) from None
        made = np.full(shape, "", object) if dtype.hasobject else np.zeros(shape, dtype)
        self._budget.hold(made, what)
        return made

    def _none(self, location: str, length: int) -> Bytes:
        """`length` zeros, which take no memory until they are written to."""
        self.missing.add(location)
        if len(self._zeros) < length:
            self._zeros = np.zeros(length, np.uint8)
        return self._zeros[:length]

    def content(self) -> Iterator[bytes | memoryview]:
        """Each file's name with its state, if a later change shows in that; else with each block's place and bytes."""
        for location, file in sorted(self.files.items()):
            if file.settled:
                yield repr((location, file.seen, file.changed)).encode()
                continue
            for index, block in sorted(file.blocks.items(), key=itemgetter(0)):
                yield repr((location, index)).encode()
                yield memoryview(block)  # type: ignore[arg-type]

    def _inside(self, location: str, tensor: str) -> Path:
        """The path of an external file. Raises ModelError if it is outside the model's folder."""
        assert self.folder is not None
        parts = location.replace("\\", "/").split("/")
        escapes = location.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in location
        try:
            path = self.folder if escapes or not location else (self.folder / location).resolve()
        except (OSError, RuntimeError, ValueError):
            escapes, path = True, self.folder
        if escapes or path == self.folder or not path.is_relative_to(self.folder):
            raise _external(
                tensor,
                location,
                "it points outside the model's folder" if location else "no location",
                why="ONNX IR: external data stays below the folder of the model; no absolute path, no '..', no link out.",
            )
        return path


def _no_room(error: MemoryLimitError, needed: int) -> MemoryLimitError:
    """The error with a fix for a model whose weights do not fit in memory."""
    error.fixes, error.calls = (f"free memory: the model needs {human(needed)} for its weights alone",), ()
    return error


class _Refused(Exception):
    """The reason why a file is not read."""


class _Short(Exception):
    """A file is too short. Its arguments: the first byte needed, the end of the bytes needed, the file's size."""


class _File:
    """A file of external data. seen: its device, inode, size and time of modification, which must not change while a
    model is read.

    From before the first read: changed: the time of the last change of the file (ns); settled: whether any later change
    gets another time, as it does once the clock of the file system has ticked. Only POSIX keeps users from setting it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: tuple[int, ...] = ()
        self.size = self.changed = 0
        self.settled = False
        self.blocks: dict[tuple[int, int], Bytes] = {}
        self.open: _Open | None = None
        self._later: set[tuple[int, int]] = set()
        self._taken = 0

    def stays(self, start: int, length: int, tensor: str, budget: Budget) -> _Open | None:
        """The file, which stays open so that these bytes can be read later; None where they must be read now: a change
        might not show, or tensors overlap. The bytes count as if they were read."""
        with open_regular(self.path) as stream:
            self._look(stream, start, length)
            again = (start, length) in self._later
            if not self.settled or (start, length) in self.blocks or (not again and self._taken + length > self.size):
                return None
            if not again:
                budget.claim((length,), 1, f"tensor {tensor}")
                budget.reserve(length, f"tensor {tensor}")
                self._taken += length
                self._later.add((start, length))
            if self.open is None:
                self.open = _Open(os.dup(stream.fileno()))
                self._check(stream)
            return self.open

    def _look(self, stream: FileIO, start: int, length: int) -> None:
        """Check that the file is unchanged and has these bytes."""
        self._check(stream)
        if start < 0 or start + length > self.size:
            raise _Short(start, start + length, self.size)

    def read(self, start: int, length: int, tensor: str, budget: Budget) -> Bytes:
        """Read a tensor's bytes; overlapping tensors share one copy."""
        with open_regular(self.path) as stream:
            self._look(stream, start, length)
            if (start, length) in self.blocks:
                return self.blocks[start, length]
            if self._taken + length > self.size:  # tensors overlap: one copy of the file serves them all
                if (0, self.size) not in self.blocks:
                    self._fill(stream, 0, self.size, tensor, budget)
                return self.blocks[0, self.size][start : start + length]
            self._taken += length
            return self._fill(stream, start, length, tensor, budget)

    def _check(self, stream: FileIO) -> None:
        """Raise _Refused if the file has changed since it was first read."""
        status = os.fstat(stream.fileno())
        now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self.seen and now != self.seen:
            raise _Refused("a file that changed while it was read")
        if not self.seen:
            self.changed = status.st_ctime_ns
            self.settled = os.name == "posix" and time.time_ns() - max(status.st_mtime_ns, self.changed) > _TICK
        self.seen, self.size = now, status.st_size

    def _fill(self, stream: FileIO, start: int, length: int, tensor: str, budget: Budget) -> Bytes:
        """Read bytes into new memory within the budget."""
        budget.claim((length,), 1, f"tensor {tensor}")
        block = _room(length)
        stream.seek(start)
        left = memoryview(block)  # type: ignore[arg-type]
        while len(left):
            count = stream.readinto(left)
            if not count:
                raise _Refused("a file that changed while it was read")
            left = left[count:]
        self._check(stream)
        budget.hold(block, f"tensor {tensor}")
        self.blocks[start, length] = block
        return block


class _Open:
    """A file that stays open. It may be removed, and another may take its name, but its contents must not change."""

    def __init__(self, handle: int) -> None:
        self._handle, self._before = handle, os.fstat(handle)
        finalize(self, os.close, handle)

    def fill(self, block: memoryview, start: int) -> None:
        """Read the bytes from `start` on. Raises OSError, and _Refused if the file has changed since it was opened."""
        while len(block) and (count := os.preadv(self._handle, [block], start)):
            block, start = block[count:], start + count
        if len(block) or self._changed:
            raise _Refused("a file that has changed since the model was loaded")

    @property
    def _changed(self) -> bool:
        """Whether the file's contents have changed; gaining or losing a name does not count."""
        now, before = os.fstat(self._handle), self._before
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            return True
        return now.st_ctime_ns != before.st_ctime_ns and now.st_nlink == before.st_nlink


def _read_again(opened: _Open, location: str, tensor: str, start: int, block: memoryview) -> None:
    """Read a tensor's bytes again into memory. Raises ModelError."""
    try:
        opened.fill(block, start)
    except _Refused as reason:
        raise _external(tensor, location, str(reason), fix="load the model again") from None
    except OSError as error:
        raise _external(tensor, location, error.strerror or str(error)) from None


def _room(nbytes: int) -> Bytes:
    """A buffer of `nbytes`, aligned to 64; it takes no memory until it is written to."""
    block = np.empty(nbytes + 64, np.uint8)
    return block[-block.ctypes.data % 64 :][:nbytes]


def _external(tensor: str, location: str, got: str, *, why: str = "", fix: str = "") -> ModelError:
    """The QR104 error of external data that cannot be read."""
    what = f"the data of tensor {tensor!r} cannot be read"
    facts = [("expected", f"{repr(location)[1:-1] or 'a file'} in the folder of the model"), ("got", got)]
    return ModelError("QR104", what, where=[f"tensor {tensor}"], facts=facts, why=why, fixes=[fix] if fix else [])
