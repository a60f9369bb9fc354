"""Reads tensors from JSON: the results of Polygraphy, and records that describe raw files."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from qrun.dumps.tensor import DumpTensor, from_bytes, named_type
from qrun.errors import CallError
from qrun.io.jsonfile import damage_error, parse_json
from qrun.io.polygraphy import arrays_of, iterations
from qrun.memory import Budget

_FIX = "a JSON dump is a file of polygraphy run --save-outputs, or has records {name, dtype, shape, file}"
RAW = (".raw", ".bin")
"""Suffixes of raw files that a record may describe."""


def read_json(path: Path, budget: Budget) -> tuple[list[DumpTensor], set[Path]]:
    """The tensors of a JSON file, and the raw files that it describes; none for the JSON of other tools.

    Raises CallError for a damaged document, for records that do not fit their files or lead out of their folder, and
    for the results of several runs, because only one was made from the inputs.
    """
    document = parse_json(path, _FIX, "dump")
    runs = iterations(document, str(path))
    if runs is not None:
        if len(runs) != 1:
            fix = "polygraphy run --iterations 1"
            raise damage_error(str(path), "one iteration", f"{len(runs)} iterations", fix, "dump")
        return [DumpTensor(name, array) for name, array in arrays_of(runs[0], str(path), budget).items()], set()
    rows = document.get("tensors", document) if isinstance(document, dict) else document
    rows = rows if isinstance(rows, list) else [rows]
    records = [row for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str)]
    tensors, files = [], set()
    for record in records:
        file = _file(record, path, single=len(records) == 1)
        if file is not None:
            tensors.append(_record(record, file, path, budget))
            files.add(file)
    return tensors, files


def _file(record: dict[str, Any], path: Path, single: bool) -> Path | None:
    """The raw file of a record: the one that it names, or the one beside it of the JSON file's or tensor's name."""
    given = record.get("file")
    if given is None:
        stems = [path.stem] if single else [record["name"].replace("/", "_"), PurePosixPath(record["name"]).name]
        beside = [path.with_name(stem + suffix) for stem in stems if stem for suffix in RAW]
        return next((file for file in beside if file.is_file()), None)
    where = f"{path}: file {given!r}"[:200]
    inside = isinstance(given, str) and bool(given) and not re.search(r"^/|\\|:|\0|(^|/)\.\.(/|$)", given)
    if not inside:
        raise damage_error(where, "a file in the folder of the JSON file", "a path that leads out of it", what="dump")
    return path.parent / str(given)


def _record(record: dict[str, Any], file: Path, path: Path, budget: Budget) -> DumpTensor:
    """The tensor of a raw file that a record describes."""
    name = record["name"]
    where = f"{path}: {name}"
    dtype, shape = record.get("dtype"), record.get("shape")
    kind = named_type(dtype) if isinstance(dtype, str) else None
    if dtype is not None and kind is None:
        raise damage_error(where, "dtype: int8, uint8, int16, float32, ...", f"{dtype!r}"[:60], what="dump")
    if shape is not None and not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
        raise damage_error(where, "shape: a list of sizes", f"{shape!r}"[:60], what="dump")
    scale, zero = (_number(record, key, where) for key in ("scale", "zero_point"))
    if zero is not None and zero != int(zero):
        raise damage_error(where, "zero_point: an integer", f"{zero}", what="dump")
    try:
        data = read_bytes(file, budget)
        return from_bytes(
            name,
            data,
            kind,
            None if shape is None else tuple(shape),
            scale=scale,
            zero_point=None if zero is None else int(zero),
        )
    except ValueError as error:
        raise damage_error(where, f"{file.name} to fit the record", str(error), what="dump") from None


def _number(record: dict[str, Any], key: str, where: str) -> float | None:
    """A number of a record; a list of one counts as one, and several scales are of channels, which no tensor has."""
    value = record.get(key)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if value is not None and (type(value) not in (int, float) or not abs(value) < 1e38):
        raise damage_error(where, f"{key}: a number", f"{value!r}"[:60], what="dump")
    return None if value is None else float(value)


def read_bytes(path: Path, budget: Budget) -> bytes:
    """The content of a raw file. Raises CallError if it cannot be read, MemoryLimitError if it is too large."""
    from qrun.io.arrays import no_such_file

    try:
        budget.reserve(path.stat().st_size, str(path))
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None


def read_text(path: Path, budget: Budget) -> str:
    """The text of a file. Raises CallError if it is not text."""
    try:
        return read_bytes(path, budget).decode("utf-8")
    except UnicodeDecodeError:
        raise CallError(
            "QR007", f"{path} is not text", where=[str(path)], fixes=["raw bytes belong in .raw or .bin files"]
        ) from None
