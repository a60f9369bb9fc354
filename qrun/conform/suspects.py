"""Turns a differing output of a case into suspects: what may have computed it in another way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from qrun.comparing.causes import Suspect
from qrun.comparing.causes._cause import compute_node
from qrun.comparing.emulated import NodeGroup
from qrun.comparing.sides import Unit
from qrun.conform.suite import Case
from qrun.ir import Array, Model, Node


def node_suspect(case: Case, model: Model, name: str, got: Array | None) -> Suspect | None:
    """The node that makes an output as a suspect, with all its inputs, which qrun computes in a graph of several nodes;
    None if it cannot."""
    values = {**model.constants, **case.inputs}
    for node in model.nodes:
        if name in node.outputs:
            return _of_node(case, model, node, values, name, got)
        made = compute_node(node, [values[each] if each else None for each in node.inputs])
        if made is None:
            return None
        values.update(zip(node.outputs, made, strict=False))
    return None


def _of_node(
    case: Case, model: Model, node: Node, values: Mapping[str, Array], name: str, got: Array | None
) -> Suspect:
    """A node as a suspect, with the case's own real values where qrun has no formula."""
    suspect, exact = Suspect(model, Unit(node, (node,)), name, values, case.expected[name], got), case.exact.get(name)
    return suspect if exact is None else replace(suspect, fused=lambda: exact + suspect.zero)


def graph_suspects(case: Case, model: Model, name: str, got: Array | None) -> Iterator[tuple[str, Suspect]]:
    """Yield the suspects of a graph of several nodes as a whole, each with words that describe it: the integer operator
    that the nodes fuse into, and the nodes in the forms in which a runtime may run them."""
    nodes = _needed(model, name)
    if len(nodes) < 2:
        return
    unit = Unit(nodes[-1], nodes, (name,))
    group = NodeGroup(model, unit, name, case.inputs)
    fused = group.fused_node(got)
    if fused is not None:
        yield f"runs the nodes as one {fused.node.op_type}: ", fused
    forms, fusing = group.forms(), partial(group.fused_node, got)
    mine, real = case.expected[name], group.before_rounding
    yield "", Suspect(model, unit, name, case.inputs, mine, got, forms=forms, fused=real, fusing=fusing)


def _needed(model: Model, name: str) -> tuple[Node, ...]:
    """The nodes from which an output is computed, in order."""
    wanted = {name}
    found: list[Node] = []
    for node in reversed(model.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(filter(None, node.inputs))
            found.append(node)
    return tuple(reversed(found))
