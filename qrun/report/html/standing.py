"""How each of several models stands to the first one, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qrun.comparing.savedprofiles import change
from qrun.documents.answers import Samples
from qrun.report.html.collect import PageContent
from qrun.report.html.comparison import headline
from qrun.report.html.findings import counts
from qrun.report.html.tags import Markup, tag
from qrun.report.text import duration, percent

WAYS = {"faster": "good", "slower": "error"}
"""Decided differences of times, and how they are shown."""


def verdicts(pages: Sequence[PageContent], names: Sequence[str]) -> Iterator[Markup]:
    """Of each model but the first a sentence: how its time, outputs and findings stand to those of the first."""
    for page, name in zip(pages[1:], names[1:], strict=True):
        parts = [
            *_time_told(pages[0], page, names[0], name),
            *_accuracy_told(page),
            *_findings_told(pages[0], page, names[0]),
        ]
        if parts:
            yield tag("p", *parts, ".", class_="verdict")


def _time_told(first: PageContent, page: PageContent, base: str, name: str) -> list[str]:
    if first.time is None or page.time is None or not first.time.median_ms:
        return [tag("b", name)]
    times = f"{duration(page.time.median_ms * 1e6)} against {duration(first.time.median_ms * 1e6)}"
    way = way_of(first.time, page.time)
    if way in WAYS:
        word = tag("b", f"{name} is {way}", class_=WAYS[way])
        return [word, f" than {base}: {times} a run, {percent(page.time.median_ms / first.time.median_ms)} of its time"]
    why = "there are too few runs to tell" if way == "few runs" else "the difference is within the spread of the runs"
    return [tag("b", f"{name} is neither faster nor slower"), f" than {base}: {times} a run; {why}"]


def _accuracy_told(page: PageContent) -> list[str]:
    found = page.comparison
    if found is None:
        return []
    big, small, _ = headline(found)
    return [f"; outputs at {big} SQNR" if found["kind"].text == "models" and big.endswith("dB") else f"; {big} {small}"]


def _findings_told(first: PageContent, page: PageContent, base: str) -> list[str]:
    if first.checked is None or page.checked is None:
        return []
    return [f"; {counts(page.checked)} ({base}: {counts(first.checked)})"]


def way_of(first: Samples, other: Samples) -> str:
    """How the times of whole runs stand to those of the first model, as the spread of both tells."""
    return change(first.samples_ms or (first.median_ms,), other.samples_ms or (other.median_ms,)).verdict
