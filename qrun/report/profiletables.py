"""The tables of a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from qrun.memory import human
from qrun.report.grid import Column, Grid
from qrun.report.nodes import fused_text, kernel_text, op_names, output_text
from qrun.report.profilerows import GroupRow, NodeRow, OperatorRow, PairedRow, ProfileReport, refused
from qrun.report.text import duration, percent
from qrun.running.profiling import Profile, Summary, summary

INSERTED = "(inserted)"


def whole_grid(report: ProfileReport, sign: str) -> Grid:
    """The whole model's times; two rows if it was measured against another runtime. sign: plus or minus."""
    profile = report.profile
    peak = profile.last.peak_bytes
    more = [("live tensors", human(peak))] if peak else []
    more += [("load", duration(report.load_ns))]
    more += [("first run", duration(profile.prepare_ns[0]))] if profile.prepare_ns else []
    if report.against is None:
        cells = [*_times(profile, sign), *more]
        return Grid(_whole_columns([name for name, _ in cells]), [[cell for _, cell in cells]])
    runs = [("qrun", profile), ("onnxruntime", report.against)]
    rows = [[name, *(cell for _, cell in _times(each, sign))] for name, each in runs]
    names = [name for name, _ in _times(profile, sign)]
    return Grid([Column("runtime"), *_whole_columns(names)], rows)


def _times(profile: Profile, sign: str) -> list[tuple[str, str]]:
    s = summary(profile.run_ns)
    return [
        ("median", duration(s.median)), ("min", duration(s.low)), ("p90", duration(s.p90)), ("max", duration(s.high)),
        (f"mean {sign} sd", _mean(s, sign)), ("runs/s", _rate(s.median)),
    ]  # fmt: skip


def _whole_columns(names: Sequence[str]) -> list[Column]:
    optional = {"load": 1, "max": 2, "min": 3, "first run": 4}
    return [Column(name, right=True, optional=optional.get(name, 0)) for name in names]


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


def node_grid(report: ProfileReport) -> Grid:
    """The slowest nodes, or all."""
    op = op_names(report.profile.model.nodes)
    columns = [Column("#", right=True), Column("node", shrink=2), Column("op", shrink=1), Column("median", right=True),
               Column("p90", right=True, optional=4), Column("share", right=True),
               Column("sum", right=True, optional=1), Column("GMAC/s", right=True, optional=3)]  # fmt: skip
    columns += [Column("roof", right=True, optional=2)] if report.machine else []
    columns += [
        Column("ran by", shrink=1, optional=5),
        Column("moved", right=True, optional=6),
        Column("output", optional=7),
    ]
    rows, running = [], 0.0
    for row in report.slowest:
        running += row.share
        rows.append([_number(row), name_of(row), fused_text(row.event, op(row.node)), duration(row.times.median),
                     duration(row.times.p90), percent(row.share), percent(running), gmacs_text(row.gmacs),
                     *([_roof_text(row)] if report.machine else []), ran_by(row),
                     human(row.bytes_moved), output_text(row.event)])  # fmt: skip
    return Grid(columns, rows)


def _number(row: NodeRow) -> str:
    return "-" if row.inserted else str(row.event.index)


def name_of(row: NodeRow) -> str:
    return f"{row.node.label} {INSERTED}" if row.inserted else row.node.label


def ran_by(row: NodeRow) -> str:
    """The kernel without why it is not native, or the other runtime's operator."""
    if row.event.backend == "ort" and row.event.node is not None:
        return row.event.node.op
    return kernel_text(row.event).partition(":")[0]


def gmacs_text(speed: float | None) -> str:
    return "-" if speed is None else f"{speed:.1f}"


def _roof_text(row: NodeRow) -> str:
    return _share_text(None if row.reached is None or row.roof is None else (row.reached, row.roof.bound))


def _share_text(reached: tuple[float, str] | None) -> str:
    """``62% compute``."""
    return "-" if reached is None else f"{reached[0] * 100:.0f}% {reached[1]}"


def operator_grid(report: ProfileReport, draw: Callable[[float], str] | None) -> Grid:
    """By operator. draw: a bar for a share, None for none."""
    kinds = report.operators
    top = (report.top if report.by == "op" else 10) or 10**6
    columns = [Column("op", shrink=1), Column("nodes", right=True), Column("median", right=True),
               Column("share", right=True)]  # fmt: skip
    columns += [Column("GMAC/s", right=True, optional=3)]
    columns += [Column("roof", right=True, optional=2)] if report.machine else []
    columns += [Column("ran by", optional=4)] if report.by == "op" else []
    columns += [Column("", optional=1)] if draw else []

    def cells(op: str, members: Sequence[OperatorRow]) -> list[str]:
        share = sum(kind.share for kind in members)
        one = members[0] if len(members) == 1 else None
        return [
            op, str(sum(kind.nodes for kind in members)), duration(sum(kind.median for kind in members)), percent(share),
            gmacs_text(one.gmacs if one else None),
            *([percent_or_dash(one.reached if one else None)] if report.machine else []),
            *([_counted(one) if one else ""] if report.by == "op" else []),
            *([draw(share)] if draw else []),
        ]  # fmt: skip

    shown = kinds if len(kinds) <= top + 1 else kinds[:top]
    rows = [cells(kind.op, [kind]) for kind in shown]
    if len(shown) < len(kinds):
        rest = kinds[len(shown) :]
        rows.append(cells(f"{len(rest)} others", rest))
    return Grid(columns, rows)


def percent_or_dash(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f}%"


def _counted(row: OperatorRow) -> str:
    return ", ".join(f"{kernel} {count}" if len(row.ran_by) > 1 else kernel for kernel, count in row.ran_by.items())


def refused_grid(report: ProfileReport) -> Grid:
    """Why nodes did not run natively, with what that costs; no rows if all did."""
    columns = [Column("not native, because", wrap=True), Column("nodes", right=True), Column("median", right=True),
               Column("share", right=True), Column("such as", shrink=1, optional=1)]  # fmt: skip
    rows = []
    for why, found in refused(report.rows):
        slowest = max(found, key=lambda row: row.times.median)
        rows.append([why, str(len(found)), duration(sum(row.times.median for row in found)),
                     percent(sum(row.share for row in found)), slowest.node.label])  # fmt: skip
    return Grid(columns, rows)


def against_grid(report: ProfileReport, groups: Sequence[GroupRow]) -> Grid:
    """Groups of nodes, with the times of both runtimes."""
    op = op_names(report.profile.model.nodes)
    columns = [Column("#", right=True), Column("node", shrink=2), Column("op", shrink=1), Column("qrun", right=True),
               Column("ort", right=True), Column("ort/qrun", right=True)]  # fmt: skip
    columns += [Column("roof", right=True, optional=1)] if report.machine else []
    columns += [Column("ort's roof", right=True, optional=3)] if report.machine else []
    columns += [Column("in onnxruntime", shrink=1, optional=2)]
    return Grid(columns, [_against_row(report, group, op) for group in groups])


def paired_grid(report: ProfileReport) -> Grid:
    """By operator, with the times and roofs of both runtimes."""
    columns = [Column("op", shrink=1), Column("groups", right=True), Column("nodes", right=True, optional=4),
               Column("qrun", right=True), Column("ort", right=True), Column("ort/qrun", right=True)]  # fmt: skip
    columns += [Column("roof", right=True, optional=1)] if report.machine else []
    columns += [Column("ort's roof", right=True, optional=3)] if report.machine else []
    columns += [Column("in onnxruntime", shrink=1, optional=2)]
    return Grid(columns, [_paired_row(report, row) for row in report.paired[: report.top]])


def _paired_row(report: ProfileReport, row: PairedRow) -> list[str]:
    mine = [node for group in row.groups for node in group.mine]
    others = [node for group in row.groups for node in group.others]
    return [
        row.op, str(len(row.groups)), str(row.nodes),
        *(duration(time) if time else "-" for time in (row.median, row.other)),
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        *([_share_text(GroupRow.roof(rows)) for rows in (mine, others)] if report.machine else []),
        ", ".join(f"{name} {count}" for name, count in Counter(map(ran_by, others)).items()) or "-",
    ]  # fmt: skip


def _against_row(report: ProfileReport, group: GroupRow, op: Callable[..., str]) -> list[str]:
    node = group.node
    others = len(group.extent.nodes) - 1
    name = node.label if node is not None and group.extent.nodes else f"{node.label if node else ''} {INSERTED}"
    roofs = [_share_text(group.roof(rows)) for rows in (group.mine, group.others)]
    return [
        str(node.index) if node is not None and group.extent.nodes else "-",
        name,
        (op(node) if node is not None else "") + (f" +{others}" if others > 0 else ""),
        *("-" if t is None else duration(t) for t in (group.median, group.other)),
        "-" if group.ratio is None else f"{group.ratio:.2f}",
        *(roofs if report.machine else []),
        " + ".join(ran_by(row) for row in group.others) or "-",
    ]
