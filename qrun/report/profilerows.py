"""What a profile says about each node, each operator and each group of nodes, as the records of its JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from qrun.comparing.saved import Change, change
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.documents.answers import GroupTimes, OperatorTimes, PairedTimes, ProfileNode
from qrun.io.inputs import Feeds
from qrun.ir import Array, Model
from qrun.ops import find
from qrun.report.nodes import outputs, ran, ran_fields
from qrun.running.extents import Extent, common_extents
from qrun.running.machine import Kind, Machine, Roof
from qrun.running.profiling import Profile, Summary, summary
from qrun.running.session import NodeEvent

CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


@frozen(slots=False)
class ProfileReport:
    """Everything that a report of a profile shows.

    load_ns: reading the file and preparing the backend, 0 if it is not known. label: another runtime, "" for qrun.
    top:     rows to print, None for all in graph order; by: node or op.
    machine: what its roof is judged by, None if that is not known.
    threads: that the backend was given, None if it chose itself.
    against: the profile of another runtime, `other`, measured in turn with this one.
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
        """A row per node that ran, in graph order."""
        return node_rows(self.profile, self.machine)

    @cached_property
    def slowest(self) -> list[ProfileNode]:
        """The rows to print."""
        return self.rows if self.top is None else sorted(self.rows, key=lambda row: -row.median_ns)[: self.top]

    @cached_property
    def operators(self) -> list[OperatorTimes]:
        """A row per operator, the slowest first."""
        found = grouped((row.qualified, row) for row in self.rows)
        return sorted((_operator(op, rows) for op, rows in found.items()), key=lambda row: -row.median_ms)

    @cached_property
    def other_rows(self) -> list[ProfileNode]:
        """A row per node that the other runtime ran."""
        return node_rows(self.against, self.machine) if self.against else []

    @cached_property
    def arithmetics(self) -> Mapping[str, Counter[str]]:
        """By operator of a QDQ model, how many nodes the other runtime computed on quantized values, and in float."""
        found: dict[str, Counter[str]] = {}
        if not self.profile.model.op_types.isdisjoint(CONVERSIONS):
            for row in self.other_rows:
                if row.arithmetic and not row.inserted:
                    found.setdefault(row.qualified, Counter())[row.arithmetic] += 1
        return found

    @cached_property
    def groups(self) -> list[GroupTimes]:
        """A row per group of nodes that both runtimes ran as a whole, in graph order."""
        if self.against is None:
            return []
        extents = common_extents(self.profile.model, self.profile.last.events, self.against.last.events)
        return [_group(extent, self.rows, self.other_rows) for extent in extents]

    @cached_property
    def ran(self) -> list[GroupTimes]:
        """The groups that either of them ran anything for."""
        return [group for group in self.groups if not group.folded]

    @cached_property
    def paired(self) -> list[PairedTimes]:
        """A row per operator of the groups, that with the most time in either runtime first."""
        rows = (_paired(op, groups) for op, groups in grouped((group.op, group) for group in self.ran).items())
        return sorted(rows, key=lambda row: -max(row.median_ms, row.other_ms))

    @cached_property
    def against_change(self) -> Change | None:
        """Of whole runs, from the other runtime to this one; None without another one."""
        if self.against is None:
            return None
        before, after = (tuple(ns / 1e6 for ns in p.run_ns) for p in (self.against, self.profile))
        return change(before, after)


def statistics(s: Summary) -> dict[str, float | None]:
    """Of samples, in ms."""
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
    """Whether onnxruntime's node computes on quantized values, as a word."""
    if event.backend != "ort" or event.node is None or not event.inputs:
        return ""
    from qrun.peers.ortnodes import computes_on_codes

    kinds = [tensor.dtype for tensor in event.inputs]
    if computes_on_codes(event.node.op_type, [kind.kind in "iu" and kind.itemsize <= 2 for kind in kinds]):
        return "integer"
    return "float" if any(kind.kind == "f" for kind in kinds) and event.node.op_type not in CONVERSIONS else ""


def bytes_moved(event: NodeEvent) -> int:
    """Bytes of a node's inputs, each once and weights among them, and of its outputs. A node that only moves elements,
    as Gather takes rows of a table, reads no more of its first input than it writes."""
    tensors = {tensor.name or str(at): tensor for at, tensor in enumerate((*event.inputs, *event.outputs))}
    node, unread = event.node, 0
    definition = find(node.domain, node.op_type, node.version) if node is not None else None
    if definition is not None and definition.form == "moves" and event.inputs:
        unread = max(event.inputs[0].nbytes - sum(tensor.nbytes for tensor in event.outputs), 0)
    return sum(tensor.nbytes for tensor in tensors.values()) - unread


def _speed(macs: int, median: float) -> float | None:
    return macs / median if macs and median else None


def judged_by(profile: Profile, threads: int | None, cache: bool = True) -> Machine | None:
    """What this machine can do, if there are nodes to judge by it; measured again if one of them can do more.

    threads: of the backend, None for as many as there are CPUs; more add nothing, and take very long to measure because
    they wait for each other. cache: keep what is measured beside the compiled kernels.
    """
    from qrun.running.cpus import usable_cpus
    from qrun.running.machine import this_machine

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
    """The roof of a node that computes in 8-bit integers or float32; of others only that of the memory."""
    kinds: dict[str, Kind] = {"float32": "float32", "uint8": "int8", "int8": "int8"}
    kind = kinds.get(event.inputs[0].dtype.name) if event.inputs else None
    if kind is None and event.macs:
        return None
    return machine.roof(event.macs, bytes_moved(event), kind or "int8")


def spent(rows: Iterable[ProfileNode]) -> float:
    """What the nodes take together, ns."""
    return sum(row.median_ns for row in rows)


def roof_share(rows: Sequence[ProfileNode]) -> float | None:
    """Share of the roof that these nodes reach together; None if that is not known of one."""
    median, known = spent(rows), [row.roof_ns for row in rows if row.roof_ns is not None and row.median_ns]
    return sum(known) / median if median and known and all(row.roof_ns is not None for row in rows) else None


def _operator(op: str, rows: Sequence[ProfileNode]) -> OperatorTimes:
    median, macs = spent(rows), sum(row.macs for row in rows)
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
    a, b = (spent(rows) if rows else None for rows in (left, right))
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


def _paired(op: str, groups: Sequence[GroupTimes]) -> PairedTimes:
    mine, others = tuple(n for g in groups for n in g.mine), tuple(n for g in groups for n in g.others)
    a, b, nodes = spent(mine), spent(others), sum(len(g.nodes) for g in groups)
    return PairedTimes(op, len(groups), nodes, a / 1e6, b / 1e6, b / a if a and b else None, mine, others)


def refused(rows: Iterable[ProfileNode]) -> list[tuple[str, list[ProfileNode]]]:
    """Why nodes that took time did not run natively, the reason that costs most first."""
    found = grouped((row.why, row) for row in rows if row.why and row.median_ns)
    return sorted(found.items(), key=lambda item: -spent(item[1]))
