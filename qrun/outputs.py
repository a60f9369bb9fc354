"""``--output``: tensors to .npz, .npy, a test_data_set folder or stdout; each file appears whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO

from qrun.arrays import numbered, storable, write_npy, write_npz
from qrun.errors import CallError
from qrun.ir import Array, Model


def check_target(target: str, names: Sequence[str], read: Mapping[str, str], *, stdout_taken: bool = False) -> None:
    """Raise CallError before the run if tensors of these names cannot go to `target`.

    read: paths of the files that this call reads, and what they are; they are not written over.
    """
    if target == "-":
        if stdout_taken:
            raise _bad("stdout cannot hold both JSON and tensors", target, "-o out.npz --json")
        if sys.stdout is None or sys.stdout.isatty():
            raise _bad("-o - writes .npy data, and stdout is a terminal", target, "qrun MODEL -o - > y.npy")
        return
    path = Path(target)
    if is_folder(target):
        _check_folder(path)
    elif path.suffix == ".npy":
        if len(names) != 1:
            raise _bad(f"{target} holds one array, and there are {len(names)}: {', '.join(names[:4])}", target,
                       f"-o {path.with_suffix('.npz')}")  # fmt: skip
    elif path.suffix != ".npz":
        folder = f"-o {target}/ writes a folder" if not path.suffix and not path.exists() else ""
        raise _bad(f"-o {target} has a suffix that qrun does not write" if path.suffix else f"-o {target} has no suffix",
                   target, folder or "out.npz, out.npy (one output), DIR/ or -")  # fmt: skip
    parent = path.parent
    while is_folder(target) and not parent.exists() and parent != parent.parent:
        parent = parent.parent
    _check_file(target, parent, read)


def check_trace(target: str, read: Mapping[str, str]) -> None:
    """Raise CallError before the run if a trace cannot go to `target`."""
    if os.path.isdir(target):
        raise _cannot(target, "it is a folder")
    _check_file(target, Path(target).parent, read)


def _check_file(target: str, parent: Path, read: Mapping[str, str]) -> None:
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        reason = "is not writable" if parent.is_dir() else "is not a folder" if parent.exists() else "does not exist"
        fix = "check the path" if parent.exists() else f"mkdir -p {quote(str(parent))}"
        raise _cannot(target, f"{str(parent)!r} {reason}", fix)
    taken = next((what for path, what in read.items() if _same_file(target, path)), "")
    if taken:
        raise _cannot(target, f"it is {taken}", "name another file")


def _same_file(first: str, second: str) -> bool:
    """Are these one regular file, or will they be? Links count as what they point to."""
    if os.path.isfile(first) and os.path.isfile(second):
        return os.path.samefile(first, second)
    return bool(second) and not os.path.exists(first) and os.path.realpath(first) == os.path.realpath(second)


def is_folder(target: str) -> bool:
    return target.endswith(("/", os.sep)) or os.path.isdir(target)


def save(
    target: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array], extra: Sequence[str] = ()
) -> list[str]:
    """Write the outputs (for a folder the inputs too) and return notes about types that changed on the way.

    extra: the names among the outputs that are not outputs of the graph.
    Raises CallError if something cannot be written.
    """
    if is_folder(target):
        _save_folder(Path(target), inputs, outputs, extra)
        return []
    stored, notes = {}, []
    for name, array in outputs.items():
        stored[name], done = storable(array)
        if done:
            notes.append(f"output {name}: .npy has no such type, {done} (-o DIR/ keeps the type)")
    if target == "-":
        for array in stored.values():
            write_npy(sys.stdout.buffer, array)
        sys.stdout.buffer.flush()
        return notes
    with replacing(target) as stream:
        if Path(target).suffix == ".npy":
            write_npy(stream, next(iter(stored.values())))
        else:
            write_npz(stream, stored)
    return notes


@contextmanager
def replacing(target: str) -> Iterator[IO[bytes]]:
    """A new file beside `target` that takes its place when the block ends well. CallError if it cannot be written."""
    path = Path(target)
    temporary = ""
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as stream:
                yield stream
            return
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        number, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        with os.fdopen(number, "wb") as stream:
            yield stream
        os.chmod(temporary, mode)
        os.replace(temporary, path.resolve() if path.is_symlink() else path)
        temporary = ""
    except (OSError, ValueError) as error:
        raise _failed(target, error) from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _check_folder(folder: Path) -> None:
    try:
        exists = folder.exists()
    except OSError as error:
        raise _failed(str(folder), error) from None
    if exists and not folder.is_dir():
        raise _cannot(str(folder), "a file of that name exists")
    if exists and not os.access(folder, os.W_OK):
        raise _cannot(str(folder), "the folder is not writable")


def _save_folder(folder: Path, inputs: Mapping[str, Array], outputs: Mapping[str, Array], extra: Sequence[str]) -> None:
    from qrun.ir.tensorfile import tensor_bytes

    kinds = {
        "input": dict(inputs),
        "output": {name: array for name, array in outputs.items() if name not in extra},
        "tensor": {name: array for name, array in outputs.items() if name in extra},
    }
    for kind, arrays in kinds.items():
        count = sum(1 for _ in numbered(folder, kind))
        if count > len(arrays):
            raise CallError(
                "QR008",
                "cannot-write",
                f"{folder} holds more {kind}s than this run has",
                where=[str(folder)],
                facts=[("expected", f"at most {len(arrays)} files {kind}_*.pb"), ("got", str(count))],
                fixes=["name a new folder, or remove the old files"],
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _failed(str(folder), error) from None
    for kind, arrays in kinds.items():
        for place, (name, array) in enumerate(arrays.items()):
            with replacing(str(folder / f"{kind}_{place}.pb")) as stream:
                stream.write(tensor_bytes(array, name))


def _bad(message: str, target: str, fix: str) -> CallError:
    return CallError("QR005", "bad-option", message, facts=[("got", f"-o {target}")], fixes=[fix])


def _cannot(target: str, reason: str, fix: str = "check the path") -> CallError:
    return CallError("QR008", "cannot-write", f"cannot write {target!r}: {reason}", where=[target], fixes=[fix])


REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)), "make room there, or write elsewhere"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "write to a folder that is yours"),
}
"""What to do about an error of writing, by its number."""


def _failed(target: str, error: OSError | ValueError) -> CallError:
    fix = REMEDIES.get(getattr(error, "errno", 0) or 0, "check the path")
    return _cannot(target, getattr(error, "strerror", None) or str(error), fix)


def match_tensors(model: Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the tensors that shell patterns match, in graph order, without the graph's outputs.

    A pattern that is a name stands for it, whatever signs it has. Raises CallError for a pattern without a match.
    """
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    names = list(dict.fromkeys([
        *(v.name for v in (*model.inputs, *model.defaults)), *model.constants,
        *(name for node in model.nodes for name in node.outputs if name),
    ]))  # fmt: skip
    made = [name for node in model.nodes for name in node.outputs if name]
    chosen: set[str] = set()
    for pattern in patterns:
        found = {pattern} if pattern in names else {name for name in made if fnmatchcase(name, pattern)}
        if not found:
            near = get_close_matches(pattern.strip("*?"), names, 3, 0.5)
            raise CallError(
                "QR006",
                "unknown-tensor",
                f"no tensor matches {pattern!r}",
                where=[model.label],
                facts=[("tensors", f"{len(made)}, such as {', '.join(made[:3])}" if made else "none")],
                fixes=[f"did you mean {' or '.join(near)}?"]
                if near
                else [model.filled("qrun inspect MODEL --nodes lists the tensors")],
            )
        chosen |= found
    outputs = {v.name for v in model.outputs}
    return tuple(name for name in names if name in chosen and name not in outputs)
