"""Functions of one tensor of 8-bit codes as tables: the output code of each of the 256 input codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.exporting.context import ExportContext
from qrun.exporting.layer import CodeScale, Layer, LayerTensor, NotExported
from qrun.ir import Array, Model, Node
from qrun.ops import find
from qrun.passes._evaluate import evaluate
from qrun.passes._sides import EIGHT, is_dequantize, is_quantize

_FUNCTIONS = ("QLinearSigmoid", "QLinearLeakyRelu")
"""Operators of com.microsoft that read and write codes: x, its scale and zero point, the scale and zero point of y."""
_LONGEST = 64
"""Nodes of one table."""
_ROOM = 1 << 28


@frozen
class CodeFunction:
    """Nodes that turn each code of one tensor into a code of another, whatever its neighbours are.

    node:  the last operator between the two; its only input is the first tensor and its output the second one.
    nodes: all of them in order. parameters: the names of the scale and the zero point of both tensors.
    """

    node: Node
    nodes: tuple[Node, ...]
    parameters: tuple[tuple[str, str], tuple[str, str]]


class _NoFunction(Exception):
    """Raised where a tensor depends on more than the codes of one other."""


def code_functions(model: Model) -> Mapping[int, CodeFunction]:
    """The functions of a model, by the index of the node that makes the output codes."""
    found = {}
    for node in model.nodes:
        try:
            if node.op_type in _FUNCTIONS:
                found[node.index] = _whole_function(node, model)
            elif is_quantize(node):
                found[node.index] = _chain(node, model)
        except _NoFunction:
            continue
    return found


def _whole_function(node: Node, model: Model) -> CodeFunction:
    """The function of an operator on codes."""
    _check_numbers(node.inputs[1:], model)
    x_scale, x_zero, y_scale, y_zero = (*node.inputs[1:], "")[:4]
    shown = replace(node, name=node.label, inputs=node.inputs[:1])
    return CodeFunction(shown, (node,), ((x_scale, x_zero), (y_scale, y_zero)))


def _chain(last: Node, model: Model) -> CodeFunction:
    """The function that ends in a QuantizeLinear: DequantizeLinear and elementwise operators lead to it."""
    _check_numbers(last.inputs[1:], model)
    inside: dict[int, Node] = {last.index: last}
    _follow(last.inputs[0], model, inside)
    nodes = tuple(inside[index] for index in sorted(inside))
    sources = [node for node in nodes if is_dequantize(node)]
    if len({node.inputs[0] for node in sources}) != 1:
        raise _NoFunction
    operators = [node for node in nodes if node not in sources]
    if len(operators) == 1 and _coding(sources[0], model) == _coding(last, model):
        raise _NoFunction  # the codes stay as they are
    shown = operators[-2] if len(operators) > 1 else last
    root, ends = sources[0], last.outputs[:1]
    shown = replace(shown, index=last.index, name=shown.label, inputs=root.inputs[:1], outputs=ends)
    return CodeFunction(shown, nodes, (_side(root), _side(last)))


def _coding(node: Node, model: Model) -> tuple[float, int, np.dtype]:
    """The scale, the zero point and its type of a QuantizeLinear or DequantizeLinear."""
    of = _code_scale(*_side(node), model.constant)
    return float(of.scale.item()), int(of.zero.item()), of.zero.dtype


def _side(node: Node) -> tuple[str, str]:
    """The names of the scale and the zero point."""
    return node.inputs[1], (*node.inputs, "")[2]


def _follow(name: str, model: Model, inside: dict[int, Node]) -> None:
    """Add the nodes that make a tensor to `inside`."""
    if not name or name in model.constants:
        _check_numbers([name], model)
        return
    node = model.producers.get(name)
    if node is None or len(inside) >= _LONGEST:
        raise _NoFunction
    if node.index in inside:
        return
    inside[node.index] = node
    if is_dequantize(node):
        if node.inputs[0] in model.constants:
            raise _NoFunction
        _check_numbers(node.inputs[1:], model)
        return
    definition = find(node.domain, node.op_type, node.version)
    if definition is None or definition.form not in ("pointwise", "broadcast") or len(node.outputs) != 1:
        raise _NoFunction
    for each in node.inputs:
        _follow(each, model, inside)


def _check_numbers(names: Sequence[str], model: Model) -> None:
    """Raise _NoFunction unless these tensors are constants of one element."""
    for value in (model.constant(name) for name in names if name):
        if value is None or value.size != 1:
            raise _NoFunction


def table_layer(of: CodeFunction, context: ExportContext) -> Layer:
    """The layer of a function of codes. Raises NotExported."""
    x_side, y_side = (_code_scale(*names, context.constant) for names in of.parameters)
    x = context.vector("input_0", of.node.inputs[0], x_side)
    y = context.vector("output", of.node.outputs[0], y_side)
    if x.array.dtype not in EIGHT or y.array.dtype not in EIGHT:
        raise NotExported("a table of 16-bit codes has 65,536 entries")
    codes = _codes(of, x.array.dtype, context)
    if not np.array_equal(codes[x.array.astype(int) - np.iinfo(x.array.dtype).min], y.array):
        raise NotExported("its codes depend on more than the input code")
    formula = "output = table[input - the lowest code of its type]"
    return Layer(of.node, "table", {}, (x, LayerTensor("table", codes), y), "table", None, formula)


def _code_scale(scale: str, zero: str, constant: Callable[[str], Array | None]) -> CodeScale:
    """A tensor's scale and zero point, which are constant numbers."""
    value, stored = constant(scale), constant(zero) if zero else np.zeros(1, np.uint8)
    assert value is not None
    assert stored is not None
    return CodeScale(value.astype(np.float32).reshape(1), stored.reshape(1))


def _codes(of: CodeFunction, dtype: np.dtype, context: ExportContext) -> Array:
    """The output codes of all input codes, from the lowest one on."""
    lowest = int(np.iinfo(dtype).min)
    known: dict[str, Array] = {of.node.inputs[0]: np.arange(lowest, lowest + 256).astype(dtype)}
    for node in of.nodes:
        args = [known.get(name, context.constant(name)) if name else None for name in node.inputs]
        made = evaluate(node, args, context.family.name, _ROOM, saturating=True)
        if made is None:
            raise NotExported(f"{node.label} has no result for some input code")
        known[node.outputs[0]] = made[0]
    codes = known[of.node.outputs[0]].reshape(-1)
    if codes.size != 256:
        raise NotExported("its constants broadcast")
    return codes
