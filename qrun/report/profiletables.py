"""The tables of a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from qrun.documents.answers import GroupTimes, OperatorTimes, PairedTimes, ProfileNode
from qrun.memory import human
from qrun.report.grid import Column, Grid
from qrun.report.nodes import fused_text, op_names, step_names
from qrun.report.profilerows import ProfileReport, refused, roof_share, spent
from qrun.report.text import duration, percent, ratio_text
from qrun.running.profiling import Profile, Summary, summary

INSERTED = "(inserted)"


def whole_grid(report: ProfileReport, sign: str) -> Grid:
    """The whole model's times; two rows if it was measured against another runtime. sign: plus or minus."""
    profile, both = report.profile, report.against is not None
    peak = profile.last.peak_bytes
    more = [("live tensors", human(peak))] if peak and not both else []
    more += [("load", duration(report.load_ns))] if not both and report.load_ns else []
    more += [("first run", duration(profile.prepare_ns[0]))] if profile.prepare_ns and not both else []
    runs = [("qrun", profile), *([("onnxruntime", report.against)] if report.against else [])]
    rows = [{"runtime": name, **dict(_times(each, sign)), **dict(more)} for name, each in runs]
    optional = {"load": 1, "max": 2, "min": 3, "first run": 4}
    columns = [Column(name, right=name != "runtime", optional=optional.get(name, 0)) for name in rows[0]]
    grid = Grid(columns, [list(row.values()) for row in rows])
    return grid if both else grid.without(0)


def _times(profile: Profile, sign: str) -> list[tuple[str, str]]:
    s = summary(profile.run_ns)
    rate = 1e9 / s.median if s.median else 0.0
    return [
        ("median", duration(s.median)),
        ("min", duration(s.low)),
        ("p90", duration(s.p90)),
        ("max", duration(s.high)),
        (f"mean {sign} sd", _mean(s, sign)),
        ("runs/s", f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"),
    ]


def _mean(s: Summary, sign: str) -> str:
    """``3.65 ± 0.14 ms``: both in the unit of the mean; the deviation of a single run is ``-``."""
    value, unit = duration(s.mean).rsplit(" ", 1)
    if s.deviation is None:
        return f"{value} {unit} {sign} -"
    digits = len(value.partition(".")[2])
    size = {"s": 1e9, "ms": 1e6, "us": 1e3}[unit]
    return f"{value} {sign} {s.deviation / size:.{digits}f} {unit}"


def node_grid(report: ProfileReport) -> Grid:
    """The slowest nodes, or all."""
    op, running = op_names(report.profile.model.nodes), 0.0
    named = step_names((n.index, n.label) for n in report.rows)

    def total(row: ProfileNode) -> str:
        nonlocal running
        running += row.share
        return percent(running)

    columns = [
        Column("#", right=True, cell=lambda n: "-" if n.inserted else str(n.index)),
        Column("node", shrink=2, cell=lambda n: f"{n.label} {INSERTED}" if n.inserted else named(n, n.label)),
        Column("op", shrink=1, cell=lambda n: fused_text(n, op(n))),
        Column("median", right=True, cell=lambda n: duration(n.median_ns)),
        Column("p90", right=True, optional=4, cell=lambda n: duration(n.p90_ms * 1e6)),
        Column("share", right=True, cell=lambda n: percent(n.share)),
        Column("sum", right=True, optional=1, cell=total),
        Column("GMAC/s", right=True, optional=3, cell=_gmacs),
        Column("roof", right=True, optional=2, cell=lambda n: _roof([n])) if report.machine else None,
        Column("ran by", shrink=1, optional=5, cell=lambda n: n.ran_by),
        Column("moved", right=True, optional=6, cell=lambda n: human(n.bytes)),
        Column("output", optional=7, cell=lambda n: n.output_text),
    ]
    return Grid.of(columns, report.slowest)


def _gmacs(row: ProfileNode | OperatorTimes) -> str:
    return "-" if row.gmacs is None else f"{row.gmacs:.1f}"


def _roof(rows: Sequence[ProfileNode]) -> str:
    """``62% compute``: the share of the roof of all, and what bounds the one that takes longest."""
    share, known = roof_share(rows), [row for row in rows if row.bound]
    return (
        "-" if share is None or not known else f"{share * 100:.0f}% {max(known, key=lambda row: row.median_ns).bound}"
    )


def operator_grid(report: ProfileReport, draw: Callable[[float], str] | None) -> Grid:
    """By operator. draw: a bar for a share, None for none."""
    kinds, alone = report.operators, report.by == "op"
    top = (report.top if alone else 10) or 10**6
    shown = kinds if len(kinds) <= top + 1 else kinds[:top]
    if rest := kinds[len(shown) :]:
        sums = (sum(k.nodes for k in rest), sum(k.median_ms for k in rest), sum(k.share for k in rest))
        shown = [*shown, OperatorTimes(f"{len(rest)} others", *sums, 0, None, None, {})]
    columns = [
        Column("op", shrink=1, cell=lambda k: k.op),
        Column("nodes", right=True, cell=lambda k: str(k.nodes)),
        Column("median", right=True, cell=lambda k: duration(k.median_ms * 1e6)),
        Column("share", right=True, cell=lambda k: percent(k.share)),
        Column("GMAC/s", right=True, optional=3, cell=_gmacs),
        Column(
            "roof", right=True, optional=2, cell=lambda k: "-" if k.roof_share is None else f"{k.roof_share * 100:.0f}%"
        )
        if report.machine
        else None,
        Column("ran by", optional=4, cell=lambda k: _counted(k.ran_by, len(k.ran_by) > 1)) if alone else None,
        Column("", optional=1, cell=lambda k: draw(k.share)) if draw else None,
    ]
    return Grid.of(columns, shown)


def _counted(kernels: Any, numbers: bool = True) -> str:
    return ", ".join(f"{kernel} {count}" if numbers else kernel for kernel, count in kernels.items())


def refused_grid(report: ProfileReport) -> Grid:
    """Why nodes did not run natively, with what that costs; no rows if all did."""
    columns = [
        Column("not native, because", wrap=True, below=True, cell=lambda found: found[0]),
        Column("nodes", right=True, cell=lambda found: str(len(found[1]))),
        Column("median", right=True, cell=lambda found: duration(spent(found[1]))),
        Column("share", right=True, cell=lambda found: percent(sum(row.share for row in found[1]))),
        Column("such as", shrink=1, optional=1, cell=lambda found: max(found[1], key=lambda row: row.median_ns).label),
    ]
    return Grid.of(columns, refused(report.rows))


def _both(report: ProfileReport, ran_by: Column) -> list[Column | None]:
    """The columns of groups, and of operators, that two runtimes ran."""
    roofs = [
        Column("roof", right=True, optional=1, cell=lambda row: _roof(row.mine)),
        Column("ort's roof", right=True, optional=3, cell=lambda row: _roof(row.others)),
    ]
    return [
        Column("qrun", right=True, cell=lambda row: _time(row.mine)),
        Column("ort", right=True, cell=lambda row: _time(row.others)),
        Column("ort/qrun", right=True, cell=lambda row: "-" if row.ratio is None else ratio_text(row.ratio)),
        *(roofs if report.machine else []),
        Column("ort in", optional=4, cell=_arithmetic) if report.arithmetics else None,
        replace(ran_by, header="in onnxruntime", shrink=1, optional=2),
    ]


def _arithmetic(row: GroupTimes | PairedTimes) -> str:
    """``integer``, ``float``, or how many nodes of each."""
    kinds = Counter(node.arithmetic for node in row.others if node.arithmetic)
    return _counted(kinds, len(kinds) > 1) or "-"


def _time(rows: Sequence[ProfileNode]) -> str:
    return duration(spent(rows)) if rows else "-"


def against_grid(report: ProfileReport, groups: Sequence[GroupTimes]) -> Grid:
    """Groups of nodes, with the times of both runtimes."""
    op = op_names(report.profile.model.nodes)

    def place(group: GroupTimes) -> str:
        return str(group.heaviest.index) if group.heaviest and group.nodes else "-"

    def name(group: GroupTimes) -> str:
        return f"{group.heaviest.label if group.heaviest else ''}{'' if group.nodes else f' {INSERTED}'}"

    def kind(group: GroupTimes) -> str:
        others = len(group.nodes) - 1
        return (op(group.heaviest) if group.heaviest else "") + (f" +{others}" if others > 0 else "")

    columns = [
        Column("#", right=True, cell=place),
        Column("node", shrink=1, cell=name),
        Column("op", shrink=1, cell=kind),
        *_both(report, Column("", cell=lambda group: " + ".join(row.ran_by for row in group.others) or "-")),
    ]
    return Grid.of(columns, groups)


def paired_grid(report: ProfileReport) -> Grid:
    """By operator, with the times and roofs of both runtimes."""

    def ran_by(row: PairedTimes) -> str:
        return _counted(Counter(node.ran_by for node in row.others)) or "-"

    columns = [
        Column("op", shrink=1, cell=lambda row: row.op),
        Column("groups", right=True, cell=lambda row: str(row.groups)),
        Column("nodes", right=True, optional=4, cell=lambda row: str(row.nodes)),
        *_both(report, Column("", cell=ran_by)),
    ]
    return Grid.of(columns, report.paired[: report.top])
