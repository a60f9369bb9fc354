"""A suite as an archive, the same bytes for the same cases."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from qrun.conform.suite import INDEX, VERSION, Case
from qrun.ir import Array
from qrun.ir.types import NUMBERS

BLOCK = 48
"""Cases that are compressed together."""


def packed(case: Case) -> bytes:
    """What `qrun.conform.suite.unpacked` reads."""
    arrays: list[Array] = []

    def rows(named: Mapping[str, Array]) -> list[list[Any]]:
        arrays.extend(named.values())
        return [[name, NUMBERS[a.dtype], list(a.shape)] for name, a in named.items()]

    head = {
        "model": len(case.model),
        "inputs": rows(case.inputs),
        "expected": rows(case.expected),
        "exact": rows(case.exact),
        "margin": rows(case.margin),
        "within": case.within,
        "others": [
            {"cause": o.cause, "text": o.text, "open": o.open, "runtimes": list(o.runtimes), "outputs": rows(o.outputs)}
            for o in case.alternatives
        ],
    }
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    return b"".join(
        [len(text).to_bytes(4, "little"), text, case.model, *(np.ascontiguousarray(a).tobytes() for a in arrays)]
    )


def write(path: Path, cases: Sequence[Case], clauses: Mapping[str, tuple[str, str]]) -> None:
    """Write the archive; blocks follow the order of the cases."""
    rows, blocks = [], []
    for first in range(0, len(cases), BLOCK):
        name, body = f"cases/{first // BLOCK:03}.bin", b""
        for case in cases[first : first + BLOCK]:
            made = packed(case)
            rows.append(list(astuple(replace(case.info, block=name, start=len(body), length=len(made)))))
            body += made
        blocks.append((name, body))
    used = {case.info.clause for case in cases}
    told = {
        "format": "qrun/suite/1.0",
        "version": VERSION,
        "clauses": {number: list(text) for number, text in clauses.items() if number in used},
        "cases": rows,
    }
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in [(INDEX, text), *blocks]:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o644 << 16
            archive.writestr(info, body, zipfile.ZIP_DEFLATED, 9)
