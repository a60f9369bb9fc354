"""Writes files atomically: in a hidden folder beside their destination, from which they are moved into place.

That folder, ``.qrun-new-N``, is locked while its writer lives; the next writer removes folders that killed ones left.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from shlex import quote
from typing import IO

from qrun.errors import CallError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)), "make room there, or write elsewhere"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "write to a folder that is yours"),
    errno.ELOOP: "remove the link, or name another file",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""The fix for an error while writing, by errno."""
HIDDEN = ".qrun-new-"
"""The prefix of the hidden folders' names."""
_LOCK = "lock"
_NOTHING = (FileNotFoundError, NotADirectoryError)


def cannot(target: str, reason: str, fix: str = "check the path") -> CallError:
    """The error for a file or folder that cannot be written."""
    return CallError("QR008", f"cannot write {target!r}: {reason}", where=[target], fixes=[fix])


def write_error(target: str, error: OSError | ValueError) -> CallError:
    """The error for a file or folder whose writing failed with `error`."""
    fix = REMEDIES.get(getattr(error, "errno", 0) or 0, "check the path")
    return cannot(target, getattr(error, "strerror", None) or str(error), fix)


def real_path(target: str) -> str:
    """The absolute path with links resolved. Raises CallError if it begins at a current folder that was removed."""
    try:
        return os.path.realpath(target)
    except OSError:
        raise cannot(target, "the current folder was removed", "change to a folder that exists") from None


def check_file(target: str) -> None:
    """Raise CallError if `replace_file` cannot write to this file, as far as can be known in advance."""
    found = _status(target)
    if not target or target.endswith(("/", os.sep)) or (found is not None and stat.S_ISDIR(found.st_mode)):
        raise cannot(target, "it is a folder" if target else "the name is empty", "name a file")
    if found is None or stat.S_ISREG(found.st_mode):
        _check_parent(target, os.path.dirname(real_path(target) if os.path.islink(target) else target) or ".")


def check_folder(target: str) -> None:
    """Raise CallError if `write_files` cannot write to this folder, as far as can be known in advance."""
    found = _status(target.rstrip("/" + os.sep) or target)
    if found is None:
        parent = os.path.dirname(real_path(target))
        while not os.path.exists(parent) and parent != os.path.dirname(parent):
            parent = os.path.dirname(parent)
        _check_parent(target, parent)
    elif not stat.S_ISDIR(found.st_mode):
        raise cannot(target, "a file of that name exists")
    elif not os.access(target, os.W_OK):
        raise cannot(target, "the folder is not writable")


def _check_parent(target: str, parent: str) -> None:
    """Raise CallError unless files can be written in the folder `parent`."""
    found = _status(parent)
    if found is None or not stat.S_ISDIR(found.st_mode) or not os.access(parent, os.W_OK):
        reason = (
            "does not exist" if found is None else "is not writable" if os.path.isdir(parent) else "is not a folder"
        )
        fix = "check the path" if found is not None else f"mkdir -p {quote(parent)}"
        raise cannot(target, f"{parent!r} {reason}", fix)


def _status(path: str) -> os.stat_result | None:
    """The status of a path, with links followed; None if nothing is there. Raises CallError for an invalid path."""
    try:
        return os.stat(path)
    except _NOTHING:
        return None
    except (OSError, ValueError) as error:
        raise write_error(path, error) from None


@contextmanager
def replace_file(target: str) -> Iterator[IO[bytes]]:
    """A stream to a new file that replaces `target` when the block ends without an error, with the old file's mode.

    Links are followed. A target that is no regular file (a pipe, a device) is written directly. Raises CallError if the
    file cannot be written; then, and if the block raises, the old file is unchanged.
    """
    check_file(target)
    old = _status(target)
    with _report_errors(target):
        if old is not None and not stat.S_ISREG(old.st_mode):
            with open(target, "wb") as stream:
                yield stream
            return
        path = real_path(target)
        with _hidden_folder(os.path.dirname(path)) as hidden:
            new = os.path.join(hidden, "0")
            with open(new, "xb") as stream:
                yield stream
            if old is not None:
                os.chmod(new, old.st_mode & 0o777)
            os.replace(new, path)


def write_files(folder: str, files: Iterable[tuple[str, bytes]], index: str = "") -> None:
    """Write files, given by name and content, into a folder: all of them, or none. Creates the folder if it is missing.

    index: the file that readers open first, if that is not the first of `files`.
    Other files in it stay. Raises CallError if something cannot be written; then, and if `files` raises, the folder is
    unchanged. While the files are moved into place, the first of them is missing, so that a reader who reads them in
    order does not take a mix of old and new files for one set, even if the writer is killed meanwhile.
    """
    _status(folder)
    path = real_path(folder)
    made = [] if os.path.isdir(path) else [path]
    while made and not os.path.exists(parent := os.path.dirname(made[-1])):
        made.append(parent)
    try:
        with _report_errors(folder):
            os.makedirs(path, exist_ok=True)
            with _hidden_folder(path) as hidden:
                written: dict[str, str] = {}
                for name, content in files:
                    new = os.path.join(hidden, str(len(written)))
                    with open(new, "xb") as stream:
                        stream.write(content)
                    written[name] = new
                first = {index: written[index]} if index else {}
                _exchange(path, {**first, **written})
    except BaseException:
        for empty in made:
            with suppress(OSError):
                os.rmdir(empty)
        raise


def _exchange(folder: str, written: Mapping[str, str]) -> None:
    """Move new files, given by name, into the folder, and old files of these names beside the new ones' places; or
    nothing."""
    places = [os.path.join(folder, name) for name in written]
    new = list(written.values())
    old = [f"{path}.old" for path in new]
    try:
        for index, fresh, kept in zip(places, new, old, strict=True):
            if os.path.isdir(index):
                raise IsADirectoryError(errno.EISDIR, f"{os.path.basename(index)} in it is a folder")
            if os.path.lexists(index):
                if os.path.isfile(index):
                    os.chmod(fresh, os.stat(index).st_mode & 0o777)
                os.rename(index, kept)
        for index, fresh in reversed(list(zip(places, new, strict=True))):
            os.rename(fresh, index)
    except BaseException:
        for index, fresh, kept in zip(places, new, old, strict=True):
            if not os.path.lexists(fresh):
                os.unlink(index)
            if os.path.lexists(kept):
                os.rename(kept, index)
        raise


@contextmanager
def _report_errors(target: str) -> Iterator[None]:
    """Turn OSError into an error that names the target."""
    try:
        yield
    except OSError as error:
        raise write_error(target, error) from None


@contextmanager
def _hidden_folder(folder: str) -> Iterator[str]:
    """An empty hidden folder in `folder` that belongs to this writer alone; it is removed at the end."""
    numbered = (os.path.join(folder, f"{HIDDEN}{number}") for number in count())
    path, lock = next(taken for path in numbered if (taken := _take(path)))
    for other in takewhile(os.path.lexists, numbered):
        _remove_abandoned(other)
    try:
        yield path
    finally:
        _discard(path, lock)


def _take(path: str) -> tuple[str, int] | None:
    """Create this hidden folder and its lock, after removing one that a killed writer left; None if another has it."""
    _remove_abandoned(path)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return None
    index = os.path.join(path, _LOCK)
    try:
        lock = os.open(index, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except (FileExistsError, FileNotFoundError):
        return None
    if _lock(lock, index) is not False:
        return path, lock
    os.close(lock)
    return None


def _remove_abandoned(path: str) -> None:
    """Remove a hidden folder of this user whose writer is gone."""
    with suppress(OSError):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or (sys.platform != "win32" and found.st_uid != os.geteuid()):
            return
        index = os.path.join(path, _LOCK)
        try:
            lock = os.open(index, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            os.rmdir(path)
            return
        if _lock(lock, index):
            _discard(path, lock)
        else:
            os.close(lock)


def _lock(handle: int, path: str) -> bool | None:
    """Lock an open file. True if locked; False if another writer has it or has removed it; None without locks here."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except (BlockingIOError, PermissionError, FileNotFoundError):
        return False
    except OSError:
        return None


def _discard(path: str, lock: int) -> None:
    """Remove a hidden folder whose lock this writer holds. The lock is removed last, so that nobody else enters."""
    with suppress(OSError):
        for name in os.listdir(path):
            if name != _LOCK:
                os.unlink(os.path.join(path, name))
    if sys.platform == "win32":
        os.close(lock)
    with suppress(OSError):
        os.unlink(os.path.join(path, _LOCK))
        os.rmdir(path)
    if sys.platform != "win32":
        os.close(lock)
