"""What the reader of a profile should know about its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qrun.profiling import SPREAD, Profile, outliers, summary
from qrun.report.profilerows import NodeRow, ProfileReport, above_roof
from qrun.report.text import duration, percent, plural

BETWEEN = 0.05
"""Share of a run between its nodes that is worth a note."""
HELD = 0.15
"""Share of a run that is missing from the sum of the nodes' medians and worth a note."""
ABOVE = 1.15
"""Share of the roof that says that the roof was measured on a busy machine."""


def notes(report: ProfileReport) -> list[str]:
    """What the reader should know about these numbers."""
    profile = report.profile
    return [
        *_missing(report),
        *_unstable("", profile.run_ns),
        *(_unstable("onnxruntime: ", report.against.run_ns) if report.against else ()),
        *_lost("", profile),
        *(_lost("onnxruntime: ", report.against) if report.against else ()),
        *(_above(report.rows) if report.machine else ()),
    ]


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


def _unstable(who: str, samples: Sequence[int]) -> Iterator[str]:
    s = summary(samples)
    odd = outliers(samples)
    if odd == [0]:
        yield f"{who}run 1 took {duration(samples[0])}, far from the median; more --warmup removes this."
    elif odd:
        worst = max(odd, key=lambda at: samples[at])
        yield (
            f"{who}{len(odd)} of {len(samples)} runs {'is' if len(odd) == 1 else 'are'} far from the median, the slowest run {worst + 1} with "
            f"{duration(samples[worst])}; other programs may be at work: more runs (-n) make the median sure."
        )
    if s.median and s.p90 > SPREAD * s.median:
        yield (f"{who}p90 is {s.p90 / s.median:.1f} x the median: the machine is busy or its clock varies; "
               "more runs (-n) or a quiet machine help.")  # fmt: skip


def _lost(who: str, profile: Profile) -> Iterator[str]:
    """What of a run the nodes' medians do not account for."""
    if not profile.node_ns.size:
        return
    median, nodes = float(np.median(profile.watched_ns or profile.run_ns)), float(profile.medians.sum())
    if profile.between_ns > BETWEEN * median:
        yield f"{who}{duration(profile.between_ns)} ({percent(profile.between_ns / median)}) of a run is spent between the nodes."
    missing = median - profile.between_ns - nodes
    if missing > HELD * median:
        yield (f"{who}the nodes' medians add up to {duration(nodes)}, {percent(missing / median)} less than a run takes: "
               "in each run others were held up, as on a busy machine; more runs (-n) do not help, a quiet machine does.")  # fmt: skip


def _above(rows: Sequence[NodeRow]) -> Iterator[str]:
    above = above_roof(rows, ABOVE)
    if above:
        yield (f"{plural(len(above), 'node')} above the roof, though it was measured twice: the machine is busy, or its clock "
               "varies; --no-cache measures it anew.")  # fmt: skip
