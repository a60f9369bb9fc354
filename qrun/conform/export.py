"""Writes a release: cases as plain files, which are of use without qrun, with all that a verdict needs, and checksums.

The texts in ``release/`` describe the layout and the rules of the verdicts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import qrun
from qrun.comparing.differences import is_integral
from qrun.conform.judge import RTOL, ULP_TYPES, absolute_tolerance
from qrun.conform.suite import ANSWER, DECISION, EITHER, REFUSAL, Case, CaseHead, CaseInfo, Suite, case_files, near_tie
from qrun.documents.record import encode
from qrun.errors import CallError
from qrun.ir import Array
from qrun.ir.tensorfile import tensor_bytes
from qrun.ir.types import type_name

FOLDERS = {
    "node": "the text forces or implies the answer",
    "decision": "the text is silent or open; the answer is a decision of qrun",
    "lenient": "the text excludes the form; this answer and a refusal are both correct",
    "refusal": "the model is invalid for one reason; refusing it is correct",
}
"""The folders of a release, in each of which a case is a folder."""
LICENSE = "Apache-2.0"
SCHEMA = "conform-case-1.0.json"
SUMS = "SHA256SUMS"
CHANGES = {
    "withdrawn": "Withdrawn",
    "question": "Different model or inputs",
    "answer": "Different expected answer to the same question",
    "lenient": "A refusal is correct too",
}
"""Headings of the change log, by the keys of `Suite.changes`."""


def place_of(info: CaseHead) -> str:
    """The path of a case in a release: ``node/test_qlinearconv-10_ties_3d-odd-zero-sss``."""
    kinds = {ANSWER: "decision" if info.basis == DECISION else "node", EITHER: "lenient", REFUSAL: "refusal"}
    return f"{kinds[info.expects]}/test_{info.id.replace('/', '_')}"


def export(suite: Suite, cases: Sequence[CaseInfo], folder: Path, progress: Callable[[int], None]) -> None:
    """Write a release with these cases; the same cases give the same bytes. progress: called with the cases done.

    Raises CallError if the folder is not empty, or cannot be written.
    """
    texts = list(_texts(suite))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CallError("QR008", f"{folder} is not empty", where=[str(folder)], fixes=["name a new folder"])
        sums = {}
        for path, data in chain(texts, _cases(suite, cases, progress)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
            sums[path] = hashlib.sha256(data).hexdigest()
        manifest = _manifest(suite, cases, sums)
        (folder / "manifest.json").write_bytes(manifest)
        sums["manifest.json"] = hashlib.sha256(manifest).hexdigest()
        (folder / SUMS).write_bytes(_lines(sums))
    except OSError as error:
        raise CallError(
            "QR008",
            f"cannot write to {folder}: {error.strerror or error}",
            where=[str(folder)],
            fixes=["name another folder"],
        ) from None


def _lines(sums: Mapping[str, str]) -> bytes:
    """Checksums by path as the lines that `sha256sum` prints."""
    return "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)).encode()


def _manifest(suite: Suite, cases: Sequence[CaseInfo], sums: Mapping[str, str]) -> bytes:
    """manifest.json. Its ``sha256`` of the whole is that of the lines of `SUMS` about the other files."""
    counts = Counter(place_of(info).partition("/")[0] for info in cases)
    manifest = {
        "suite": suite.version,
        "SPDX-License-Identifier": LICENSE,
        "generator": f"qrun {qrun.__version__}",
        "archive_sha256": suite.sha256,
        "complete": len(cases) == len(suite.cases),
        "cases": len(cases),
        **{name: counts[name] for name in FOLDERS},
        "sha256": hashlib.sha256(_lines(sums)).hexdigest(),
        "files": {path: sums[path] for path in sorted(sums)},
    }
    return (json.dumps(manifest, indent=1) + "\n").encode()


def _texts(suite: Suite) -> Iterator[tuple[str, bytes]]:
    """The license, the schema and the pages."""
    texts = files("qrun.conform") / "release"
    yield "LICENSE", _license()
    yield "case.schema.json", (files("qrun") / "schemas" / SCHEMA).read_bytes()
    rows = [f"| `{name}/` | {about} |" for name, about in FOLDERS.items()]
    readme = (texts / "README.md").read_text(encoding="utf-8")
    yield "README.md", readme.replace("@VERSION@", suite.version).replace("@FOLDERS@", "\n".join(rows)).encode()
    yield "CHANGELOG.md", f"{(texts / 'CHANGELOG.md').read_text(encoding='utf-8')}{_change_log(suite)}".encode()


def _license() -> bytes:
    """The text of the license, from the installed package or from the source tree."""
    try:
        text = distribution("onnx-qrun").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        text = None
    return text.encode() if text else (Path(qrun.__file__).parents[1] / "LICENSE").read_bytes()


def _change_log(suite: Suite) -> str:
    """The number of new cases since the suite before, and the ids of the others that changed."""
    found = suite.changes
    if not found:
        return ""
    parts = [f"\nSince {found['since']}, {found['new']} cases are new.\n"]
    for key, heading in CHANGES.items():
        ids = "".join(f"- `{id}`\n" for id in found[key])
        parts.append(f"\n### {heading} ({len(found[key])})\n\n{ids}" if ids else "")
    return "".join(parts)


def _cases(suite: Suite, cases: Sequence[CaseInfo], progress: Callable[[int], None]) -> Iterator[tuple[str, bytes]]:
    """The files of each case: those of onnx.backend.test, its other answers, and its facts."""
    for index, info in enumerate(cases):
        progress(index)
        case, folder = suite.load(info), place_of(info)
        others = (
            (f"alternative_{at}/output_{index}.pb", tensor_bytes(array, name))
            for at, other in enumerate(case.alternatives)
            for index, (name, array) in enumerate(other.outputs.items())
        )
        for path, data in chain(case_files(case), others):
            yield f"{folder}/{path}", data
        if case.expected:
            yield f"{folder}/data.json", (json.dumps(_tolerance(case)) + "\n").encode()
        yield f"{folder}/case.json", _json_lines(describe(suite, case))


def _tolerance(case: Case) -> dict[str, float]:
    """The tolerance of onnx.backend.test: none for integers and codes; for floats what `ulp` allows."""
    if all(array.dtype.name not in ULP_TYPES for array in case.expected.values()):
        return {"rtol": 0.0, "atol": 0.0}
    floats = [array for array in case.expected.values() if array.dtype.name in ULP_TYPES]
    return {"rtol": RTOL, "atol": max(case.within, *map(absolute_tolerance, floats))}


def _json_lines(content: Mapping[str, Any]) -> bytes:
    """A JSON object with a line for each key."""
    rows = (f" {json.dumps(key)}: {json.dumps(encode(value), allow_nan=False)}" for key, value in content.items())
    return ("{\n" + ",\n".join(rows) + "\n}\n").encode()


def describe(suite: Suite, case: Case) -> dict[str, Any]:
    """The content of case.json, whose schema is qrun/schemas/conform-case-1.0.json."""
    info, rule = case.info, suite.rule(case.info)
    return {
        "suite": suite.version,
        **{field: getattr(info, field) for field in CaseHead.__dataclass_fields__},
        "expects": info.expects,
        "mustpass": info.mustpass,
        "title": rule.title,
        "section": rule.section,
        "quotes": [asdict(quote) for quote in rule.quotes],
        "note": rule.note,
        "inputs": [_form(name, array) for name, array in case.inputs.items()],
        "outputs": [_output(case, name, array) for name, array in case.expected.items()],
        "alternatives": [
            {"folder": f"alternative_{at}", "cause": a.cause, "text": a.text, "open": a.open, "runtimes": a.runtimes}
            for at, a in enumerate(case.alternatives)
        ],
    }


def _form(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "type": type_name(array.dtype), "shape": array.shape}


def _output(case: Case, name: str, array: Array) -> dict[str, Any]:
    """An output with the numbers that decide between verdicts; a key is missing where it does not apply."""
    facts = _form(name, array)
    if name in case.exact:
        facts["exact"] = case.exact[name].ravel().tolist()
    if name in case.margin:
        facts["margin"] = case.margin[name].ravel().tolist()
        if is_integral(array.dtype):
            facts["near_tie"] = near_tie(array.dtype)
    if array.dtype.name in ULP_TYPES:
        facts |= {"rtol": RTOL, "atol": absolute_tolerance(array), "within": case.within}
    return facts
