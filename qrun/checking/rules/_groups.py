"""Which nodes among quantized tensors stay in float, and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qrun.checking.rules._scope import Scope, names_read, scopes
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node, once_per_model
from qrun.passes import optimize

_Refused = tuple[tuple[Scope, Node, str], ...]


@once_per_model
def refused(model: Model) -> _Refused:
    """Nodes that read or make quantized tensors, but stay in float, each with its graph and the reason.

    The graph of a subgraph holds those constants of the graphs around it that it reads as its own.
    """
    return tuple(entry for scope in scopes(model) for entry in _refused(scope))


def _refused(scope: Scope) -> Iterator[tuple[Scope, Node, str]]:
    graph = scope.model
    if not {"DequantizeLinear", "QuantizeLinear"} <= {node.op_type for node in graph.nodes}:
        return
    if scope.outer is not None:
        graph = replace(graph, constants={**_around(scope.outer, names_read(graph)), **graph.constants})
    try:
        done = optimize(graph, frozenset(), "exact").refused
    except (QrunError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
        return  # a model that contradicts itself; other rules say where
    inside = scope if graph is scope.model else replace(scope, model=graph)
    for refusal in done:
        if refusal.index < len(graph.nodes):
            yield inside, graph.nodes[refusal.index], refusal.reason


def _around(scope: Scope, names: set[str]) -> dict[str, Array]:
    """Those of the names that are constants for a graph inside this one."""
    found = _around(scope.outer, names) if scope.outer else {}
    return found | {name: scope.model.constants[name] for name in names if name in scope.model.constants}


def dequantized_inputs(model: Model, node: Node) -> int:
    """How many inputs come from DequantizeLinear of a tensor that is not stored."""
    made = [model.producers[name] for name in node.inputs if name in model.producers]
    return sum(m.op_type == "DequantizeLinear" and bool(m.inputs) and m.inputs[0] not in model.constants for m in made)
