"""The records of a profile's JSON document, for each node, each operator and each group of nodes; and their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from qrun.comparing.saved import Change, change
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.documents.answers import GroupTimes, OperatorTimes, PairedTimes, ProfileNode
from qrun.io.inputs import Feeds
from qrun.ir import Array, Model
from qrun.memory import human
from qrun.ops import find
from qrun.report.grid import Column, Grid
from qrun.report.nodes import fused_text, outputs, ran, ran_fields, step_names
from qrun.report.screen import NAME
from qrun.report.text import duration, percent, ratio_text
from qrun.running.cpus import usable_cpus
from qrun.running.extents import Extent, common_extents
from qrun.running.machine import Kind, Machine, Roof, this_machine
from qrun.running.profiling import Profile, Summary, summary
from qrun.running.session import NodeEvent

CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


@frozen(slots=False)
class ProfileReport:
    """Everything that a report of a profile shows.

    load_ns: time to read the file and prepare the backend, 0 if unknown. label: another runtime, "" for qrun.
    top:     rows to print, None for all in graph order; by: node or op.
    machine: the machine that gives the roof, None if unknown.
    threads: the number given to the backend, None if it chose itself.
    against: the profile of another runtime, `other`, whose runs were interleaved with these.
    """

    profile: Profile
    feeds: Feeds
    load_ns: int
    backend: str
    arith: str
    label: str = ""
    by: str = "node"
    top: int | None = 10
    machine: Machine | None = None
    threads: int | None = None
    against: Profile | None = None
    other: str = ""

    @cached_property
    def rows(self) -> list[ProfileNode]:
        """One row per node that ran, in graph order."""
        return node_rows(self.profile, self.machine)

    @cached_property
    def slowest(self) -> list[ProfileNode]:
        """The rows to print."""
        return self.rows if self.top is None else sorted(self.rows, key=lambda row: -row.median_ns)[: self.top]

    @cached_property
    def operators(self) -> list[OperatorTimes]:
        """One row per operator, the slowest first."""
        return operator_rows(self.rows)

    @cached_property
    def other_rows(self) -> list[ProfileNode]:
        """One row per node that the other runtime ran."""
        return node_rows(self.against, self.machine) if self.against else []

    @cached_property
    def arithmetics(self) -> Mapping[str, Counter[str]]:
        """By operator of a QDQ model, how many nodes the other runtime computed in integers, and in float."""
        found: dict[str, Counter[str]] = {}
        if not self.profile.model.op_types.isdisjoint(CONVERSIONS):
            for row in self.other_rows:
                if row.arithmetic and not row.inserted:
                    found.setdefault(row.qualified, Counter())[row.arithmetic] += 1
        return found

    @cached_property
    def groups(self) -> list[GroupTimes]:
        """One row per group of nodes that both runtimes ran as a whole, in graph order."""
        if self.against is None:
            return []
        extents = common_extents(self.profile.model, self.profile.last.events, self.against.last.events)
        return [_group(extent, self.rows, self.other_rows) for extent in extents]

    @cached_property
    def ran(self) -> list[GroupTimes]:
        """The groups for which either runtime ran anything."""
        return [group for group in self.groups if not group.folded]

    @cached_property
    def paired(self) -> list[PairedTimes]:
        """One row per operator of the groups, the one with the most time in either runtime first."""
        rows = (_pair(op, groups) for op, groups in grouped((group.op, group) for group in self.ran).items())
        return sorted(rows, key=lambda row: -max(row.median_ms, row.other_ms))

    @cached_property
    def against_change(self) -> Change | None:
        """The change of whole runs from the other runtime to this one; None without another one."""
        if self.against is None:
            return None
        before, after = (tuple(ns / 1e6 for ns in p.run_ns) for p in (self.against, self.profile))
        return change(before, after)


def statistics(s: Summary) -> dict[str, float | None]:
    """The statistics of samples, in ms."""
    return {
        "median_ms": s.median / 1e6,
        "min_ms": s.low / 1e6,
        "p90_ms": s.p90 / 1e6,
        "max_ms": s.high / 1e6,
        "mean_ms": s.mean / 1e6,
        "sd_ms": None if s.deviation is None else s.deviation / 1e6,
    }


def node_rows(profile: Profile, machine: Machine | None) -> list[ProfileNode]:
    if not profile.node_ns.size:
        return []
    total = float(profile.medians.sum()) or 1.0
    timed = zip(profile.last.events, profile.node_ns, strict=True)
    return [_node(profile.model, event, samples, total, machine) for event, samples in timed]


def _node(model: Model, event: NodeEvent, samples: Array, total: float, machine: Machine | None) -> ProfileNode:
    times, roof = summary(samples), _roof(machine, event) if machine else None
    reached = roof.ns / times.median if roof and times.median else None
    other = event.node.op if event.backend == "ort" and event.node is not None else ""
    fields: dict[str, Any] = {**ran_fields(model, event), **statistics(times)}
    return ProfileNode(
        **fields,
        inserted=not event.group and event.backend == "ort",
        ran_by=other or ran(model, event).kernel,
        share=times.median / total,
        macs=event.macs,
        gmacs=_speed(event.macs, times.median),
        bytes=bytes_moved(event),
        roof_share=reached,
        bound=roof.bound if roof and reached is not None else None,
        samples_ms=tuple(t / 1e6 for t in samples.tolist()),
        outputs=outputs(event),
        step=event.step,
        arithmetic=_arithmetic(event),
        median_ns=times.median,
        roof_ns=roof.ns if roof else None,
    )


def _arithmetic(event: NodeEvent) -> str:
    """``integer`` if onnxruntime's node computes on quantized values, ``float`` or "" if not."""
    if event.backend != "ort" or event.node is None or not event.inputs:
        return ""
    from qrun.peers.ortnodes import computes_on_codes

    kinds = [tensor.dtype for tensor in event.inputs]
    if computes_on_codes(event.node.op_type, [kind.kind in "iu" and kind.itemsize <= 2 for kind in kinds]):
        return "integer"
    return "float" if any(kind.kind == "f" for kind in kinds) and event.node.op_type not in CONVERSIONS else ""


def bytes_moved(event: NodeEvent) -> int:
    """Bytes of a node's inputs (weights included, each once) and of its outputs. A node that only moves elements, such
    as a Gather of rows of a table, reads no more of its first input than it writes."""
    tensors = {tensor.name or str(at): tensor for at, tensor in enumerate((*event.inputs, *event.outputs))}
    node, unread = event.node, 0
    definition = find(node.domain, node.op_type, node.version) if node is not None else None
    if definition is not None and definition.form == "moves" and event.inputs:
        unread = max(event.inputs[0].nbytes - sum(tensor.nbytes for tensor in event.outputs), 0)
    return sum(tensor.nbytes for tensor in tensors.values()) - unread


def _speed(macs: int, median: float) -> float | None:
    return macs / median if macs and median else None


def machine_for(profile: Profile, threads: int | None, cache: bool = True) -> Machine | None:
    """What this machine can do; None if there are no nodes. It is measured again if a node is above the roof.

    threads: of the backend, None for as many as there are CPUs; more add nothing, and take very long to measure because
    they wait for each other. cache: keep the measurement beside the compiled kernels.
    """

    if not profile.node_ns.size:
        return None
    cpus = usable_cpus()
    given = (cache, min(threads or cpus, cpus))
    found = this_machine(*given)
    return this_machine(*given, known=found) if above_roof(node_rows(profile, found)) else found


def above_roof(rows: Iterable[ProfileNode], times: float = 1.0) -> list[ProfileNode]:
    """The nodes that are faster than `times` the roof."""
    return [row for row in rows if row.roof_share is not None and row.roof_share > times]


def _roof(machine: Machine, event: NodeEvent) -> Roof | None:
    """The roof of a node that computes in 8-bit integers or float32; for nodes without MACs, the memory's."""
    kinds: dict[str, Kind] = {"float32": "float32", "uint8": "int8", "int8": "int8"}
    kind = kinds.get(event.inputs[0].dtype.name) if event.inputs else None
    if event.node is not None and event.node.op in _QUANTIZING:
        kind = "int8"
    if kind is None and event.macs:
        return None
    return machine.roof(event.macs, bytes_moved(event), kind or "int8")


_QUANTIZING = {"com.microsoft::DynamicQuantizeLSTM", "com.microsoft::DynamicQuantizeMatMul"}
"""Operators that quantize their float input, then multiply 8-bit integers."""


def total_time(rows: Iterable[ProfileNode]) -> float:
    """The time of these nodes together, ns."""
    return sum(row.median_ns for row in rows)


def roof_share(rows: Sequence[ProfileNode]) -> float | None:
    """The share of the roof that these nodes reach together; None if one of them has no known roof."""
    median, known = total_time(rows), [row.roof_ns for row in rows if row.roof_ns is not None and row.median_ns]
    return sum(known) / median if median and known and all(row.roof_ns is not None for row in rows) else None


def operator_rows(rows: Iterable[ProfileNode]) -> list[OperatorTimes]:
    """One row per operator, the slowest first."""
    found = grouped((row.qualified, row) for row in rows)
    return sorted((_operator(op, rows) for op, rows in found.items()), key=lambda row: -row.median_ms)


def _operator(op: str, rows: Sequence[ProfileNode]) -> OperatorTimes:
    median, macs = total_time(rows), sum(row.macs for row in rows)
    kernels = Counter(row.backend if row.backend == "ort" else row.ran_by for row in rows)
    return OperatorTimes(
        op,
        len(rows),
        median / 1e6,
        sum(row.share for row in rows),
        macs,
        _speed(macs, median),
        roof_share(rows) or None,
        kernels,
    )


def _group(extent: Extent, mine: Sequence[ProfileNode], others: Sequence[ProfileNode]) -> GroupTimes:
    left, right = tuple(mine[at] for at in extent.first), tuple(others[at] for at in extent.second)
    top = max(left or right, key=lambda row: (row.macs, row.median_ns), default=None)
    a, b = (total_time(rows) if rows else None for rows in (left, right))
    return GroupTimes(
        tuple(extent.nodes),
        top.name if top else "",
        top.qualified if top else "",
        top is None,
        None if a is None else a / 1e6,
        None if b is None else b / 1e6,
        b / a if a and b else None,
        tuple(extent.first),
        tuple(extent.second),
        left,
        right,
        top,
    )


def _pair(op: str, groups: Sequence[GroupTimes]) -> PairedTimes:
    mine, others = tuple(n for g in groups for n in g.mine), tuple(n for g in groups for n in g.others)
    a, b, nodes = total_time(mine), total_time(others), sum(len(g.nodes) for g in groups)
    return PairedTimes(op, len(groups), nodes, a / 1e6, b / 1e6, b / a if a and b else None, mine, others)


def fallback_reasons(rows: Iterable[ProfileNode]) -> list[tuple[str, list[ProfileNode]]]:
    """The reasons why nodes that took time did not run natively, the costliest reason first."""
    found = grouped((row.why, row) for row in rows if row.why and row.median_ns)
    return sorted(found.items(), key=lambda item: -total_time(item[1]))


INSERTED = "(inserted)"


def whole_grid(report: ProfileReport, sign: str) -> Grid:
    """The whole model's times; two rows if another runtime was measured too. sign: the plus-minus sign."""
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


def node_grid(
    shown: Sequence[ProfileNode], rows: Sequence[ProfileNode], op: Callable[[ProfileNode], str], roofs: bool
) -> Grid:
    """The table of the nodes `shown`. rows: all nodes of the profile, to name those of a fused step; op: the text of a
    node's operator; roofs: whether it has the column roof."""
    running, named = 0.0, step_names((n.index, n.label) for n in rows)

    def total(row: ProfileNode) -> str:
        nonlocal running
        running += row.share
        return percent(running)

    columns = [
        Column("#", right=True, cell=lambda n: "-" if n.inserted else str(n.index)),
        Column(
            "node", style=NAME, shrink=2, cell=lambda n: f"{n.label} {INSERTED}" if n.inserted else named(n, n.label)
        ),
        Column("op", shrink=1, cell=lambda n: fused_text(n, op(n))),
        Column("median", right=True, cell=lambda n: duration(n.median_ns)),
        Column("p90", right=True, optional=4, cell=lambda n: "-" if n.p90_ms is None else duration(n.p90_ms * 1e6)),
        Column("share", right=True, cell=lambda n: percent(n.share)),
        Column("sum", right=True, optional=1, cell=total),
        Column("GMAC/s", right=True, optional=3, cell=_gmacs),
        Column("roof", right=True, optional=2, cell=lambda n: _roof_text([n])) if roofs else None,
        Column("ran by", shrink=1, optional=5, cell=lambda n: n.ran_by),
        Column("moved", right=True, optional=6, cell=lambda n: human(n.bytes)),
        Column("output", optional=7, cell=lambda n: n.output_text),
    ]
    return Grid.of(columns, shown)


def _gmacs(row: ProfileNode | OperatorTimes) -> str:
    return "-" if row.gmacs is None else f"{row.gmacs:.1f}"


def _roof_text(rows: Sequence[ProfileNode]) -> str:
    """``62 % compute``: the share of the roof that all reach, and what bounds the node that takes longest."""
    share, known = roof_share(rows), [row for row in rows if row.bound]
    return (
        "-" if share is None or not known else f"{percent(share, 0)} {max(known, key=lambda row: row.median_ns).bound}"
    )


def operator_grid(
    kinds: Sequence[OperatorTimes],
    roofs: bool,
    draw: Callable[[float], str] | None = None,
    top: int | None = None,
    kernels: bool = False,
) -> Grid:
    """The table of operators. draw: makes a bar from a share, None: no bars; top: rows, None: all; kernels: show
    them."""
    shown = kinds if top is None or len(kinds) <= top + 1 else kinds[:top]
    if rest := kinds[len(shown) :]:
        sums = (sum(k.nodes for k in rest), sum(k.median_ms for k in rest), sum(k.share for k in rest))
        shown = [*shown, OperatorTimes(f"{len(rest)} others", *sums, 0, None, None, {})]

    def roof(row: OperatorTimes) -> str:
        return "-" if row.roof_share is None else percent(row.roof_share, 0)

    columns = [
        Column("op", shrink=1, cell=lambda k: k.op),
        Column("nodes", right=True, cell=lambda k: str(k.nodes)),
        Column("median", right=True, cell=lambda k: duration(k.median_ms * 1e6)),
        Column("share", right=True, cell=lambda k: percent(k.share)),
        Column("GMAC/s", right=True, optional=3, cell=_gmacs),
        Column("roof", right=True, optional=2, cell=roof) if roofs else None,
        Column("ran by", optional=4, cell=lambda k: _count_text(k.ran_by, len(k.ran_by) > 1)) if kernels else None,
        Column("", optional=1, cell=lambda k: draw(k.share)) if draw else None,
    ]
    return Grid.of(columns, shown)


def _count_text(kernels: Any, numbers: bool = True) -> str:
    return ", ".join(f"{kernel} {count}" if numbers else kernel for kernel, count in kernels.items())


def fallback_grid(rows: Sequence[ProfileNode]) -> Grid:
    """The reasons why nodes did not run natively, with their cost; no rows if all ran natively."""
    columns = [
        Column("not native, because", wrap=True, below=True, cell=lambda found: found[0]),
        Column("nodes", right=True, cell=lambda found: str(len(found[1]))),
        Column("median", right=True, cell=lambda found: duration(total_time(found[1]))),
        Column("share", right=True, cell=lambda found: percent(sum(row.share for row in found[1]))),
        Column(
            "such as",
            style=NAME,
            shrink=1,
            optional=1,
            cell=lambda found: max(found[1], key=lambda row: row.median_ns).label,
        ),
    ]
    return Grid.of(columns, fallback_reasons(rows))


def _both(ran_by: Column, roofs: bool, arithmetic: bool) -> list[Column | None]:
    """The columns for groups and operators that two runtimes ran."""
    both = [
        Column("roof", right=True, optional=1, cell=lambda row: _roof_text(row.mine)),
        Column("ort's roof", right=True, optional=3, cell=lambda row: _roof_text(row.others)),
    ]
    return [
        Column("qrun", right=True, cell=lambda row: _time(row.mine)),
        Column("ort", right=True, cell=lambda row: _time(row.others)),
        Column("ort/qrun", right=True, cell=lambda row: "-" if row.ratio is None else ratio_text(row.ratio)),
        *(both if roofs else []),
        Column("ort in", optional=4, cell=_arithmetic_text) if arithmetic else None,
        replace(ran_by, header="in onnxruntime", shrink=1, optional=2),
    ]


def _arithmetic_text(row: GroupTimes | PairedTimes) -> str:
    """``integer``, ``float``, or the number of nodes of each."""
    kinds = Counter(node.arithmetic for node in row.others if node.arithmetic)
    return _count_text(kinds, len(kinds) > 1) or "-"


def _time(rows: Sequence[ProfileNode]) -> str:
    return duration(total_time(rows)) if rows else "-"


def against_grid(groups: Sequence[GroupTimes], op: Callable[[ProfileNode], str], roofs: bool, arithmetic: bool) -> Grid:
    """Groups of nodes with the times of both runtimes. arithmetic: show if the other one used integers."""

    def place(group: GroupTimes) -> str:
        return str(group.heaviest.index) if group.heaviest and group.nodes else "-"

    def name(group: GroupTimes) -> str:
        return f"{group.heaviest.label if group.heaviest else ''}{'' if group.nodes else f' {INSERTED}'}"

    def kind(group: GroupTimes) -> str:
        others = len(group.nodes) - 1
        return (op(group.heaviest) if group.heaviest else "") + (f" +{others}" if others > 0 else "")

    columns = [
        Column("#", right=True, cell=place),
        Column("node", style=NAME, shrink=1, cell=name),
        Column("op", shrink=1, cell=kind),
        *_both(Column("", cell=lambda group: " + ".join(row.ran_by for row in group.others) or "-"), roofs, arithmetic),
    ]
    return Grid.of(columns, groups)


def paired_grid(report: ProfileReport) -> Grid:
    """Operators with the times and roofs of both runtimes."""

    def ran_by(row: PairedTimes) -> str:
        return _count_text(Counter(node.ran_by for node in row.others)) or "-"

    columns = [
        Column("op", shrink=1, cell=lambda row: row.op),
        Column("groups", right=True, cell=lambda row: str(row.groups)),
        Column("nodes", right=True, optional=4, cell=lambda row: str(row.nodes)),
        *_both(Column("", cell=ran_by), report.machine is not None, bool(report.arithmetics)),
    ]
    return Grid.of(columns, report.paired[: report.top])
