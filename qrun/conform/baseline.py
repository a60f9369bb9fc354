"""What changed since a saved answer: a runtime's own tests keep its known failures."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from qrun.conform.results import Judgement
from qrun.documents.item import damaged, read_document
from qrun.documents.record import decode
from qrun.errors import CallError

KIND = "conform"
MAKE = "qrun conform --runtime NAME --json saves one"


def saved(path: str) -> Judgement:
    """The judgement of a JSON file. Raises CallError if it is none."""
    _, item = read_document(Path(path), (KIND,), MAKE)
    found = decode(Judgement, item)
    for each in found.runtimes:
        if any(case.verdict not in each.counts for case in each.cases):
            raise damaged(path, "verdicts of qrun conform", "others", MAKE)
    return found


def check_runtimes(names: Iterable[str], before: Judgement) -> None:
    """Raises CallError for a runtime that the saved answer does not have."""
    known = [each.name for each in before.runtimes]
    for name in names:
        if name not in known:
            raise CallError(
                "QR005",
                f"the baseline has no runtime {name}",
                facts=[("it has", ", ".join(known))],
                fixes=[f"qrun conform --runtime {shlex.quote(name)} -o FILE.json saves one"],
            )


def changed(now: Judgement, before: Judgement) -> Judgement:
    """Only the cases whose verdict or cause is another one; those that the saved answer does not have count as new."""
    known = {r.name: {case.id: (case.verdict, case.cause) for case in r.cases} for r in before.runtimes}
    runtimes = []
    for runtime in now.runtimes:
        old = known[runtime.name]
        new = tuple(case for case in runtime.cases if old.get(case.id) != (case.verdict, case.cause))
        runtimes.append(replace(runtime, cases=new))
    return replace(now, runtimes=tuple(runtimes))
