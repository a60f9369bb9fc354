"""Groups of DequantizeLinear, an operator and QuantizeLinear: which of them do not become one integer operator, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qrun.checking.rules._scope import Scope, kept, names_read, scopes
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node
from qrun.passes import optimize

FORMS = ("Conv", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool")
"""Operators that have an integer form, in qrun and in onnxruntime."""
_HOPS = 4
_Refused = tuple[tuple[Scope, Node, str], ...]


def refused(model: Model) -> _Refused:
    """Nodes that read or make quantized tensors, but stay in float, each with its graph and the reason.

    The graph of a subgraph holds those constants of the graphs around it that it reads as its own.
    """
    return kept(model, _all_refused)


def _all_refused(model: Model) -> _Refused:
    return tuple(entry for scope in scopes(model) for entry in _refused(scope))


def _refused(scope: Scope) -> Iterator[tuple[Scope, Node, str]]:
    graph = scope.model
    if not any(_is_dequantize(node) for node in graph.nodes) or not any(_is_quantize(node) for node in graph.nodes):
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


def is_quantized(model: Model, node: Node) -> bool:
    """Whether the result goes to QuantizeLinear, at once or through Relu and Clip."""
    return _leads(model, node.outputs, ("Relu", "Clip"), 2)


def meets_quantize(model: Model, node: Node) -> bool:
    """Whether the result goes to QuantizeLinear through a few nodes of any kind."""
    return _leads(model, node.outputs, None, _HOPS)


def dequantized_inputs(model: Model, node: Node) -> int:
    """How many inputs come from DequantizeLinear of a tensor that is not stored."""
    made = [model.producers[name] for name in node.inputs if name in model.producers]
    return sum(_is_dequantize(m) and bool(m.inputs) and m.inputs[0] not in model.constants for m in made)


def _leads(model: Model, names: Sequence[str], through: tuple[str, ...] | None, hops: int) -> bool:
    for _ in range(hops):
        readers = [node for name in names for node in model.consumers.get(name, ())]
        if any(_is_quantize(node) for node in readers):
            return True
        names = [name for node in readers if through is None or node.op_type in through for name in node.outputs]
    return False


def _is_dequantize(node: Node) -> bool:
    return node.op_type == "DequantizeLinear"


def _is_quantize(node: Node) -> bool:
    return node.op_type == "QuantizeLinear"
