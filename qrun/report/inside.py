"""Nodes of graphs inside other nodes (of If, Loop and Scan), as rows of a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.documents.answers import InsideTimes
from qrun.report.grid import Column, Grid
from qrun.report.text import duration, percent, plural
from qrun.running.session import InsideEvent


def inside_times(events: Sequence[InsideEvent]) -> list[InsideTimes]:
    return [InsideTimes(e.path, e.op, e.runs, e.duration_ns / 1e6, e.backend, e.why) for e in events]


def inside_left(events: Sequence[InsideEvent], most: int | None) -> str:
    """``2 more nodes inside``: those that `inside_grid` leaves out; "" if it has all."""
    left = 0 if most is None else len(events) - most
    return f"{plural(left, 'more node')} inside" if left > 0 else ""


def inside_grid(events: Sequence[InsideEvent], whole_ns: float, most: int | None) -> Grid:
    """The slowest first, or all in the order in which they ran. whole_ns: of the run, whose shares are shown."""
    shown = events if most is None else sorted(events, key=lambda e: -e.duration_ns)[:most]
    columns = [
        Column("inside", shrink=2, cell=lambda e: e.path),
        Column("op", shrink=1, cell=lambda e: e.op),
        Column("runs", right=True, cell=lambda e: str(e.runs)),
        Column("time", right=True, cell=lambda e: duration(e.duration_ns)),
        Column("share", right=True, cell=lambda e: percent(e.duration_ns / whole_ns if whole_ns else 0)),
        Column("kernel", optional=1, cell=lambda e: e.backend),
    ]
    return Grid.of(columns, shown)
