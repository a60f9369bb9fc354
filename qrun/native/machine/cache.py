"""The cache on disk: compiled kernels, proven constants and images of models. Kernels are executable code, so only a
private directory of this user is trusted."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

from qrun.declare.digest import Bytes, digest
from qrun.declare.frozen import frozen
from qrun.errors import CallError
from qrun.memory import parse_size

_MAGIC = b"qrun-cache-2\n"
_DIGEST = 32
HEAD = len(_MAGIC) + 2 * _DIGEST
"""Bytes of a file before the entry itself."""
_LARGEST = 1 << 24
"""The most bytes of an entry that is read; a mapped entry takes at most half of the cache's limit."""
_BINARY = getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
_OLD = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _BINARY
_ENTRY = re.compile(r"[0-9a-f]{40}\.[a-z]+")
_UNFINISHED = re.compile(r"\.new-[0-9a-f]{16}")
SIZE = "512MiB"
"""The approximate limit of all entries together, unless QRUN_CACHE_SIZE sets another one."""
_PARTS = 32
"""About how many times the cache is trimmed while `limit` bytes are saved, each time to limit - limit // _PARTS."""
_PIECE = 1 << 20
_MINUTE, _HOUR = 60, 3600


def size_limit() -> int:
    """The limit of QRUN_CACHE_SIZE, in bytes. Raises CallError if that is no size."""
    given = os.environ.get("QRUN_CACHE_SIZE") or SIZE
    try:
        return parse_size(given)
    except ValueError:
        facts = [("expected", "such as 512MiB or 2GB"), ("got", given[:60])]
        fixes = ["unset QRUN_CACHE_SIZE", "--no-cache keeps nothing"]
        calls = ["unset QRUN_CACHE_SIZE", "Session(model, cache=False) keeps nothing"]
        raise CallError("QR005", "QRUN_CACHE_SIZE is not a size", facts=facts, fixes=fixes, calls=calls) from None


def default_directory() -> Path | None:
    """The directory of this user's compiled kernels: QRUN_CACHE_DIR, or below XDG_CACHE_HOME or the platform's cache
    folder."""
    if named := os.environ.get("QRUN_CACHE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if os.path.isabs(base):
            return Path(base) / "qrun" / "kernels"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "qrun" / "kernels"
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA", "")
            return Path(local) / "qrun" / "kernels" if os.path.isabs(local) else None
        return Path.home() / ".cache" / "qrun" / "kernels"
    except RuntimeError:
        return None


@frozen
class Entry:
    """A file of a cache: its name, its bytes, and when it was used last, in seconds since 1970."""

    name: str
    size: int
    used: float


class ObjectCache:
    """Objects by key in one directory, which is created with mode 0700 if it is missing.

    A directory that other users can access is not used: `refused` then says why, and nothing is read or written. An
    entry whose content does not match its hash, or that belongs to someone else, counts as absent. When all entries
    together take more than about `limit` bytes, the least recently used ones are removed. Raises CallError as
    `size_limit` does.
    """

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self.directory = Path(directory) if directory is not None else None
        self.refused = "" if directory is not None else "off"
        self.limit = 0
        if self.directory is not None:
            self.limit = size_limit()
            self.refused = _refusal(self.directory)

    def load(self, key: str, suffix: str = ".o") -> bytes | None:
        """The object stored under `key`, or None. suffix: of the file's name, as saved."""
        with self._open_entry(key, suffix, _LARGEST) as handle:
            if handle < 0:
                return None
            try:
                with os.fdopen(handle, "rb", buffering=0, closefd=False) as file:
                    content = file.read(os.fstat(handle).st_size)
            except OSError:
                return None
        head, body = content[:HEAD], content[HEAD:]
        return body if head == _head(key, (body,)) else None

    def has(self, key: str, suffix: str) -> bool:
        """Whether an entry is stored under `key`, damaged or not."""
        return (
            not self.refused and self.directory is not None and (self.directory / (_file_name(key) + suffix)).exists()
        )

    def map_entry(self, key: str, suffix: str) -> memoryview | None:
        """The same for a large object: the file's own memory, read-only, after all of it was checked."""
        with self._open_entry(key, suffix, self.limit // 2) as handle:
            if handle < 0:
                return None
            try:
                content = memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError):
                return None
        body = content[HEAD:]
        return body if content[:HEAD] == _head(key, (_checksums((body,)),)) else None

    def save(self, key: str, body: bytes, suffix: str = ".o") -> None:
        """Store atomically; a full or read-only disk is no error."""
        if len(body) <= min(_LARGEST, self.limit):
            self._save(key, _head(key, (body,)), (body,), suffix)

    def save_parts(self, key: str, parts: Sequence[Bytes], suffix: str) -> None:
        """Store an object for `map_entry`; it consists of these parts, one after another."""
        if sum(map(len, parts)) <= self.limit // 2:
            self._save(key, _head(key, (_checksums(parts),)), parts, suffix)

    def _save(self, key: str, head: bytes, parts: Sequence[Bytes], suffix: str) -> None:
        """Write an entry through a temporary file, and sometimes trim the directory to its limit."""
        if self.refused or self.directory is None:
            return
        name, size = _file_name(key), sum(map(len, parts))
        temporary = self.directory / f".new-{os.urandom(8).hex()}"
        try:
            with os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as file:
                file.writelines((head, *parts))
            os.replace(temporary, self.directory / (name + suffix))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if int(name[:8], 16) * self.limit < size * _PARTS << 32:
            _trim(self.directory, self.limit - self.limit // _PARTS)

    def entries(self) -> list[Entry]:
        """The entries, most recently used first; none of a refused directory."""
        return [] if self.refused or self.directory is None else _entries(self.directory)

    def clear(self) -> int:
        """Remove all entries and unfinished files of killed writers; returns the bytes of the entries removed. Other
        files stay."""
        before = self.entries()
        if self.directory is not None and not self.refused:
            _remove_unfinished(self.directory, _MINUTE)
            for entry in before:
                with contextlib.suppress(OSError):
                    os.unlink(self.directory / entry.name)
        left = {entry.name for entry in self.entries()}
        return sum(entry.size for entry in before if entry.name not in left)

    @contextlib.contextmanager
    def _open_entry(self, key: str, suffix: str, largest: int) -> Iterator[int]:
        """The entry's file, open, if it is a regular file of this user alone, and marked as used now; else -1."""
        handle = -1
        if not self.refused and self.directory is not None:
            handle = _open_own(self.directory / (_file_name(key) + suffix), largest)
        try:
            yield handle
        finally:
            if handle >= 0:
                os.close(handle)


def _file_name(key: str) -> str:
    """The name of an entry's file, without its suffix."""
    return digest(key.encode())[:40]


def _head(key: str, parts: Sequence[Bytes]) -> bytes:
    """The first bytes of an entry's file: a mark, and a digest of the key and the content."""
    return _MAGIC + digest(key.encode(), *parts).encode()


def _checksums(parts: Sequence[Bytes]) -> bytes:
    """The total length of the parts, and the CRC-32 of each MiB of them joined. This detects damage as reliably as a
    hash, in a sixth of the time. It need not resist forgery: whoever can write to the folder could store a matching
    hash, too."""
    found, check, room = [sum(map(len, parts))], 0, _PIECE
    for part in parts:
        left = memoryview(part)
        while len(left):
            now, left = left[:room], left[room:]
            check, room = crc32(now, check), room - len(now)
            if not room:
                found.append(check)
                check, room = 0, _PIECE
    return struct.pack(f"<{len(found) + 1}Q", *found, check)


def _refusal(directory: Path) -> str:
    """Why a directory is not used as a cache; "" if it is."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(directory)
    except OSError as error:
        return f"cannot be made: {error.strerror or error}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if hasattr(os, "geteuid"):
        if status.st_uid != os.geteuid():
            return "belongs to another user"
        if status.st_mode & 0o077:
            return "is open to other users (mode must be 0700)"
    return ""


def _open_own(path: Path, largest: int) -> int:
    """The handle of a regular file of this user alone, of at most this size; its time of use is set to now. -1 for any
    other file."""
    try:
        handle = os.open(path, _OLD)
    except OSError:
        return -1
    try:
        status = os.fstat(handle)
        mine = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
        if stat.S_ISREG(status.st_mode) and status.st_size <= largest and mine:
            if time.time() - status.st_mtime > _MINUTE:
                with contextlib.suppress(OSError):
                    os.utime(handle if os.utime in os.supports_fd else path)
            return handle
    except OSError:
        pass
    os.close(handle)
    return -1


def _trim(directory: Path, limit: int) -> None:
    """Remove unfinished files of killed writers, and the least recently used entries, until `limit` bytes are left."""
    _remove_unfinished(directory, _HOUR)
    entries = _entries(directory)
    total = sum(entry.size for entry in entries)
    for entry in reversed(entries):
        if total <= limit:
            break
        with contextlib.suppress(OSError):
            os.unlink(directory / entry.name)
        total -= entry.size


def _entries(directory: Path) -> list[Entry]:
    """The files of a cache's entries, most recently used first; none where the folder cannot be read."""
    found: list[Entry] = []
    with contextlib.suppress(OSError), os.scandir(directory) as files:
        for file in files:
            with contextlib.suppress(OSError):
                status = file.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and _ENTRY.fullmatch(file.name):
                    found.append(Entry(file.name, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: (-entry.used, entry.name))


def _remove_unfinished(directory: Path, age: float) -> None:
    """Remove unfinished files that are older than `age` seconds: their writers were killed."""
    now = time.time()
    with contextlib.suppress(OSError), os.scandir(directory) as files:
        for file in files:
            with contextlib.suppress(OSError):
                status = file.stat(follow_symlinks=False)
                old = stat.S_ISREG(status.st_mode) and now - status.st_mtime > age
                if old and _UNFINISHED.fullmatch(file.name):
                    os.unlink(file.path)
