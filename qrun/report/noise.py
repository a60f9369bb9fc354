"""The signs that other work of the machine disturbed a measurement: one test for run and profile."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.report.text import duration, percent
from qrun.running.profiling import TOLD, Profile, outliers, summary

SPREAD = 1.5
"""p90 above this many medians is a sign."""
FEW = 0.02
"""Share of runs that may be far from the median, as interrupts of a quiet machine make them."""
AWAY = 0.1
"""Share of the runs' time without a processor that is a sign."""
BUSY = "the machine is busy, or its clock varies"
HELP = "Close other programs and repeat"


def signs(profile: Profile) -> Iterator[str]:
    """The signs in one profile; none on a quiet machine."""
    yield from _spread(profile)
    yield from _away(profile)
    yield from _nodes(profile)


def _spread(profile: Profile) -> Iterator[str]:
    """Of plain runs; a first run that is slow by itself is no sign."""
    odd, samples, s = outliers(profile.run_ns), profile.run_ns, summary(profile.run_ns)
    if len(odd) > FEW * len(samples) and odd != [0]:
        slowest = max(samples[at] for at in odd)
        yield f"{len(odd)} of {len(samples)} runs far from the median, the slowest {duration(slowest)}"
    if s.median and s.p90 > SPREAD * s.median:
        yield f"p90 is {s.p90 / s.median:.1f} x the median"


def _away(profile: Profile) -> Iterator[str]:
    whole = sum(profile.run_ns)
    if profile.on_ns is not None and whole - profile.on_ns > AWAY * whole:
        yield f"the calling thread had no processor for {percent(1 - profile.on_ns / whole)} of the time"


def _nodes(profile: Profile) -> Iterator[str]:
    """Nodes that were held up, in each run others; nodes that take longer than the plain runs in turn with which they
    were timed."""
    spent = float(profile.medians.sum())
    if profile.held_ns > TOLD * profile.median_ns:
        held = duration(spent + profile.held_ns)
        yield f"the nodes' medians add up to {duration(spent)}, the nodes of a run take {held}"
    if not profile.unit_ns and spent > (1 + TOLD) * profile.median_ns:
        yield f"the nodes' medians add up to {duration(spent)}, a plain run takes {duration(profile.median_ns)}"
