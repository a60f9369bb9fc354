"""Keeps finished chunks in a folder, one file each: written atomically, checked when read, with the same bytes in every
run.

``eval.json`` says what was evaluated. ``chunk-000012.npz`` has the results of one chunk: numbers and outputs as .npy
files, failures as JSON, and as the archive's comment the SHA-256 of everything before it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from qrun.documents.record import Item, decode, encode
from qrun.errors import CallError
from qrun.evaluating.health import plain, restore_counts
from qrun.evaluating.job import Done, Failure
from qrun.io.files import check_folder, replace_file, write_error
from qrun.io.storable import storable
from qrun.ir import Array

_ABOUT = "eval.json"
_DIGEST = 64
"""The number of hexadecimal digits of the SHA-256 in an archive's comment, which are its last bytes."""


class Store:
    """A folder of chunks.

    about: describes the evaluation; a folder with chunks of another one is refused. resume: may chunks exist already?
    Raises CallError if the folder cannot be used.
    """

    def __init__(self, folder: str, about: Mapping[str, Any], resume: bool) -> None:
        check_folder(folder)
        self.folder = Path(folder)
        text = json.dumps(about, indent=1, sort_keys=True) + "\n"
        path = self.folder / _ABOUT
        if path.exists():
            self._same(path, about, resume)
        else:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise write_error(folder, error) from None
            with replace_file(str(path)) as stream:
                stream.write(text.encode())
                _settle(stream)

    def _same(self, path: Path, about: Mapping[str, Any], resume: bool) -> None:
        where = [str(self.folder)]
        if not resume:
            raise CallError(
                "QR005",
                "the folder has results of an earlier evaluation",
                where=where,
                fixes=["add --resume to continue", "name another folder"],
            )
        try:
            before = json.loads(path.read_bytes())
        except (OSError, ValueError):
            before = {}
        for key, value in about.items():
            old = before.get(key) if isinstance(before, dict) else None
            if old != json.loads(json.dumps(value)):
                raise CallError(
                    "QR005",
                    f"the results in the folder come from a different command: {key} differs",
                    where=where,
                    facts=[("expected", _short(old)), ("got", _short(value))],
                    fixes=["name another folder", "use the same options as before"],
                )

    def finished_chunks(self) -> set[int]:
        """The indices of the chunks in the folder, damaged or not."""
        names = (path.stem.partition("-")[2] for path in self.folder.glob("chunk-*.npz"))
        return {int(name) for name in names if name.isdigit()}

    def write(self, done: Done) -> None:
        """Write a chunk; it is on the disk when this returns. Raises CallError if it cannot be written."""
        with replace_file(str(self._path(done.index))) as stream:
            stream.write(pack_chunk(done))
            _settle(stream)

    def read(self, index: int) -> Done | None:
        """Read a chunk without its outputs; None if it is missing or damaged."""
        try:
            return unpack_chunk(self._path(index).read_bytes())
        except (OSError, CallError):
            return None

    def _path(self, index: int) -> Path:
        return self.folder / f"chunk-{index:06}.npz"


def _settle(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _short(value: Any) -> str:
    return json.dumps(value)[:60]


def pack_chunk(done: Done) -> bytes:
    """The bytes of a chunk's file."""
    arrays: dict[str, Array] = {"samples": np.array(done.ran, np.int64)}
    for model, columns in enumerate(done.columns):
        arrays |= {f"columns/{model}/{name}": values for name, values in columns.items()}
    for model, outputs in enumerate(done.outputs):
        arrays |= {f"outputs/{model}/{name}": storable(array)[0] for name, array in outputs.items()}
    head: dict[str, Any] = {
        "index": done.index,
        "first": done.first,
        "count": done.count,
        "models": len(done.columns),
        "failures": encode(done.failures),
    }
    codes, head["health"] = plain(done.health)
    arrays |= {f"health/{name}": found for name, found in codes.items()}
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_STORED) as archive:
        archive.writestr(ZipInfo("chunk.json"), json.dumps(head))
        for name, array in arrays.items():
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.comment = b" " * _DIGEST
    whole = file.getvalue()[:-_DIGEST]
    return whole + hashlib.sha256(whole).hexdigest().encode()


def unpack_chunk(data: bytes) -> Done:
    """Read a chunk from a file's bytes, without its outputs. Raises CallError if it is damaged."""
    whole, digest = data[:-_DIGEST], data[-_DIGEST:]
    if hashlib.sha256(whole).hexdigest().encode() != digest:
        raise CallError("QR007", "a chunk is damaged")
    try:
        with ZipFile(io.BytesIO(data)) as archive:
            head = Item(json.loads(archive.read("chunk.json")), "chunk.json")
            columns: tuple[dict[str, Array], ...] = tuple({} for _ in range(head["models"].size))
            ran: tuple[int, ...] = ()
            codes: dict[str, Array] = {}
            for name in archive.namelist():
                kind, _, rest = name.removesuffix(".npy").partition("/")
                if kind in ("samples", "columns", "health"):
                    with archive.open(name) as member:
                        array = np.lib.format.read_array(member, allow_pickle=False)
                    if kind == "health":
                        codes[rest] = array
                    elif kind == "samples":
                        ran = tuple(array.tolist())
                    else:
                        model, _, column = rest.partition("/")
                        columns[int(model)][column] = array
            counts = restore_counts(codes, head["health"])
    except (BadZipFile, ValueError, KeyError, IndexError, TypeError) as error:
        raise CallError("QR007", f"a chunk is damaged: {error}") from None
    failures = tuple(decode(Failure, item) for item in head["failures"])
    return Done(head["index"].size, head["first"].size, head["count"].size, columns, failures, (), ran, counts)
