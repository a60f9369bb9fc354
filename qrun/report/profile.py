"""The report of a profile: the whole model, the slowest nodes, the operators; as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.memory import human
from qrun.profiling import SPREAD, Profile, Summary, outliers, summary
from qrun.report.grid import Column, Grid, markdown_lines
from qrun.report.header import cpus, environment, headline, model_fields
from qrun.report.nodes import FUSED, fold_prefix, fused_text, kernel_fields, node_of, op_names, output_text
from qrun.report.screen import Out, Screen
from qrun.report.text import bar, duration, percent, plural, width_of

BETWEEN = 0.05
"""Share of a run between its nodes that is worth a note."""
BAR, BESIDE = 44, 50
"""Columns of the longest bar, and of what stands beside it without the operator's name."""


@dataclass(frozen=True)
class ProfileReport:
    """Everything that a report of a profile shows. top: rows to print, None for all in graph order; by: node or op."""

    profile: Profile
    feeds: Mapping[str, Array]
    sources: Mapping[str, str]
    symbols: Mapping[str, int]
    load_ns: int
    backend: str
    arith: str
    label: str = ""
    by: str = "node"
    top: int | None = 10

    @property
    def medians(self) -> np.ndarray[Any, Any]:
        """Median time of each node, ns, in graph order."""
        return np.median(self.profile.node_ns, 1) if self.profile.node_ns.size else np.zeros(0)


def print_profile(out: Out, report: ProfileReport) -> None:
    screen = out.result
    if not out.quiet:
        label = report.label or (f"arith {report.arith}" if report.arith != "exact" else "")
        headline(screen, report.profile.model, report.feeds, report.sources, report.symbols, label)
        screen.wrapped("  ", "  ", _how(report))
        screen.line()
    screen.line(("Whole model", "bold"))
    screen.grid(_whole(report, screen))
    if report.profile.node_ns.size:
        if report.by == "node":
            screen.line()
            _nodes(screen, report)
        screen.line()
        _operators(screen, report)
    if not out.quiet:
        found = notes(report)
        if found:
            screen.line()
        for note in found:
            screen.wrapped("note: ", "      ", note)


def _how(report: ProfileReport) -> str:
    from qrun import __version__

    profile = report.profile
    runner = report.label or f"qrun {__version__} {report.backend}"
    spent = sum(profile.run_ns)
    warm = plural(len(profile.warmup_ns), "warm-up")
    return f"{runner}, {warm} + {plural(len(profile.run_ns), 'run')} in {duration(spent)}, {plural(cpus(), 'CPU')}"


def _whole(report: ProfileReport, screen: Screen) -> Grid:
    s = summary(report.profile.run_ns)
    sign = screen.clean("±")
    peak = report.profile.last.peak_bytes
    cells = [
        ("median", duration(s.median)), ("min", duration(s.low)), ("p90", duration(s.p90)), ("max", duration(s.high)),
        (f"mean {sign} sd", _mean(s, sign)),
        ("runs/s", _rate(s.median)),
        ("peak memory", human(peak) if peak else "-"), ("load", duration(report.load_ns)),
    ]  # fmt: skip
    optional = {"load": 1, "min": 3, "max": 2}
    columns = [Column(name, right=True, optional=optional.get(name, 0)) for name, _ in cells]
    return Grid(columns, [[cell for _, cell in cells]])


def _rate(median: float) -> str:
    rate = 1e9 / median if median else 0.0
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _mean(s: Summary, sign: str) -> str:
    """``3.65 ± 0.14 ms``: both in the unit of the mean; the deviation of a single run is ``-``."""
    value, unit = duration(s.mean).rsplit(" ", 1)
    if s.deviation is None:
        return f"{value} {unit} {sign} -"
    digits = len(value.partition(".")[2])
    size = {"s": 1e9, "ms": 1e6, "us": 1e3}[unit]
    return f"{value} {sign} {s.deviation / size:.{digits}f} {unit}"


def _nodes(screen: Screen, report: ProfileReport) -> None:
    medians = report.medians
    places = range(len(medians)) if report.top is None else np.argsort(-medians, kind="stable")[: report.top]
    title = "Nodes, in graph order" if report.top is None else "Slowest nodes"
    screen.line((title, "bold"))
    grid = _node_grid(report, [int(p) for p in places])
    screen.grid(fold_prefix(screen, grid))
    if any(len(report.profile.last.events[place].group) > 1 for place in places):
        screen.line((f"  {FUSED}", "dim"))
    left = len(medians) - len(places)
    if left:
        rest = float(medians.sum() - medians[list(places)].sum())
        share = percent(rest / medians.sum() if medians.sum() else 0)
        rest_text = f"  {screen.ellipsis} {plural(left, 'more node')}, {duration(rest)} ({share})"
        screen.wrapped(rest_text + "   ", "  ", "--top all, --by op, --trace FILE, --json")


def _node_grid(report: ProfileReport, places: Sequence[int]) -> Grid:
    profile, medians = report.profile, report.medians
    nodes, events = profile.model.nodes, profile.last.events
    op = op_names(nodes)
    total = float(medians.sum()) or 1.0
    p90 = np.percentile(profile.node_ns, 90, 1)
    columns = [Column("#", right=True), Column("node", shrink=2), Column("op", shrink=1), Column("median", right=True),
               Column("p90", right=True, optional=2), Column("share", right=True),
               Column("sum", right=True, optional=1), Column("GMAC/s", right=True, optional=3),
               Column("output", optional=4)]  # fmt: skip
    rows, running = [], 0.0
    for place in places:
        event, median = events[place], float(medians[place])
        running += median
        speed = f"{event.macs / median:.1f}" if event.macs and median else "-"
        rows.append([str(event.index), node_of(profile.model, event).label, fused_text(event, op(node_of(profile.model, event))), duration(median),
                     duration(p90[place]), percent(median / total), percent(running / total), speed,
                     output_text(event)])  # fmt: skip
    return Grid(columns, rows)


@dataclass(frozen=True)
class _Kind:
    op: str
    nodes: int
    median: float


def _kinds(report: ProfileReport) -> list[_Kind]:
    found: dict[str, list[float]] = {}
    for event, median in zip(report.profile.last.events, report.medians, strict=True):
        node = node_of(report.profile.model, event)
        found.setdefault(node.op, []).append(float(median))
    kinds = [_Kind(op, len(times), sum(times)) for op, times in found.items()]
    return sorted(kinds, key=lambda kind: -kind.median)


def _operators(screen: Screen, report: ProfileReport) -> None:
    screen.line(("By operator", "bold"))
    top = (report.top if report.by == "op" else 10) or 10**6
    kinds = _kinds(report)
    names = max(width_of(kind.op) for kind in kinds)
    bars = BAR if screen.width is None else min(BAR, max(screen.width - names - BESIDE, 10))
    screen.grid(_operator_grid(kinds, top, lambda share: bar(share, bars, screen.encoding)))


def _operator_grid(kinds: Sequence[_Kind], top: int, draw: Callable[[float], str]) -> Grid:
    total = sum(kind.median for kind in kinds) or 1.0
    if len(kinds) > top + 1:
        rest = kinds[top:]
        other = _Kind(f"{len(rest)} others", sum(k.nodes for k in rest), sum(k.median for k in rest))
        kinds = [*kinds[:top], other]
    columns = [Column("op", shrink=1), Column("nodes", right=True), Column("median", right=True),
               Column("share", right=True), Column("", optional=1)]  # fmt: skip
    rows = [
        [kind.op, str(kind.nodes), duration(kind.median), percent(kind.median / total), draw(kind.median / total)]
        for kind in kinds
    ]
    return Grid(columns, rows)


def notes(report: ProfileReport) -> list[str]:
    """What the reader should know about these numbers."""
    profile = report.profile
    s = summary(profile.run_ns)
    found = []
    if not profile.node_ns.size and profile.model.nodes:
        found.append("per-node time is not available for this backend yet")
    odd = outliers(profile.run_ns)
    if odd == [0]:
        found.append(f"run 1 took {duration(profile.run_ns[0])}, far from the median; more --warmup removes this.")
    elif odd:
        worst = max(odd, key=lambda at: profile.run_ns[at])
        found.append(
            f"{len(odd)} of {len(profile.run_ns)} runs are far from the median, the slowest run {worst + 1} with "
            f"{duration(profile.run_ns[worst])}; other programs may be at work."
        )
    if s.median and s.p90 > SPREAD * s.median:
        found.append(f"p90 is {s.p90 / s.median:.1f} x the median: the machine is busy or its clock varies; "
                     "more runs (-n) or a quiet machine help.")  # fmt: skip
    between = float(np.median(np.asarray(profile.run_ns) - profile.node_ns.sum(0))) if profile.node_ns.size else 0.0
    if between > BETWEEN * s.median:
        found.append(f"{duration(between)} ({percent(between / s.median)}) of a run is spent between the nodes.")
    return found


def print_markdown(out: Out, report: ProfileReport) -> None:
    """The report as GitHub Markdown."""
    plain = out.result
    model = report.profile.model
    lines = [
        f"### `{plain.clean(model.label).replace('`', ' ')}`",
        "",
        _how(report),
        "",
        *markdown_lines(_whole(report, plain)),
    ]
    if report.profile.node_ns.size:
        medians = report.medians
        if report.by == "node":
            places = range(len(medians)) if report.top is None else np.argsort(-medians, kind="stable")[: report.top]
            grid = _node_grid(report, [int(p) for p in places])
            rows = [[plain.clean(cell) for cell in row] for row in grid.rows]
            lines += ["", *markdown_lines(Grid(grid.columns, rows))]
        grid = _operator_grid(_kinds(report), report.top or 10**6, lambda share: "").without(4)
        lines += ["", *markdown_lines(grid)]
    for note in notes(report):
        lines += ["", f"note: {note}"]
    for line in lines:
        plain.line(line)


def profile_fields(report: ProfileReport) -> dict[str, Any]:
    """The body of the JSON report; all samples in ms."""
    profile, model = report.profile, report.profile.model
    return {
        "model": model_fields(model),
        "environment": {**environment(report.backend, report.label), "arith": report.arith},
        "inputs": [
            {"name": name, "type": type_name(a.dtype), "shape": list(a.shape), "source": report.sources.get(name, "")}
            for name, a in report.feeds.items()
        ],
        "symbols": dict(report.symbols),
        "load_ms": report.load_ns / 1e6,
        "warmup_ms": [t / 1e6 for t in profile.warmup_ns],
        "run": {**_fields(summary(profile.run_ns)), "samples_ms": [t / 1e6 for t in profile.run_ns]},
        "peak_bytes": profile.last.peak_bytes or None,
        "nodes": _node_fields(report),
        "operators": [{"op": k.op, "nodes": k.nodes, "median_ms": k.median / 1e6} for k in _kinds(report)]
        if profile.node_ns.size
        else [],
        "notes": notes(report),
        "interrupted": profile.interrupted,
    }


def _fields(s: Summary) -> dict[str, float | None]:
    return {
        "median_ms": s.median / 1e6, "min_ms": s.low / 1e6, "p90_ms": s.p90 / 1e6, "max_ms": s.high / 1e6,
        "mean_ms": s.mean / 1e6, "sd_ms": None if s.deviation is None else s.deviation / 1e6,
    }  # fmt: skip


def _node_fields(report: ProfileReport) -> list[dict[str, Any]]:
    profile = report.profile
    if not profile.node_ns.size:
        return []
    total = float(report.medians.sum()) or 1.0
    rows = []
    for event, samples in zip(profile.last.events, profile.node_ns, strict=True):
        node = node_of(profile.model, event)
        s = summary(samples)
        rows.append({
            "index": event.index, "name": node.name, "domain": node.domain or "ai.onnx", "op": node.op_type,
            **kernel_fields(event), "median_ms": s.median / 1e6, "p90_ms": s.p90 / 1e6, "share": s.median / total,
            "macs": event.macs, "samples_ms": [int(t) / 1e6 for t in samples],
            "outputs": [{"name": t.name, "type": type_name(t.dtype), "shape": list(t.shape)} for t in event.outputs],
        })  # fmt: skip
    return rows
