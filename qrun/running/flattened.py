"""Graphs inside nodes with branches in place of the Ifs whose conditions follow from shapes, for inputs of known shapes.

Exporters write such Ifs where a rank or a size decides what is to be done: they are no choice once shapes are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir import Array, Model, Node
from qrun.ir.schema import OPSETS, version
from qrun.running.derived import TensorLike, derived_values
from qrun.running.dispatch import NativeKernels
from qrun.running.plan import Plan, Step, replanned


@frozen
class Flat:
    """A graph without the Ifs that are decided. natives: its kernels. labels: of the nodes in place of each If, by its label."""

    plan: Plan
    natives: NativeKernels
    labels: Mapping[str, tuple[str, ...]]


Choices = tuple[tuple[int, str], ...]
"""Numbers of Ifs, and the branches that they take."""


def choices(plan: Plan, natives: NativeKernels, infos: Mapping[str, TensorLike], given: Sequence[str]) -> Choices:
    """What Ifs choose whose conditions follow from shapes. infos: types and shapes of all tensors of a run that was given these.

    What a reference kernel makes may have another shape in the next run, so that nothing follows from that.
    """
    if not any(_is_choice(step.node) for step in plan.steps):
        return ()
    model, found = plan.model, list[tuple[int, str]]()
    shapes = derived_values(model, plan.steps, natives.derived, infos, natives.arith)
    certain = {"", *given, *model.constants}
    for step in plan.steps:
        if not certain.issuperset(step.node.inputs):
            continue
        if name := _chosen(step, shapes, model):
            found.append((step.node.index, name))
        elif _is_certain(step, natives, infos, shapes):
            certain.update(step.node.outputs)
    return tuple(found)


def flattened(plan: Plan, natives: NativeKernels, chosen: Choices) -> Flat:
    """The graph with the branches that are chosen in place of their Ifs. natives: of the graph as it is."""
    nodes, constants, labels = list[Node](), dict(plan.model.constants), dict[str, tuple[str, ...]]()
    branches = dict(chosen)
    for step in plan.steps:
        node, name = step.node, branches.get(step.node.index, "")
        made = list(_branch(node, name, step.bodies[name].model, constants)) if name else [node]
        if name:
            labels[node.label] = tuple(inner.label for inner in made)
        nodes += made
    numbered = tuple(replace(node, index=at, name=node.label) for at, node in enumerate(nodes))
    flat = replanned(plan, replace(plan.model, nodes=numbered, constants=constants))
    return Flat(flat, NativeKernels(flat.model, natives.engine, natives.arith), labels)


def _is_choice(node: Node) -> bool:
    return node.op_type == "If" and not node.domain


def _is_certain(
    step: Step, natives: NativeKernels, infos: Mapping[str, TensorLike], shapes: Mapping[str, Array]
) -> bool:
    """Whether the shapes of what the step makes follow from those of what it reads."""
    if step.bodies:
        return False
    bound = natives.bound(step, infos, shapes)
    return natives.derived.issuperset(filter(None, step.node.outputs)) or (
        bound is not None and bound.kernel is not None
    )


def _chosen(step: Step, shapes: Mapping[str, Array], model: Model) -> str:
    """The branch of an If whose condition is known; "" for others."""
    if not _is_choice(step.node):
        return ""
    name = step.node.inputs[0]
    condition = shapes.get(name, model.constant(name))
    if condition is None or condition.dtype != np.bool_ or condition.size != 1:
        return ""
    branch = "then_branch" if condition.reshape(()) else "else_branch"
    graph = step.bodies[branch].model
    fits = not graph.inputs and len(graph.outputs) >= len(step.node.outputs)
    return branch if fits else ""


def _branch(node: Node, name: str, graph: Model, constants: dict[str, Array]) -> Iterator[Node]:
    """The nodes of a branch, in place of its If. constants: gets those of the branch."""
    start = f"{node.label}/{name}/"
    own = dict.fromkeys((*graph.constants, *(made for inner in graph.nodes for made in inner.outputs if made)))
    names = {inner: f"{start}{inner}" for inner in own}
    produced = {made for inner in graph.nodes for made in inner.outputs}
    copies = []
    for stated, output in zip(graph.outputs, node.outputs, strict=False):
        if output and stated.name in produced and names[stated.name].startswith(start):
            names[stated.name] = output
        elif output:
            copies.append((stated.name, output))
    constants.update((names[inner], array) for inner, array in graph.constants.items())
    for inner in graph.nodes:
        yield replace(_renamed(inner, names), name=f"{start}{inner.label}")
    for source, output in copies:
        latest = version("", "Identity", OPSETS[-1])
        yield Node(0, f"{start}{output}", "", "Identity", latest, (names.get(source, source),), (output,))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other names of tensors, also where the graphs inside it take them from outside."""
    attributes: dict[str, Any] = {
        key: _regraphed(value, names) if isinstance(value, Model) else value for key, value in node.attributes.items()
    }
    inputs, outputs = (tuple([names.get(name, name) for name in part]) for part in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs, attributes=attributes)


def _regraphed(graph: Model, names: Mapping[str, str]) -> Model:
    taken = {name: names[name] for name in graph.captured if name in names}
    if not taken:
        return graph
    outputs = tuple(replace(value, name=taken.get(value.name, value.name)) for value in graph.outputs)
    return replace(graph, nodes=tuple(_renamed(node, taken) for node in graph.nodes), outputs=outputs)
