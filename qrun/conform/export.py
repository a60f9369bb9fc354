"""Cases as plain ONNX test folders, for those who have no qrun."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from qrun.conform.external import write_case
from qrun.conform.suite import CaseInfo, Suite
from qrun.errors import CallError


def export(suite: Suite, cases: Sequence[CaseInfo], folder: Path, progress: Callable[[int], None]) -> None:
    """A folder for each case, named by its id: ``model.onnx``, ``test_data_set_0/`` and ``case.json``.

    A case that must be refused has no outputs. Raises CallError if the folder is not empty, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CallError("QR008", f"{folder} is not empty", where=[str(folder)], fixes=["name a new folder"])
        for place, info in enumerate(cases):
            progress(place)
            _write(suite, info, folder / info.id)
    except OSError as error:
        raise CallError(
            "QR008",
            f"cannot write to {folder}: {error.strerror or error}",
            where=[str(folder)],
            fixes=["name another folder"],
        ) from None


def _write(suite: Suite, info: CaseInfo, folder: Path) -> None:
    case, clause = suite.load(info), suite.clause(info)
    write_case(case, folder)
    told = {
        "id": info.id,
        "operator": info.op,
        "domain": info.domain,
        "version": info.version,
        "profile": info.profile,
        "rejects": info.rejects,
        "clause": info.clause,
        "title": clause.title,
        "sentence": clause.sentence,
        "basis": info.basis,
        "exact": {name: [repr(float(v)) for v in values.flat] for name, values in case.exact.items()},
        "margin": {name: [repr(float(v)) for v in values.flat] for name, values in case.margin.items()},
        "within": case.within,
    }
    (folder / "case.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
