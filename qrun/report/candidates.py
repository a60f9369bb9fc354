"""The report of several models against the one that they were made of, the best one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qrun.comparing.accuracy import Accuracy
from qrun.comparing.accuracy_rows import OutputAccuracy
from qrun.report.accuracyjson import accuracy_fields, departed, hurry
from qrun.report.grid import Column, Grid
from qrun.report.header import chance, headline
from qrun.report.screen import BAD, GOOD
from qrun.report.sheet import NONE, Block, Sheet, Sources, more
from qrun.report.text import decibel, file_size, plural

Candidate = tuple[str, Accuracy]
"""The path of a model as it was given, and what was found of it."""


def ranked(found: Sequence[Candidate]) -> list[Candidate]:
    """Those first whose outputs are good enough, then by the least SQNR of an output, then the smaller file."""
    return sorted(found, key=lambda each: (not each[1].passed, -least(each[1]), each[1].quantized.size))


def least(found: Accuracy) -> float:
    """The SQNR of the worst output; -inf if one is of codes that nothing tells the scale of, or has NaN in one model only."""
    if any(output.codes for output in found.outputs):
        return float("-inf")
    values = [output.noise.sqnr for output in found.outputs]
    return min((value if value == value else float("-inf") for value in values), default=float("inf"))


def candidates_sheet(found: Sequence[Candidate], first: str, top: int | None, sources: Sources = NONE) -> Sheet:
    """The report. found: as `ranked` gives them; first: the path of the model that they are compared with."""
    best, reference = found[0][1], found[0][1].reference
    good = sum(each.passed for _, each in found)
    goal = f"--min-sqnr {best.min_sqnr:g}" if best.min_sqnr is not None else "the tolerance"
    words = ("equal", "differ") if best.min_sqnr is None else ("accurate", "too noisy")
    verdict = f"{words[not best.passed]}: the best is {found[0][0]}, SQNR {decibel(least(best))}{_flips(best)}; {good} of {len(found)} reach {goal}."
    about = [f"{plural(best.runs, 'set')} of inputs; SQNR is that of the worst output"]
    notes = [f"{path}: {text}" for path, each in found for text in (hurry(each), departed(each)) if text]
    block = Block(
        "Models, the best first",
        _table(found[:top]),
        lines=[f"qrun compare {first} {found[0][0]} with the same inputs tells what each node costs"],
        more=more(len(found) - len(found[:top]), "model") if top is not None else "",
    )
    style = GOOD if best.passed else BAD
    return Sheet([block], verdict + chance(sources), style, [headline(reference, best.feeds, sources)], about, notes)


def _table(found: Sequence[Candidate]) -> Grid:
    return Grid.of(
        [
            Column("model", shrink=1, cell=lambda each: each[0]),
            Column("SQNR", right=True, cell=lambda each: decibel(least(each[1]))),
            Column("argmax", right=True, cell=lambda each: _same(each[1].outputs)),
            Column("good enough", cell=lambda each: "yes" if each[1].passed else "no"),
            Column("size", right=True, optional=1, cell=lambda each: file_size(each[1].quantized.size)),
            Column("quantized nodes", right=True, optional=2, cell=lambda each: str(each[1].quantizing)),
            Column("costs most", shrink=2, optional=3, cell=lambda each: _dearest(each[1])),
        ],
        found,
    )


def _dearest(found: Accuracy) -> str:
    return f"{found.costs[0].node.label} ({decibel(found.costs[0].sqnr)})" if found.costs else "-"


def _decisions(outputs: Sequence[OutputAccuracy]) -> tuple[int, int]:
    told = [(o.agreed, o.decided) for o in outputs if o.agreed is not None and o.decided is not None]
    return sum(agreed for agreed, _ in told), sum(decided for _, decided in told)


def _same(outputs: Sequence[OutputAccuracy]) -> str:
    """In how many rows argmax is the same."""
    agreed, decided = _decisions(outputs)
    return f"{agreed} of {decided}" if decided else "-"


def _flips(found: Accuracy) -> str:
    agreed, decided = _decisions(found.outputs)
    return f", argmax changed in {decided - agreed} of {decided}" if agreed < decided else ""


def candidates_fields(found: Sequence[Candidate], sources: Sources = NONE) -> dict[str, Any]:
    """The body of the JSON report: of each model what a comparison of two tells, the best first."""
    return {
        "candidates": [{"path": path, "sqnr_db": least(each), **accuracy_fields(each, sources)} for path, each in found]
    }
