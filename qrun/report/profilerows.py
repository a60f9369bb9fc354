"""What a profile says about each node, each operator and each group of nodes, as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from qrun.comparing.savedprofiles import Change, change
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.report.nodes import kernel_text, node_of
from qrun.running.extents import Extent, common_extents
from qrun.running.machine import Bound, Kind, Machine, Roof
from qrun.running.profiling import Profile, Summary, summary
from qrun.running.session import NodeEvent


@frozen(slots=False)
class ProfileReport:
    """Everything that a report of a profile shows.

    load_ns: reading the file and preparing the backend. label: another runtime, "" for qrun.
    top:     rows to print, None for all in graph order; by: node or op.
    machine: what its roof is judged by, None if that is not known.
    threads: that the backend was given, None if it chose itself.
    against: the profile of another runtime, `other`, measured in turn with this one.
    """

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
    machine: Machine | None = None
    threads: int | None = None
    against: Profile | None = None
    other: str = ""

    @cached_property
    def rows(self) -> list[NodeRow]:
        """A row per node that ran, in graph order."""
        return node_rows(self.profile, self.machine)

    @cached_property
    def slowest(self) -> list[NodeRow]:
        """The rows to print."""
        if self.top is None:
            return self.rows
        return sorted(self.rows, key=lambda row: -row.times.median)[: self.top]

    @property
    def beside(self) -> list[tuple[str, float]]:
        """What a run takes besides the nodes' medians, ns, in words; with these it adds up to the whole run."""
        if not self.profile.node_ns.size:
            return []
        between = self.profile.between_ns
        above = run_ns(self.profile) - between - float(self.profile.medians.sum())
        return [("between the nodes", between), ("above the nodes' medians", above)]

    @cached_property
    def operators(self) -> list[OperatorRow]:
        """A row per operator, the slowest first."""
        return operator_rows(self.rows)

    @cached_property
    def groups(self) -> list[GroupRow]:
        """A row per group of nodes that both runtimes ran as a whole, in graph order."""
        if self.against is None:
            return []
        return group_rows(self.rows, node_rows(self.against, self.machine), self.profile, self.against)

    @cached_property
    def ran(self) -> list[GroupRow]:
        """The groups that either of them ran anything for."""
        return [group for group in self.groups if group.node is not None]

    @cached_property
    def paired(self) -> list[PairedRow]:
        """A row per operator of the groups, that with the most time in either runtime first."""
        return paired_rows(self.ran)

    @cached_property
    def against_change(self) -> Change | None:
        """Of whole runs, from the other runtime to this one; None without another one."""
        if self.against is None:
            return None
        before, after = (tuple(ns / 1e6 for ns in p.run_ns) for p in (self.against, self.profile))
        return change(before, after)


@frozen
class NodeRow:
    """A node that ran: how long, its share of a run, and of the roof (None if that is not known)."""

    event: NodeEvent
    node: Node
    times: Summary
    samples: Sequence[int]
    share: float
    roof: Roof | None

    @property
    def inserted(self) -> bool:
        """Whether it stands for no node of the model."""
        return not self.event.group and self.event.backend == "ort"

    @property
    def bytes_moved(self) -> int:
        return bytes_moved(self.event)

    @property
    def gmacs(self) -> float | None:
        """10^9 multiply-adds per second; None if it has none."""
        return speed(self.event.macs, self.times.median)

    @property
    def reached(self) -> float | None:
        """Share of the roof."""
        return self.roof.ns / self.times.median if self.roof and self.times.median else None


@frozen
class OperatorRow:
    """All nodes of one operator. ran_by: their kernels and how many ran on each; least_ns: the sum of their roofs."""

    op: str
    nodes: int
    median: float
    share: float
    macs: int
    least_ns: float
    ran_by: Mapping[str, int]

    @property
    def gmacs(self) -> float | None:
        return speed(self.macs, self.median)

    @property
    def reached(self) -> float | None:
        return self.least_ns / self.median if self.median and self.least_ns else None


@frozen
class GroupRow:
    """Nodes that both runtimes ran as a whole: their times, ns; None where a runtime ran nothing for them."""

    extent: Extent
    node: Node | None
    mine: Sequence[NodeRow]
    others: Sequence[NodeRow]

    @property
    def median(self) -> float | None:
        return sum(row.times.median for row in self.mine) if self.mine else None

    @property
    def other(self) -> float | None:
        return sum(row.times.median for row in self.others) if self.others else None

    @staticmethod
    def roof(rows: Sequence[NodeRow]) -> tuple[float, Bound] | None:
        """Share of the roof that these nodes reach together, and what bounds the one that takes longest."""
        median = sum(row.times.median for row in rows)
        roofs = [(row.times.median, row.roof) for row in rows if row.roof and row.times.median]
        if not median or not roofs or any(row.roof is None for row in rows):
            return None
        return sum(roof.ns for _, roof in roofs) / median, max(roofs, key=lambda item: item[0])[1].bound

    @property
    def ratio(self) -> float | None:
        """The other runtime's time by this one's."""
        return self.other / self.median if self.median and self.other else None


@frozen
class PairedRow:
    """The groups whose heaviest node is of one operator: their nodes, and both runtimes' times, ns."""

    op: str
    groups: Sequence[GroupRow]

    @property
    def nodes(self) -> int:
        return sum(len(group.extent.nodes) for group in self.groups)

    @property
    def median(self) -> float:
        return sum(group.median or 0.0 for group in self.groups)

    @property
    def other(self) -> float:
        return sum(group.other or 0.0 for group in self.groups)

    @property
    def ratio(self) -> float | None:
        """The other runtime's time by this one's."""
        return self.other / self.median if self.median and self.other else None


def bytes_moved(event: NodeEvent) -> int:
    """Bytes of a node's inputs, each once and weights among them, and of its outputs."""
    tensors = {tensor.name or str(at): tensor for at, tensor in enumerate((*event.inputs, *event.outputs))}
    return sum(tensor.nbytes for tensor in tensors.values())


def speed(macs: int, median: float) -> float | None:
    return macs / median if macs and median else None


def above_roof(rows: Iterable[NodeRow], times: float = 1.0) -> list[NodeRow]:
    """The nodes that are faster than `times` the roof."""
    return [row for row in rows if row.reached is not None and row.reached > times]


def run_ns(profile: Profile) -> float:
    """The median of the runs that the nodes' times are of, ns; at least what the nodes and the time between add up to."""
    known = float(profile.medians.sum()) + profile.between_ns
    return max(float(np.median(profile.watched_ns or profile.run_ns)), known)


def node_rows(profile: Profile, machine: Machine | None) -> list[NodeRow]:
    if not profile.node_ns.size:
        return []
    total = run_ns(profile) or 1.0
    rows = []
    for event, samples in zip(profile.last.events, profile.node_ns, strict=True):
        times = summary(samples)
        roof = _roof(machine, event) if machine else None
        row = NodeRow(event, node_of(profile.model, event), times, samples.tolist(), times.median / total, roof)
        rows.append(row)
    return rows


def _roof(machine: Machine, event: NodeEvent) -> Roof | None:
    """The roof of a node that computes in 8-bit integers or float32; of others only that of the memory."""
    kinds: dict[np.dtype, Kind] = {
        np.dtype(np.float32): "float32",
        np.dtype(np.uint8): "int8",
        np.dtype(np.int8): "int8",
    }
    kind = kinds.get(event.inputs[0].dtype) if event.inputs else None
    if kind is None and event.macs:
        return None
    return machine.roof(event.macs, bytes_moved(event), kind or "int8")


def operator_rows(rows: Iterable[NodeRow]) -> list[OperatorRow]:
    found: dict[str, list[NodeRow]] = {}
    for row in rows:
        found.setdefault(row.node.op, []).append(row)
    made = [
        OperatorRow(
            op,
            len(mine),
            sum(row.times.median for row in mine),
            sum(row.share for row in mine),
            sum(row.event.macs for row in mine),
            sum(row.roof.ns for row in mine if row.roof and row.times.median) if all(row.roof for row in mine) else 0.0,
            Counter(kernel_text(row.event).partition(":")[0] for row in mine),
        )
        for op, mine in found.items()
    ]
    return sorted(made, key=lambda row: -row.median)


def group_rows(mine: Sequence[NodeRow], others: Sequence[NodeRow], first: Profile, second: Profile) -> list[GroupRow]:
    extents = common_extents(first.model, first.last.events, second.last.events)
    made = []
    for extent in extents:
        left, right = [mine[at] for at in extent.first], [others[at] for at in extent.second]
        heaviest = max([*left] or [*right], key=lambda row: (row.event.macs, row.times.median), default=None)
        node = heaviest.node if heaviest else None
        made.append(GroupRow(extent, node, left, right))
    return made


def paired_rows(groups: Iterable[GroupRow]) -> list[PairedRow]:
    found: dict[str, list[GroupRow]] = {}
    for group in groups:
        if group.node is not None:
            found.setdefault(group.node.op, []).append(group)
    return sorted((PairedRow(*item) for item in found.items()), key=lambda row: -max(row.median, row.other))


def refused(rows: Iterable[NodeRow]) -> list[tuple[str, list[NodeRow]]]:
    """Why nodes that took time did not run natively, the reason that costs most first."""
    found: dict[str, list[NodeRow]] = {}
    for row in rows:
        if row.event.why and row.times.median:
            found.setdefault(row.event.why, []).append(row)
    return sorted(found.items(), key=lambda item: -sum(row.times.median for row in item[1]))
