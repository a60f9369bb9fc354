"""Signs that other work on the machine disturbed a measurement; `run` and `profile` use the same test."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.report.text import duration, percent
from qrun.running.profiling import TOLD, Profile, outliers, summary

SPREAD = 1.5
"""p90 above this multiple of the median is a sign."""
FEW = 0.02
"""The share of runs that interrupts may move far from the median even on a quiet machine."""
AWAY = 0.1
"""A larger share of the runs' time spent without a processor is a sign."""
BUSY = "the machine is busy, or its clock varies"
HELP = "Close other programs and repeat"


def signs(profile: Profile) -> Iterator[str]:
    """Yields the signs in one profile; a quiet machine gives none."""
    yield from _spread(profile)
    yield from _away(profile)
    yield from _nodes(profile)


def _spread(profile: Profile) -> Iterator[str]:
    """Signs in plain runs. A slow first run alone is not a sign."""
    odd, samples, s = outliers(profile.run_ns), profile.run_ns, summary(profile.run_ns)
    if len(odd) > FEW * len(samples) and odd != [0]:
        slowest = max(samples[at] for at in odd)
        yield f"{len(odd)} of {len(samples)} runs far from the median, the slowest {duration(slowest)}"
    if s.median and s.p90 > SPREAD * s.median:
        yield f"p90 is {s.p90 / s.median:.1f} x the median"


def _away(profile: Profile) -> Iterator[str]:
    whole = sum(profile.run_ns)
    if profile.on_ns is not None and whole - profile.on_ns > AWAY * whole:
        yield f"the calling thread was not running for {percent(1 - profile.on_ns / whole)} of the time"


def _nodes(profile: Profile) -> Iterator[str]:
    """Signs in nodes: each run delays other nodes, or the nodes take longer than the plain runs interleaved with
    theirs."""
    spent = float(profile.medians.sum())
    if profile.held_ns > TOLD * profile.median_ns:
        held = duration(spent + profile.held_ns)
        yield f"the nodes' medians add up to {duration(spent)}, but the nodes of one run take {held}"
    if not profile.unit_ns and spent > (1 + TOLD) * profile.median_ns:
        yield f"the nodes' medians add up to {duration(spent)}, but a plain run takes {duration(profile.median_ns)}"
