"""The order in which the nodes of a graph run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qrun.ir.context import GraphContext, invalid, label
from qrun.ir.messages import AttributeProto

if TYPE_CHECKING:
    import onnx

    from qrun.errors import ModelError

Names = Sequence[tuple[str, ...]]
_SHOWN = 5
"""Nodes of a circle that an error names."""


def execution_order(
    nodes: Sequence[onnx.NodeProto], inputs: Names, outputs: Names, given: set[str], scope: GraphContext
) -> Sequence[int]:
    """Places of the nodes such that every tensor is made before it is read, as near to file order as possible.

    inputs, outputs: names, for each node; given: names of tensors that no node needs to make.
    """
    maker = _makers(nodes, outputs, given, scope)
    before = [_makers_read(place, proto, inputs[place], maker, given, scope) for place, proto in enumerate(nodes)]
    if all(not makers or max(makers) < place for place, makers in enumerate(before)):
        return range(len(before))
    return _sorted(nodes, before, scope)


def _makers(nodes: Sequence[onnx.NodeProto], outputs: Names, given: set[str], scope: GraphContext) -> dict[str, int]:
    """The place of the node that makes each tensor."""
    maker: dict[str, int] = {}
    for place, names in enumerate(outputs):
        for name in names:
            if not name:
                continue
            if name in maker or (name in given and name not in scope):
                raise invalid(scope, f"tensor {name!r} is made twice", name, label(nodes[place], place))
            maker[name] = place
    return maker


def _makers_read(
    place: int,
    proto: onnx.NodeProto,
    inputs: tuple[str, ...],
    maker: dict[str, int],
    given: set[str],
    scope: GraphContext,
) -> tuple[int, ...]:
    """The places of the nodes that make what a node reads, each once."""
    found = []
    for name in inputs if not proto.attribute else dict.fromkeys((*inputs, *_captured(proto))):
        if name in maker:
            found.append(maker[name])
        elif name and name not in given and name not in scope:
            raise invalid(
                scope,
                f"tensor {name!r} is read but never made",
                name,
                label(proto, place),
                facts=[("expected", "a graph input, an initializer or a node's output of that name")],
            )
    return tuple(found if len(found) < 2 else dict.fromkeys(found))


def _sorted(nodes: Sequence[onnx.NodeProto], before: Sequence[tuple[int, ...]], scope: GraphContext) -> list[int]:
    waiting = [len(makers) for makers in before]
    followers: dict[int, list[int]] = {}
    for place, makers in enumerate(before):
        for other in makers:
            followers.setdefault(other, []).append(place)
    ready = [place for place, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for other in followers.get(place, ()):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) < len(waiting):
        raise _circle(nodes, [[maker for maker in makers if waiting[maker]] for makers in before], scope)
    return order


def _circle(nodes: Sequence[onnx.NodeProto], before: Sequence[Sequence[int]], scope: GraphContext) -> ModelError:
    """The error for nodes of which some wait for each other; before: for each, those it waits for."""
    path = [next(place for place, makers in enumerate(before) if makers)]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]][0])
    path = path[path.index(path[-1]) + 1 :]
    place, maker = path[-1], path[0]
    read = {*nodes[place].input, *_captured(nodes[place])}
    name = next(name for name in nodes[maker].output if name in read)
    names = [label(nodes[p], p) for p in path[::-1][:_SHOWN]]
    more = f" and {len(path) - _SHOWN} more" if len(path) > _SHOWN else ""
    return invalid(
        scope,
        "the nodes depend on each other in a circle",
        name,
        label(nodes[place], place),
        facts=[("circle", " to ".join(names) + more)],
    )


def _captured(proto: onnx.NodeProto) -> set[str]:
    """Names that a node's subgraphs take from outside."""
    found: set[str] = set()
    for attribute in proto.attribute:
        for graph in [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs:
            inside = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inside |= {name for inner in graph.node for name in inner.output}
            used = {name for inner in graph.node for name in (*inner.input, *_captured(inner)) if name}
            found |= (used | {v.name for v in graph.output}) - inside
    return found
