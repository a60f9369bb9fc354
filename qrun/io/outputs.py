"""``--output``: writes tensors to .npz, .npy, a test_data_set folder or stdout."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from qrun.errors import CallError, close_matches
from qrun.io import polygraphy
from qrun.io.arrays import numbered_files, write_npy
from qrun.io.files import cannot, check_file, check_folder, real_path, replace_file, write_files
from qrun.io.storable import storable
from qrun.ir import Array, Model
from qrun.ir.compound import tensors

MAX_KEY = 65535
"""The most bytes of a name in a zip archive."""


def check_target(target: str, names: Sequence[str], read: Mapping[str, str], *, stdout_taken: bool = False) -> None:
    """Raise CallError before the run if tensors of these names cannot be written to `target`.

    read: paths of the files that this call reads, and what they are; these must not be overwritten.
    """
    if target == "-":
        if stdout_taken:
            raise _bad_target("stdout cannot hold both JSON and tensors", target, "-o out.npz --json")
        if sys.stdout is None or sys.stdout.isatty():
            raise _bad_target("-o - writes .npy data, and stdout is a terminal", target, "qrun MODEL -o - > y.npy")
        return
    path = Path(target)
    if is_folder(target):
        check_folder(target)
        return
    if path.suffix == ".npy":
        if len(names) != 1:
            raise _bad_target(
                f"{target} holds one array, but there are {len(names)}: {', '.join(names[:4])}",
                target,
                f"-o {path.with_suffix('.npz')}",
            )
    elif path.suffix == ".npz":
        check_keys(names)
    elif path.suffix != ".json":
        folder = f"-o {target}/ writes a folder" if not path.suffix and not os.path.exists(target) else ""
        raise _bad_target(
            f"-o {target}: cannot write {path.suffix} files" if path.suffix else f"-o {target} has no suffix",
            target,
            folder or "out.npz, out.npy (one output), out.json (Polygraphy), DIR/ or -",
        )
    check_trace(target, read)


def check_trace(target: str, read: Mapping[str, str]) -> None:
    """Raise CallError before the run if a file, such as a trace, cannot be written to `target`; read: as above."""
    check_file(target)
    taken = next((what for path, what in read.items() if _same_file(target, path)), "")
    if taken:
        raise cannot(target, f"it is {taken}", "name another file")


def _same_file(first: str, second: str) -> bool:
    """Are these the same regular file, or will they be? Follows links."""
    if os.path.isfile(first) and os.path.isfile(second):
        return os.path.samefile(first, second)
    return bool(second) and not os.path.exists(first) and real_path(first) == real_path(second)


def is_folder(target: str) -> bool:
    """Whether a target names a folder."""
    return target.endswith(("/", os.sep)) or os.path.isdir(target)


def save(
    target: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array], extra: Sequence[str] = ()
) -> list[str]:
    """Write the outputs (to a folder also the inputs) and return notes about types that were converted.

    In a folder, a sequence is one file; elsewhere its tensors are separate arrays (`tensors`).

    extra: the names among the outputs that are not outputs of the graph.
    Raises CallError if something cannot be written.
    """
    if is_folder(target):
        _save_folder(Path(target), inputs, outputs, extra)
        return []
    stored, notes = {}, []
    for name, array in tensors(outputs).items():
        stored[name], done = storable(array)
        if done:
            notes.append(f"output {name}: .npy has no such type, {done} (-o DIR/ keeps the type)")
    if target == "-":
        for array in stored.values():
            write_npy(sys.stdout.buffer, array)
        sys.stdout.buffer.flush()
        return notes
    if Path(target).suffix == ".npy" and len(stored) != 1:
        raise _bad_target(
            f"{target} holds one array, but there are {len(stored)}", target, f"-o {Path(target).stem}.npz"
        )
    with replace_file(target) as stream:
        if Path(target).suffix == ".npy":
            write_npy(stream, next(iter(stored.values())))
        elif Path(target).suffix == ".json":
            polygraphy.write(stream, stored)
        else:
            write_npz(stream, stored)
    return notes


def check_keys(names: Iterable[str]) -> None:
    """Raise CallError if a .npz file cannot hold arrays of these names, because a reader would lose or confuse one.

    The names of a zip archive end at NUL and have at most 65535 bytes of UTF-8; numpy reads ``y.npy`` as ``y``.
    """
    known = set(names)
    for name in known:
        got = ""
        try:
            length = len(f"{name}.npy".encode())
            if length > MAX_KEY:
                got = f"{length} bytes"
            elif zipfile.ZipInfo(name).filename != name:
                got = f"it would become {zipfile.ZipInfo(name).filename!r}"
            elif name.endswith(".npy") and name.removesuffix(".npy") in known:
                got = f"numpy would read {name.removesuffix('.npy')!r} instead"
        except UnicodeEncodeError:
            got = "it is not UTF-8 text"
        if got:
            facts = [("expected", f"UTF-8 text of at most {MAX_KEY - 4} bytes, without NUL"), ("got", got)]
            fixes = ["-o DIR/ writes numbered files that hold any name"]
            raise CallError("QR008", f"a .npz file cannot hold the tensor name {name[:60]!r}", facts=facts, fixes=fixes)


def write_npz(stream: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays by name, uncompressed. The same arrays give the same bytes. Raises CallError as `check_keys`."""
    check_keys(arrays)
    with zipfile.ZipFile(stream, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                write_npy(member, array)


def _save_folder(folder: Path, inputs: Mapping[str, Array], outputs: Mapping[str, Array], extra: Sequence[str]) -> None:
    """Write inputs, outputs and extra tensors as numbered .pb files."""
    kinds = {
        "input": dict(inputs),
        "output": {name: array for name, array in outputs.items() if name not in extra},
        "tensor": {name: array for name, array in outputs.items() if name in extra},
    }
    for kind, arrays in kinds.items():
        count = sum(1 for _ in numbered_files(folder, kind))
        if count > len(arrays):
            what = f"{folder} holds more {kind}s than this run has"
            facts = [("expected", f"at most {len(arrays)} files {kind}_*.pb"), ("got", str(count))]
            fixes = ["name a new folder, or remove the old files"]
            raise CallError("QR008", what, where=[str(folder)], facts=facts, fixes=fixes)
    write_files(str(folder), _vectors(kinds))


def _vectors(kinds: Mapping[str, Mapping[str, Array]]) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files of a test_data_set, the inputs first."""
    from qrun.ir.tensorfile import value_bytes

    for kind, arrays in kinds.items():
        for index, (name, array) in enumerate(arrays.items()):
            yield f"{kind}_{index}.pb", value_bytes(array, name)


def _bad_target(message: str, target: str, fix: str) -> CallError:
    """The QR005 error of an -o option."""
    return CallError("QR005", message, facts=[("got", f"-o {target}")], fixes=[fix])


def match_tensors(model: Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the tensors that shell patterns match, by their own name or that of their node, in graph order.

    A pattern that equals a tensor's name matches only that. Raises CallError for a pattern without a match.
    """
    from fnmatch import fnmatchcase

    made = [(name, node.label) for node in model.nodes for name in node.outputs if name]
    own = [*(v.name for v in (*model.inputs, *model.defaults)), *model.constants]
    names = list(dict.fromkeys([*own, *(name for name, _ in made)]))
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {name for name, node in made if fnmatchcase(name, pattern) or fnmatchcase(node, pattern)}
        found = {pattern} if pattern in names else matched
        if not found:
            nodes = dict.fromkeys(node for _, node in made)
            near = close_matches(pattern.strip("*?"), dict.fromkeys([*names, *nodes]), 3, 0.5)
            shown = [name for name, _ in made[:3]]
            raise CallError(
                "QR006",
                f"no tensor or node matches {pattern!r}",
                where=[model.label],
                facts=[
                    ("tensors", f"{len(made)}, such as {', '.join(shown)}" if made else "none"),
                    *([("nodes", f"{len(nodes)}, such as {', '.join(list(nodes)[:3])}")] if made else []),
                ],
                fixes=[f"did you mean {' or '.join(near)}?"]
                if near
                else [model.fill_in("qrun inspect MODEL --nodes lists the tensors")],
            )
        chosen |= found
    return tuple(name for name in names if name in chosen)
