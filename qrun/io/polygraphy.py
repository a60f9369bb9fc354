"""Reads and writes the JSON of Polygraphy: the inputs of ``--save-inputs``, and the results of ``--save-outputs``.

Format: polygraphy 0.53.6, polygraphy/json/serde.py and comparator/struct.py. An array is an .npy file in base64.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from qrun.errors import CallError
from qrun.io.arrays import bad_file, read_array, write_npy
from qrun.io.jsonfile import damage_error, parse_json
from qrun.ir import Array
from qrun.memory import Budget

FIX = "polygraphy run --save-inputs or --save-outputs writes such a file; -i x=[1,2] takes the values themselves"
TURN = re.compile(r"(.+\.json)\[(\d{1,9})\]", re.S)
"""Matches a file with the number of one of its iterations."""
_WRAPPERS = ("values", "outputs", "arr", "dct")
"""Keys that Polygraphy puts between a tensor's name and its array."""
_DEEP = 12
"""The most levels of a document that are looked through."""
_MARK = "polygraphy_class"


def read(spec: str, budget: Budget) -> dict[str, Array]:
    """The arrays of ``FILE.json``, or of the iteration of ``FILE.json[2]``, by name.

    Raises CallError if the file cannot be read, is another JSON file or is damaged, has several iterations or not this
    one, or holds no arrays; MemoryLimitError beyond the budget.
    """
    path, number = split_turn(spec)
    found = parse(path)
    if number is None and len(found) != 1:
        fixes = [f"-i {path}[0] takes the first one"] if found else []
        raise CallError("QR007", f"{path} has {len(found)} iterations, not one", where=[path], fixes=fixes)
    if number is not None and number >= len(found):
        facts = [("expected", f"0 to {len(found) - 1}"), ("got", str(number))]
        raise CallError("QR007", f"{path} has no iteration {number}", where=[path], facts=facts)
    arrays = arrays_of(found[number or 0], spec, budget)
    if not arrays:
        raise bad_file(spec, "no arrays", "the inputs or the results of Polygraphy", fix=FIX)
    return arrays


def split_turn(spec: str) -> tuple[str, int | None]:
    """The file, and the number of the iteration; None without one."""
    turn = None if Path(spec).exists() else TURN.fullmatch(spec)
    return (turn[1], int(turn[2])) if turn else (spec, None)


def parse(path: str) -> Sequence[Any]:
    """The iterations of a file, with encoded arrays. Raises CallError if it has none."""
    found = iterations(parse_json(Path(path), FIX, "file of Polygraphy"), path)
    if found is None:
        raise damage_error(
            path, "the inputs or the results of Polygraphy", "another JSON file", FIX, "file of Polygraphy"
        )
    return found


def iterations(document: Any, source: str) -> Sequence[Any] | None:
    """The iterations of a JSON value, with encoded arrays; None if Polygraphy did not write it. Raises CallError for
    results of several runners, because these were made from the same inputs."""
    if isinstance(document, dict) and isinstance(document.get("lst"), list):
        return _only_run(document["lst"], source)
    whole = isinstance(document, list) and document and all(isinstance(each, dict) for each in document)
    return document if whole and next(_encoded(document[0], "", 0), None) else None


def _only_run(runs: list[Any], source: str) -> list[Any]:
    """The iterations of the only runner."""
    names = [str(run[0]) if isinstance(run, list) and run else "?" for run in runs]
    if len(runs) != 1:
        raise damage_error(source, "the results of one runner", ", ".join(names)[:120] or "none", "save one", "dump")
    rounds = runs[0][1] if isinstance(runs[0], list) and len(runs[0]) > 1 else None
    if not isinstance(rounds, list):
        raise damage_error(source, "a list of iterations", "no list", "write the file again", "dump")
    return rounds


class IterationFile:
    """The arrays of a file's only iteration, read on request, as `qrun.io.arrays.Npz` reads those of an archive."""

    def __init__(self, path: str) -> None:
        found = parse(path)
        if len(found) != 1:
            raise bad_file(path, f"{len(found)} iterations", "one iteration", fix="polygraphy run --iterations 1")
        self.source, self.members = path, dict(_encoded(found[0], "", 0))

    def read(self, key: str, budget: Budget) -> Array:
        return _npy(self.members[key], f"{self.source}[{key}]", budget)


def arrays_of(iteration: Any, source: str, budget: Budget) -> dict[str, Array]:
    """The arrays of one iteration by name, held in the budget. Raises CallError if one is damaged or comes twice."""
    found: dict[str, Array] = {}
    for name, text in _encoded(iteration, "", 0):
        if name in found:
            raise bad_file(source, f"{name!r} twice", "every array once")
        found[name] = _npy(text, f"{source}[{name}]", budget)
    return found


def _encoded(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Names of tensors and their encoded arrays."""
    if not isinstance(value, dict) or depth > _DEEP:
        return
    if isinstance(value.get("array"), str) and name:
        yield name, value["array"]
        return
    for key, inner in value.items():
        yield from _encoded(inner, name if key in _WRAPPERS and (name or key == "outputs") else key, depth + 1)


def _npy(text: str, source: str, budget: Budget) -> Array:
    """The array of base64 text with a .npy file."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_file(source, f"{error}"[:80], "base64") from None
    array = read_array(io.BytesIO(data), source, budget, len(data))
    budget.hold(array, source)
    return array


def write(stream: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays by name as Polygraphy's RunResults: one iteration of a runner, qrun. Types as for `write_npy`."""
    start = {"lst": [["qrun", [{"outputs": {}, "runtime": None, "runner_name": "qrun", _MARK: "IterationResult"}]]]}
    before, after = json.dumps({**start, _MARK: "RunResults"}).split('"outputs": {}')
    stream.write(f'{before}"outputs": {{'.encode())
    for at, (name, array) in enumerate(arrays.items()):
        data = io.BytesIO()
        write_npy(data, array)
        text = base64.b64encode(data.getbuffer()).decode()
        value = {"values": {"array": text, _MARK: "ndarray"}, _MARK: "LazyArray"}
        stream.write(f"{', ' if at else ''}{json.dumps(name)}: {json.dumps(value)}".encode())
    stream.write(f"}}{after}\n".encode())
