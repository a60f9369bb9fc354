"""Which nodes of a model an integer engine computes in its own arithmetic, and which stay exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Model, Node
from qrun.ops import Arith, integer_engine, quantizers
from qrun.passes import optimize

if TYPE_CHECKING:
    from qrun.arithmetics import IntegerEngine

_ENDS = ("QuantizeLinear", "DynamicQuantizeLinear")
"""Operators that make codes of floats."""


@frozen
class Coverage:
    """The quantized nodes of a model as an integer engine runs it, with groups fused.

    computed: nodes in the engine's arithmetic. exact: operators of the others, with their numbers. floats: operators of
    nodes beside DequantizeLinear and QuantizeLinear that no integer operator replaces.
    """

    engine: str
    computed: int
    exact: Mapping[str, int]
    floats: Mapping[str, int]

    @property
    def quantized(self) -> int:
        """The number of quantized nodes."""
        return self.computed + sum(self.exact.values())

    def __str__(self) -> str:
        nodes = f"{self.quantized} quantized node{'s' * (self.quantized != 1)}"
        parts = (
            [f"{self.computed} of {nodes} computed in {self.engine}"]
            if self.quantized
            else [f"nothing computed in {self.engine}: no quantized operator"]
        )
        for counts, how in ((self.exact, "computed exactly"), (self.floats, "in float")):
            if counts:
                named = ", ".join(f"{op} ({n})" if n > 1 else op for op, n in sorted(counts.items()))
                parts.append(f"{how}: {named}")
        return "; ".join(parts)


def coverage(model: Model, arith: Arith, fuse: bool = True, keep: frozenset[str] = frozenset()) -> Coverage | None:
    """What an integer engine computes of a model; None for another arithmetic. fuse, keep: as the model runs."""
    engine = integer_engine(arith)
    if engine is None:
        return None
    done = optimize(model, keep, arith, "literal") if fuse else None
    exact, floats, computed = Counter[str](), Counter[str](), 0
    for graph, node in _nodes(done.model if done else model):
        if node.op_type in _ENDS or not (node.op_type in _RULES or any(q.is_output for q in quantizers(node))):
            continue
        if _computes(engine, graph, node):
            computed += 1
        else:
            exact[node.op_type] += 1
    known = {node.index: node for node in model.nodes}
    floats.update(known[refusal.index].op_type for refusal in (done.refused if done else ()))
    return Coverage(arith, computed, dict(exact), dict(floats))


def _nodes(model: Model) -> Iterator[tuple[Model, Node]]:
    """The nodes of a graph and of the graphs inside them, each with its graph."""
    for node in model.nodes:
        yield model, node
        for graph in node.subgraphs:
            yield from _nodes(graph)


def _computes(engine: IntegerEngine, graph: Model, node: Node) -> bool:
    """Whether the engine defines a node's arithmetic."""
    rule = _RULES.get(node.op_type)
    return rule is not None and rule(engine, graph, node)


def _alpha_is_1(engine: IntegerEngine, graph: Model, node: Node) -> bool:
    return node.attributes.get("alpha", 1.0) == 1 and len(node.inputs) == 9 and bool(node.inputs[8])


def _averages(engine: IntegerEngine, graph: Model, node: Node) -> bool:
    """Whether averages are of codes, and X and Y have one scale and zero point."""
    scale, zero, y_scale, y_zero = (graph.constant(n) if n else np.zeros(1) for n in (*node.inputs[1:5], "")[:4])
    known = scale is not None and zero is not None and y_scale is not None and y_zero is not None
    return engine.codes and known and bool(np.all(scale == y_scale) and np.all(zero == y_zero))


_RULES: Mapping[str, Callable[[IntegerEngine, Model, Node], bool]] = {
    "QLinearConv": lambda *_: True,
    "QLinearMatMul": lambda *_: True,
    "QGemm": _alpha_is_1,
    "QLinearAdd": lambda engine, *_: engine.add is not None,
    "QLinearMul": lambda engine, *_: engine.multiply is not None,
    "QLinearConcat": lambda engine, *_: engine.requantize is not None,
    "QLinearAveragePool": _averages,
    "QLinearGlobalAveragePool": _averages,
}
"""When an engine computes a node, by operator."""
