"""Adds up the observations that kernels made during a run, per node and parameter; and computes inner tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from qrun.checking.rules._rule import at
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node, once_per_model
from qrun.ops import find

if TYPE_CHECKING:
    from qrun.running.session import NodeEvent, RunResult, Session


@frozen
class Seen:
    """The observations of one kind at one parameter of a node.

    count, total: affected elements, and all elements; first: index of the first, if one kernel call saw all of them.
    """

    node: Node
    param: str
    count: int
    total: int
    first: tuple[int, ...]
    detail: str

    @property
    def where(self) -> dict[str, Any]:
        """The Finding fields that locate the observation."""
        return {**at(self.node), "tensor": param_input(self.node, self.param)[1]}

    @property
    def share(self) -> str:
        """Count and place: ``37 of 150528 elements, first at [0,0,12,201]``."""
        place = f", first at [{','.join(map(str, self.first))}]" if self.first else ""
        return f"{self.count} of {self.total} elements{place}"


def observations(model: Model, result: RunResult, *kinds: str) -> Iterator[Seen]:
    """Yield the observations of these kinds, one per node and parameter, in graph order."""
    for event in result.events:
        if not event.observations:
            continue
        for param, found in grouped((o.param, o) for o in event.observations if o.kind in kinds).items():
            node = _file_node(model, event)
            size, rank = _extent(event, node, param)
            total = max(sum(o.total for o in found), size)
            whole = len(found) == 1 and found[0].total == total and rank in (len(found[0].first), -1)
            first = found[0].first if whole else ()
            yield Seen(node, param, sum(o.count for o in found), total, first, found[0].detail)


def tensors(model: Model, feeds: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
    """Run the model and return these tensors of the main graph; empty if the model cannot be run."""
    inside = [name for name in dict.fromkeys(names) if name not in feeds]
    try:
        made = _session(model).values(feeds, inside) if inside else {}
    except QrunError:
        return {}
    return {name: feeds[name] if name in feeds else made[name] for name in names}


@once_per_model
def _session(model: Model) -> Session:
    """The session that all rules share for a model."""
    from qrun.running.session import Session

    return Session(model)


def _file_node(model: Model, event: NodeEvent) -> Node:
    """The file's node of an event, unless another operator ran in its place: then that operator."""
    if event.node is None or (event.index < len(model.nodes) and model.nodes[event.index].op == event.node.op):
        return model.nodes[event.index]
    return event.node


def observations_at_good_scales(model: Model, result: RunResult, kind: str) -> Iterator[Seen]:
    """Yield observations of this kind as `observations` does, except at nodes with an observed bad scale."""
    bad = {event.index for event in result.events for o in event.observations if o.kind == "bad-scale"}
    return (found for found in observations(model, result, kind) if found.node.index not in bad)


def param_input(node: Node, param: str) -> tuple[str, str]:
    """The tensor of an input or output parameter, and its description: ``("a", "a (input 0, x)")``."""
    definition = find(node.domain, node.op_type, node.version)
    names = [definition.param(place) for place in range(len(node.inputs))] if definition else []
    if param in names:
        place = names.index(param)
        return node.inputs[place], f"{node.inputs[place]} (input {place}, {param})"
    name = node.outputs[0] if node.outputs else ""
    return name, f"{name} (output)"


def _extent(event: NodeEvent, node: Node, param: str) -> tuple[int, int]:
    """The size and rank of a parameter's tensor; (0, -1) if the event does not have it."""
    tensor, _ = param_input(node, param)
    sizes = [(prod(t.shape), len(t.shape)) for t in (*event.inputs, *event.outputs) if t.name == tensor]
    return sizes[0] if sizes else (0, -1)
