"""What the reader of a profile should know about its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qrun.report.profilerows import ProfileReport, above_roof
from qrun.report.text import duration, percent, plural
from qrun.running.profiling import SPREAD, Profile, outliers, summary

Sides = Sequence[tuple[str, Profile]]
"""What a note calls the runtime, and its profile."""

BETWEEN = 0.05
"""Share of a run between its nodes that is worth a note."""
HELD = 0.15
"""Share of a run that is missing from the sum of the nodes' medians and worth a note."""
ABOVE = 1.15
"""Share of the roof that says that the roof was measured on a busy machine."""


def notes(report: ProfileReport) -> list[str]:
    """What the reader should know about these numbers; one note for each thing to do about them."""
    sides = [("", report.profile)]
    if report.against is not None:
        sides = [("qrun: ", report.profile), ("onnxruntime: ", report.against)]
    between = [] if report.against is None else _between(sides)
    return [*_missing(report), *_cold(sides), *_busy(report, sides), *between]


def _missing(report: ProfileReport) -> Iterator[str]:
    profile = report.profile
    if report.backend == "onnx-ref" and profile.model.nodes:
        yield "onnx.reference gives whole runs only; per-node time is not available for this backend"
    ort = report.against or (profile if report.backend == "ort" else None)
    if ort is not None and not ort.watched_ns:
        yield "onnxruntime's profiler does not take this model with these inputs; per-node time is not available for it"
    for name, each in ((report.label, profile), (report.other, report.against)):
        if each is not None and each.watched_ns:
            watched, plain = summary(each.watched_ns).median, summary(each.run_ns).median
            slower = f" ({percent(watched / plain - 1)} more)" if plain and watched > plain else ""
            yield (f"whole runs of {name.partition(' (')[0]} are without its profiler, the nodes' times are from "
                   f"{plural(len(each.watched_ns), 'run')} with it, {duration(watched)} a run{slower}; "
                   "it counts whole microseconds.")  # fmt: skip


def _cold(sides: Sides) -> Iterator[str]:
    found = [f"{who}run 1 took {duration(p.run_ns[0])}" for who, p in sides if outliers(p.run_ns) == [0]]
    if found:
        yield f"{'; '.join(found)}, far from the median; more --warmup removes this."


def _busy(report: ProfileReport, sides: Sides) -> Iterator[str]:
    """The signs of a busy machine, and what helps."""
    found = [who + ", ".join(signs) for who, profile in sides if (signs := [*_spread(profile), *_held(profile)])]
    above = above_roof(report.rows, ABOVE) if report.machine else []
    if above:
        found.append(
            f"{plural(len(above), 'node')} above the roof, though it was measured twice (--no-cache measures it anew)"
        )
    if found:
        yield (f"the machine is busy, or its clock varies: {'; '.join(found)}. Only a quiet machine helps all of these "
               "numbers; more runs (-n) make the median of whole runs sure.")  # fmt: skip


def _spread(profile: Profile) -> Iterator[str]:
    """Of whole runs; a first run that is slow by itself is no sign."""
    odd, samples, s = outliers(profile.run_ns), profile.run_ns, summary(profile.run_ns)
    if odd and odd != [0]:
        slowest = max(samples[at] for at in odd)
        yield f"{len(odd)} of {len(samples)} runs far from the median, the slowest {duration(slowest)}"
    if s.median and s.p90 > SPREAD * s.median:
        yield f"p90 is {s.p90 / s.median:.1f} x the median"


def _held(profile: Profile) -> Iterator[str]:
    """What of a run neither the nodes' medians nor the time between them account for: in each run others were held up."""
    median = _median(profile)
    missing = median - profile.between_ns - float(profile.medians.sum())
    if profile.node_ns.size and missing > HELD * median:
        spent = duration(float(profile.medians.sum()))
        yield f"the nodes' medians add up to {spent}, {percent(missing / median)} less than a run takes"


def _between(sides: Sides) -> Iterator[str]:
    found = [
        f"{who.replace(': ', ' ')}{duration(p.between_ns)} ({percent(p.between_ns / _median(p))})"
        for who, p in sides
        if p.node_ns.size and p.between_ns > BETWEEN * _median(p)
    ]
    if found:
        yield f"between the nodes of a run: {', '.join(found)}."


def _median(profile: Profile) -> float:
    """Of the runs that the nodes' times are of, ns."""
    return float(np.median(profile.watched_ns or profile.run_ns))
