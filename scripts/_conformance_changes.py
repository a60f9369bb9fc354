"""What changed since the last suite. python scripts/_conformance_changes.py SUITE.zip prints the list that
`changes` reads, one line for each family: the family, then ``case:question:answer`` with digests of both."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qrun.conform.suite import EITHER, INDEX, Case, unpack_case
from qrun.declare import grouped
from qrun.ir.types import NUMBERS

BEFORE = "1.0"
LIST = Path(__file__).with_name(f"suite-{BEFORE}.txt")
Digests = tuple[str, str]


def digests(case: Case) -> Digests:
    """The digests of a case's question (model and inputs) and of its answer."""
    return _digest(case.inputs, case.model), _digest(case.expected, b"")


def _digest(arrays: Mapping[str, Any], start: bytes) -> str:
    made = hashlib.sha256(start)
    for name, array in arrays.items():
        made.update(f"{name} {NUMBERS[array.dtype]} {array.shape}\n".encode())
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()[:6]


def read() -> dict[str, Digests]:
    """The digests of the suite before, by id."""
    found = {}
    for line in LIST.read_text(encoding="ascii").splitlines():
        family, *cases = line.split()
        for case in cases:
            name, question, answer = case.split(":")
            found[f"{family}/{name}"] = question, answer
    return found


def changes(cases: Iterable[Case]) -> dict[str, Any]:
    """The changes since the suite before: its number, how many cases are new, and the ids of the others by change."""
    before, now = read(), {case.info.id: case for case in cases}
    kept = {id: (before[id], digests(case)) for id, case in now.items() if id in before}
    asked = [id for id, (old, new) in kept.items() if old[0] != new[0]]
    return {
        "since": BEFORE,
        "new": len(now.keys() - before.keys()),
        "withdrawn": sorted(before.keys() - now.keys()),
        "question": asked,
        "answer": [id for id, (old, new) in kept.items() if old[0] == new[0] and old[1] != new[1]],
        "lenient": [id for id in kept if now[id].info.expects == EITHER],
    }


def main(path: str) -> None:
    with zipfile.ZipFile(path) as archive:
        blocks: dict[str, bytes] = {}
        found = []
        for id, *_, block, start, length in json.loads(archive.read(INDEX))["cases"]:
            blocks[block] = blocks.get(block) or archive.read(block)
            case = unpack_case(None, blocks[block][start : start + length])  # type: ignore[arg-type]
            family, _, name = id.rpartition("/")
            found.append((family, ":".join((name, *digests(case)))))
    for family, cases in grouped(found).items():
        print(family, *cases)


if __name__ == "__main__":
    main(sys.argv[1])
