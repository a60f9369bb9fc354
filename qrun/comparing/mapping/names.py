"""Reads and writes names.json, the map of a dump's tensors to a model's. Its schema is qrun/schemas/map-1.0.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from qrun.comparing.mapping.fit import MappedTensor
from qrun.documents.record import decode, encode, key_of, read_document
from qrun.errors import CallError
from qrun.io.files import cannot, replace_file
from qrun.io.jsonfile import damage_error

SCHEMA = "qrun/map/1.0"
_FIX = "--map auto writes such a file; qrun/schemas/map-1.0.json describes it"


def read_names(path: Path) -> tuple[MappedTensor, ...]:
    """The rows of a map that name a tensor of the model. Raises CallError for a file that is no map, and for a tensor
    that stands twice in it."""
    rows = tuple(_rows(path))
    for column in ("dump", "onnx"):
        names = [getattr(row, column) for row in rows]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise damage_error(str(path), f"every {column} once", f"{twice!r} twice", "keep one of the rows", "map")
    return rows


def _rows(path: Path) -> Iterator[MappedTensor]:
    _, document = read_document(path, ("map",), _FIX)
    known = {key_of(field) for field in fields(MappedTensor)}
    for item in document["tensors"]:
        wrong = [key for key in item.keys if key not in known]
        if wrong:
            raise damage_error(
                str(path), f"{item.place}: {', '.join(sorted(known))}", wrong[0], "correct the key", "map"
            )
        row = decode(MappedTensor, item, finite=True)
        if row.onnx is not None:
            stated = row.stated_scale if row.exponent is None or abs(row.exponent) < 1000 else 0.0
            if stated is not None and not stated > 0:
                raise damage_error(str(path), f"{item.place}: a scale above 0", f"{stated}", "correct it", "map")
            yield row


def write_names(path: Path, rows: Sequence[MappedTensor]) -> None:
    """Write a map. Raises CallError if a different file is there, because somebody may have edited it."""
    document = {"schema": SCHEMA, "tensors": [encode(row) for row in rows]}
    text = json.dumps(document, indent=2) + "\n"
    try:
        if path.read_text("utf-8") == text:
            return
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise cannot(str(path), str(error)) from None
    else:
        raise CallError(
            "QR008",
            f"{path} holds another map, which --map auto does not replace",
            where=[str(path)],
            fixes=[f"--map {path} uses it", "remove it to propose again"],
        )
    with replace_file(str(path)) as stream:
        stream.write(text.encode())
