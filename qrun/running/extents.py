"""Aligns two runs of a model that fuse its nodes differently: the smallest groups that both ran whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.ir import Model
from qrun.running.events import NodeEvent


@frozen
class Extent:
    """Nodes of the model that both runs executed as a whole, and their events; each node of the model is in one extent.

    nodes:  indices of the model's nodes; none for a node that one of the runs inserted.
    first, second: places in the two sequences of events. Both empty: nodes that were folded before the run.
    """

    nodes: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]


def common_extents(model: Model, first: Sequence[NodeEvent], second: Sequence[NodeEvent]) -> list[Extent]:
    """The events of two runs, joined where they cover the same nodes, in graph order.

    Events belong together if they share a node, except one that only quantizes or dequantizes: such a node may go with
    each of its readers. An event that covers only such nodes joins the only event of the other side that has the node.
    """
    sides = (first, second)
    parts = [(side, position) for side, events in enumerate(sides) for position in range(len(events))]
    joined = {part: part for part in parts}

    def root(part: tuple[int, int]) -> tuple[int, int]:
        while joined[part] != part:
            part = joined[part]
        return part

    having = grouped((index, (side, position)) for side, position in parts for index in sides[side][position].group)
    for index, found in having.items():
        for one, other in zip(found, found[1:], strict=False):
            if not _converts(model, index):
                joined[root(other)] = root(one)
        for part in found:
            elsewhere = [other for other in found if other[0] != part[0]]
            if len(elsewhere) == 1 and all(_converts(model, i) for i in sides[part[0]][part[1]].group):
                joined[root(part)] = root(elsewhere[0])
    return _extents(model, parts, {part: root(part) for part in parts}, having)


def _extents(
    model: Model,
    parts: Sequence[tuple[int, int]],
    roots: Mapping[tuple[int, int], tuple[int, int]],
    having: Mapping[int, Sequence[tuple[int, int]]],
) -> list[Extent]:
    """Join parts of the graph by their roots: the nodes of each connected piece."""
    members = grouped((roots[part], part) for part in parts)
    nodes: dict[tuple[int, int], list[int]] = {root: [] for root in members}
    folded = []
    for node in model.nodes:
        if node.index in having:
            nodes[roots[having[node.index][0]]].append(node.index)
        else:
            folded.append(node.index)
    made = [
        Extent(tuple(nodes[root]), *(tuple(index for s, index in group if s == side) for side in (0, 1)))
        for root, group in members.items()
    ]
    made.sort(key=lambda extent: max(extent.nodes, default=len(model.nodes)))
    return [*made, Extent(tuple(folded), (), ())] if folded else made


def _converts(model: Model, index: int) -> bool:
    """Whether a node is a QuantizeLinear or a DequantizeLinear."""
    return model.nodes[index].op_type in ("QuantizeLinear", "DequantizeLinear")
