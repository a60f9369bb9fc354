"""Groups of DequantizeLinear, an operator and QuantizeLinear: which of them do not become one integer operator, and why."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

from qrun.errors import QrunError
from qrun.ir import Model, Node
from qrun.passes import optimize

FORMS = ("Conv", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool")
"""Operators that have an integer form, in qrun and in onnxruntime."""
_HOPS = 4
_Refused = tuple[tuple[Node, str], ...]
_latest: list[tuple[ref[Model], _Refused]] = []
"""Of the model asked for last: several rules ask in turn."""


def refused(model: Model) -> _Refused:
    """Nodes of the main graph that read or make quantized tensors, but stay in float, each with the reason."""
    if _latest and _latest[0][0]() is model:
        return _latest[0][1]
    found: _Refused = ()
    if any(_is_dequantize(node) for node in model.nodes) and any(_is_quantize(node) for node in model.nodes):
        try:
            done = optimize(model, frozenset(), "exact").refused
        except (QrunError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
            done = ()  # a model that contradicts itself; other rules say where
        found = tuple((model.nodes[r.index], r.reason) for r in done if r.index < len(model.nodes))
    _latest[:] = [(ref(model), found)]
    return found


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
