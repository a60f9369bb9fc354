"""Shapes as far as the file states them or operators keep them; windows of pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from qrun.declare.stored import parts
from qrun.ir import Model, Node, TensorType
from qrun.ops import find
from qrun.shapes import MOST_AXES

Dims = tuple[int | None, ...]
"""Lengths of the axes, None where unknown."""


def known_shapes(model: Model) -> Mapping[str, Dims]:
    """Shapes known before any run, by name; tensors of unknown rank are missing."""
    found: dict[str, Dims] = {name: part.shape for name, part in parts(model.constants).items()}
    for value in (*model.inputs, *model.defaults):
        found |= _stated_shapes(value)
    for node in model.nodes:
        made = _output(node, found.get)
        for index, name in enumerate(node.outputs):
            stated = model.types.get(name)
            if stated is not None and stated.shape is not None:
                found |= _stated_shapes(stated)
            elif made is not None and not index and name:
                found[name] = made
    return found


def _stated_shapes(value: TensorType) -> dict[str, Dims]:
    """The shape that the file states, by the name of its tensor; nothing for a shape that no array can have."""
    if value.shape is None or len(value.shape) > MOST_AXES:
        return {}
    return {value.name: tuple(d if isinstance(d, int) else None for d in value.shape)}


def _output(node: Node, shape: Callable[[str], Dims | None]) -> Dims | None:
    """The shape of the first output, computed from the shapes of the inputs; None if unknown."""
    inputs = [shape(name) if name else None for name in node.inputs]
    definition = find(node.domain, node.op_type, node.version)
    form = definition.form if definition else ""
    if not inputs:
        return None
    if form == "pointwise" or node.op_type in ("Table", "Softmax", "Identity"):
        return inputs[0]
    if form == "broadcast":
        return _broadcast([s for s, name in zip(inputs, node.inputs, strict=True) if name])
    rule = _RULES.get(node.op_type)
    return rule(node, inputs) if rule else None


def _broadcast(shapes: Sequence[Dims | None]) -> Dims | None:
    """The shape to which shapes broadcast; None if one is unknown."""
    if any(s is None for s in shapes):
        return None
    made = [_joint(dims) for dims in zip_longest(*(reversed(s) for s in shapes if s is not None), fillvalue=1)]
    return tuple(reversed(made))


def _joint(dims: Sequence[int | None]) -> int | None:
    """The length to which axes broadcast: a known one above 1 decides."""
    wide = [d for d in dims if d is not None and d != 1]
    return wide[0] if wide else None if None in dims else 1


def _conv(node: Node, inputs: Sequence[Dims | None], weights: int) -> Dims | None:
    """The output shape of a convolution, spatial axes unknown; `weights` is their input's index."""
    w = inputs[weights] if len(inputs) > weights else None
    x = inputs[0]
    return None if w is None or len(w) < 3 else (x[0] if x else None, w[0], *(None,) * (len(w) - 2))


def _pool(node: Node, inputs: Sequence[Dims | None]) -> Dims | None:
    """The output shape of a pooling, spatial axes unknown."""
    x = inputs[0]
    return None if x is None or len(x) < 3 else (*x[:2], *(None,) * (len(x) - 2))


def _product(inputs: Sequence[Dims | None], b: int) -> Dims | None:
    """The output shape of a matrix product with a 2-D right side, which is input `b`."""
    left, right = inputs[0], inputs[b] if len(inputs) > b else None
    if left is None or right is None or len(right) != 2 or len(left) < 2:
        return None
    return (*left[:-1], right[1])


def _concat(node: Node, inputs: Sequence[Dims | None]) -> Dims | None:
    """The output shape of a Concat."""
    axis = node.attributes.get("axis")
    first = inputs[0] if inputs else None
    if first is None or not isinstance(axis, int) or not -len(first) <= axis < len(first):
        return None
    dim = axis % len(first)
    lengths = [s[dim] if s is not None and len(s) == len(first) else None for s in inputs]
    total = None if None in lengths else sum(n for n in lengths if n is not None)
    return (*first[:dim], total, *first[dim + 1 :])


_RULES: Mapping[str, Callable[[Node, Sequence[Dims | None]], Dims | None]] = {
    "Conv": lambda n, i: _conv(n, i, 1),
    "QLinearConv": lambda n, i: None if n.domain else _conv(n, i, 3),
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _pool,
    "QLinearAveragePool": lambda n, i: None if n.attributes.get("channels_last") else _pool(n, i),
    "QLinearGlobalAveragePool": lambda n, i: None if n.attributes.get("channels_last") else _pool(n, i),
    "MatMul": lambda n, i: _product(i, 1),
    "QLinearMatMul": lambda n, i: _product(i, 3),
    "Concat": _concat,
    "QLinearConcat": lambda n, i: _concat(n, i[2::3]),
}


def windows_reach_input(node: Node) -> bool:
    """Whether every window of a pool covers an element of the input, for any input size."""
    kernel, pads, dilations = (_ints(node, name) for name in ("kernel_shape", "pads", "dilations"))
    dilated = any(d != 1 for d in dilations)
    if node.attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return not dilated
    if not any(pads):
        return True
    half = len(kernel)
    sums = [begin + end for begin, end in zip(pads[:half], pads[half:], strict=False)]
    return not dilated and len(sums) == half and all(s < k for s, k in zip(sums, kernel, strict=True))


def _ints(node: Node, name: str) -> tuple[int, ...]:
    """An attribute that is a list of integers."""
    values = node.attributes.get(name, ())
    return values if isinstance(values, tuple) else ()
