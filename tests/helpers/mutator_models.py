"""Changes that make a model unusual: names, ranks, sizes and nodes that exporters never write, but a file may have."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

LONG = 10**6
SPELLED = 64 << 20
"""Bytes that one name may take in all its places: a million characters a million times over fit no file."""
RANKS = (31, 32, 33, 40, 63, 64, 65)


def long_name(model: onnx.ModelProto, rng: random.Random) -> None:
    """A million characters as the name of a tensor, a node, an operator, a dimension or the graph."""
    graph, name = model.graph, rng.choice("xé\n[/ ") * LONG
    kind = rng.choice(["tensor", "tensor", "node", "operator", "dimension", "graph", "domain", "attribute", "text"])
    node = rng.choice(graph.node) if graph.node else onnx.NodeProto()
    if kind == "tensor":
        _rename(graph, rng.choice(_names(graph) or [""]), name)
    elif kind == "node":
        node.name = name
    elif kind == "operator":
        node.op_type = name
    elif kind == "dimension":
        for value in graph.input:
            for dim in value.type.tensor_type.shape.dim[:1]:
                dim.dim_param = name
    elif kind == "graph":
        graph.name = name
    elif kind == "domain":
        node.domain = name
        model.opset_import.add(domain=name, version=1)
    elif kind == "attribute":
        node.attribute.append(helper.make_attribute(name, 1))
    else:
        node.attribute.append(helper.make_attribute("auto_pad", name))


def many_names(model: onnx.ModelProto, rng: random.Random) -> None:
    """A million inputs or outputs of a node, dimensions of an input, or numbers of an attribute."""
    graph = model.graph
    node = rng.choice(graph.node) if graph.node else onnx.NodeProto()
    kind = rng.choice(["inputs", "outputs", "blanks", "dimensions", "numbers"])
    if kind == "inputs":
        name = node.input[0] if node.input else "x"
        node.input.extend([name] * min(LONG, _places(name)))
    elif kind == "outputs":
        node.output.extend(f"more{n}" for n in range(LONG))
    elif kind == "blanks":
        (node.input if rng.random() < 0.5 else node.output).extend([""] * LONG)
    elif kind == "dimensions":
        for value in graph.input[:1]:
            value.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension(dim_value=1)] * LONG)
    else:
        name = rng.choice([a.name for a in node.attribute] or ["axes"])
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, [0] * LONG)])


def high_rank(model: onnx.ModelProto, rng: random.Random) -> None:
    """Axes of one element before those of the inputs, the stored tensors, or both."""
    rank, which = rng.choice(RANKS), rng.choice(["inputs", "tensors", "both"])
    graph = model.graph
    if which != "tensors":
        for value in graph.input:
            shape = value.type.tensor_type.shape
            ones = [onnx.TensorShapeProto.Dimension(dim_value=1)] * max(0, rank - len(shape.dim))
            dims = [*ones, *shape.dim]
            del shape.dim[:]
            shape.dim.extend(dims)
    if which != "inputs":
        chosen = [t for t in graph.initializer if rng.random() < 0.5]
        for tensor in chosen:
            dims = [*[1] * max(0, rank - len(tensor.dims)), *tensor.dims]
            del tensor.dims[:]
            tensor.dims.extend(dims)
    if rng.random() < 0.7:
        _forget_shapes(graph)


def bare_node(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node without outputs, without inputs, or with omitted ones only; one more of them, or one that was there."""
    graph = model.graph
    if not graph.node:
        return
    node = rng.choice(graph.node)
    if rng.random() < 0.5:
        node = graph.node.add()
        node.CopyFrom(rng.choice(graph.node[:-1]))
        del node.output[:]
        node.output.extend(["" if rng.random() < 0.5 else f"spare{len(graph.node)}"])
        node.name += "_spare"
    for names in rng.choice([[node.input], [node.output], [node.output], [node.input, node.output]]):
        count = rng.choice([0, 0, 1, len(names), len(names) + 1])
        del names[:]
        names.extend([""] * count)


def no_elements(model: onnx.ModelProto, rng: random.Random) -> None:
    """Axes of inputs or stored tensors, and those of the same length elsewhere or not, have no elements."""
    graph = model.graph
    chosen: list[tuple[object, int]] = [(t, a) for t in graph.initializer for a in range(len(t.dims))]
    chosen += [(v, a) for v in graph.input for a in range(len(v.type.tensor_type.shape.dim))] * 3
    if not chosen:
        return
    value, axis = rng.choice(chosen)
    if isinstance(value, onnx.ValueInfoProto):
        value.type.tensor_type.shape.dim[axis].dim_value = 0
    else:
        assert isinstance(value, onnx.TensorProto)
        length = value.dims[axis]
        for tensor in graph.initializer:
            same = rng.random() < 0.7 and length > 1 and length in tensor.dims
            if tensor is value or same:
                at = axis if tensor is value else list(tensor.dims).index(length)
                _empty(tensor, at)
    if rng.random() < 0.8:
        _forget_shapes(graph)


def _empty(tensor: onnx.TensorProto, axis: int) -> None:
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OSError):
        return
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.take(array, [], axis=axis), name))


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """State no shapes of what nodes make."""
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")


def _names(graph: onnx.GraphProto) -> list[str]:
    found = {name for node in graph.node for name in (*node.input, *node.output) if name}
    return sorted(found)


def _places(name: str) -> int:
    """How often a name may stand in a file."""
    return SPELLED // max(1, len(name.encode()))


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """The tensor under its new name, where that leaves a file."""
    lists = [names for node in graph.node for names in (node.input, node.output)]
    if sum(name == old for names in lists for name in names) > _places(new):
        return
    for names in lists:
        for place, name in enumerate(names):
            if name == old:
                names[place] = new
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        if value.name == old:
            value.name = new


CHANGES: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    long_name,
    many_names,
    high_rank,
    high_rank,
    bare_node,
    bare_node,
    no_elements,
    no_elements,
    no_elements,
)
