"""Reads JSON files without trusting them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qrun.errors import CallError
from qrun.io.arrays import CHUNK, no_such_file
from qrun.memory import Budget, default_limit

EXPANSION = 16
"""Bytes in memory per byte of JSON text, at most about."""


def damage_error(
    source: str, expected: str, got: str, fix: str = "write the file again", what: str = "qrun result"
) -> CallError:
    facts = [("expected", expected), ("got", got)]
    return CallError("QR007", f"{source} is not a valid {what}", where=[source], facts=facts, fixes=[fix])


def parse_json(path: Path, fix: str, what: str = "qrun result") -> Any:
    """The value in a JSON file. what, fix: what the file should be, and how to make one, for the error.

    Raises CallError if the file cannot be read or is not JSON; MemoryLimitError if it is too large.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    budget, data = Budget(default_limit), bytearray()
    try:
        with open(path, "rb") as stream:
            while block := stream.read(CHUNK):
                budget.claim((len(data) + len(block),), EXPANSION, str(path))
                data += block
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None
    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        start = f"; it starts with {bytes(data[:12])!r}" if data else "; it is empty"
        raise damage_error(str(path), "a JSON document", f"{error}{start}"[:160], fix, what) from None
