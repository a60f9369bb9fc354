"""Removes what a model does not need: nodes of constants, and what no output reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qrun.declare.stored import constants_of, parts
from qrun.ir import Model, Node
from qrun.passes.fold_constants import fold_constants


def fold(model: Model) -> Model:
    """The model with the results of nodes that read only constants as constants, but for DequantizeLinear, whose result
    takes four times the memory."""
    return fold_constants(_numbered(model, model.nodes), (), "exact", dequantize=False).model


def strip(model: Model) -> Model:
    """The model without nodes and constants that no output needs. Inputs stay."""
    needed = {value.name for value in model.outputs}
    kept = []
    for node in reversed(model.nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(node.inputs, node.captured)
    constants = {name: part for name, part in parts(model.constants).items() if name in needed}
    defaults = tuple(value for value in model.defaults if value.name in needed)
    return replace(_numbered(model, kept[::-1]), constants=constants_of(constants), defaults=defaults)


def _numbered(model: Model, nodes: Sequence[Node]) -> Model:
    """The model with these nodes, numbered by their places."""
    return replace(model, nodes=tuple(replace(node, index=at, name=node.label) for at, node in enumerate(nodes)))
