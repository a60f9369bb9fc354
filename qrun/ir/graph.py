"""GraphProto to the fields of a Model: values, attributes, and nodes in execution order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING, Any

from qrun.errors import ModelError, UnsupportedError
from qrun.ir import schema
from qrun.ir.context import GraphContext, invalid, label
from qrun.ir.messages import AttributeProto
from qrun.ir.model import Array, Attribute, Model, Node, TensorType
from qrun.ir.order import Names, execution_order
from qrun.ir.tensors import to_array, to_dense
from qrun.ir.types import DTYPES, describe

if TYPE_CHECKING:
    import onnx


def build_graph(graph: onnx.GraphProto, scope: GraphContext) -> dict[str, Any]:
    """The keyword arguments of Model that one graph determines."""
    reads = [scope.shared(proto.input) for proto in graph.node]
    makes = [scope.shared(proto.output) for proto in graph.node]
    _refuse_undecodable(graph, scope, reads, makes)
    constants = _constants(graph, scope)
    inputs = [value_type(v) for v in graph.input]
    _refuse_duplicates(scope, "graph input", [v.name for v in inputs])
    for value in inputs:
        if value.name in constants:
            _refuse_other_type(scope, value, constants[value.name])
    given = {v.name for v in inputs} | set(constants)
    order = execution_order(graph.node, reads, makes, given, scope)
    names = given.union(set(chain.from_iterable(makes)) - {""})
    inner = GraphContext(scope.opsets, scope.external, scope.label, names, scope, scope.texts)
    nodes = tuple([_node(graph.node[p], index, reads[p], makes[p], inner) for index, p in enumerate(order)])
    outputs = tuple(value_type(v) for v in graph.output)
    for value in outputs:
        if value.name not in inner:
            raise invalid(scope, f"graph output {value.name!r} is made by no node", value.name)
    types = {v.name: v for v in [*map(value_type, graph.value_info), *inputs, *outputs]}
    return {
        "nodes": nodes,
        "inputs": tuple([v for v in inputs if v.name not in constants]),
        "defaults": tuple([v for v in inputs if v.name in constants]),
        "outputs": outputs,
        "constants": constants,
        "types": types,
        "was_sorted": isinstance(order, range),
    }


def _constants(graph: onnx.GraphProto, scope: GraphContext) -> dict[str, Array]:
    """Initializers by name; sparse ones as the dense tensors that they stand for."""
    constants: dict[str, Array] = {}

    def add(name: str, array: Array) -> None:
        if name in constants:
            raise invalid(scope, f"initializer {name!r} is defined twice", name)
        constants[name] = array

    for tensor in graph.initializer:
        add(tensor.name, to_array(tensor, scope.external))
    for sparse in graph.sparse_initializer:
        add(sparse.values.name, to_dense(sparse, scope.external))
    return constants


def _refuse_undecodable(graph: onnx.GraphProto, scope: GraphContext, reads: Names, makes: Names) -> None:
    """Names that are not UTF-8 reach Python as bytes, whatever protobuf's types say."""
    if bytes in set(map(type, _names(graph, reads, makes))):
        refuse_bytes(scope.label, *_names(graph, reads, makes))


def _names(graph: onnx.GraphProto, reads: Names, makes: Names) -> Iterator[str]:
    """All names of a graph, and all that its nodes have."""
    values: list[onnx.ValueInfoProto] = [*graph.input, *graph.output, *graph.value_info]
    yield graph.name
    yield from (v.name for v in values)
    yield from (t.name for t in graph.initializer)
    yield from (t.values.name for t in graph.sparse_initializer)
    yield from (d.dim_param for v in values for d in v.type.tensor_type.shape.dim)
    for n in graph.node:
        yield from (n.name, n.op_type, n.domain)
        if n.attribute:
            yield from (a.name for a in n.attribute)
    yield from chain.from_iterable(reads)
    yield from chain.from_iterable(makes)


def refuse_bytes(label: str, *names: object) -> None:
    for name in names:
        if isinstance(name, bytes):
            raise undecodable(label, name)


def undecodable(label: str, name: bytes) -> ModelError:
    return ModelError(
        "QR102",
        "a name is not UTF-8 text",
        where=[label],
        facts=[("got", repr(name[:60]))],
        why="ONNX IR: names are UTF-8 strings.",
        fixes=["export the model again; the file is damaged"],
    )


def value_type(info: onnx.ValueInfoProto) -> TensorType:
    return _typed(info.name, info.type)


def _typed(name: str, proto: onnx.TypeProto) -> TensorType:
    kind = proto.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        plain = kind.removesuffix("_type")
        if plain == "map":
            held = _typed(name, proto.map_type.value_type)
            return TensorType(name, None, None, plain, held, DTYPES.get(proto.map_type.key_type))
        inner = getattr(proto, kind).elem_type if plain in ("sequence", "optional") else None
        return TensorType(name, None, None, plain, None if inner is None else _typed(name, inner))
    tensor = proto.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple([_length(d) for d in tensor.shape.dim])
    return TensorType(name, DTYPES.get(tensor.elem_type), shape)


def _length(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        number = dim.dim_value
        return number if number >= 0 else None
    return dim.dim_param or None


def _refuse_other_type(scope: GraphContext, value: TensorType, stored: Array) -> None:
    """An initializer of a graph input must be a value of that input."""
    shape = value.shape if value.shape is not None else stored.shape
    fits = len(shape) == stored.ndim and all(
        not isinstance(want, int) or want == got for want, got in zip(shape, stored.shape, strict=True)
    )
    if (value.dtype is not None and value.dtype != stored.dtype) or not fits:
        raise invalid(
            scope,
            f"the initializer of graph input {value.name!r} does not fit it",
            value.name,
            facts=[("expected", str(value)), ("got", describe(stored))],
        )


def _refuse_duplicates(scope: GraphContext, what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid(scope, f"{what} {name!r} is defined twice", name)
        seen.add(name)


_NONE: Mapping[str, Attribute] = {}


def _node(
    proto: onnx.NodeProto, index: int, reads: tuple[str, ...], makes: tuple[str, ...], scope: GraphContext
) -> Node:
    domain, op_type = proto.domain, intern(proto.op_type)
    domain = "" if domain == "ai.onnx" else intern(domain)
    opset = scope.opsets.get(domain, schema.ASSUMED.get(domain))
    if opset is None:
        raise _unknown_domain(domain, op_type, label(proto, index), scope)
    version = schema.version(domain, op_type, opset)
    attributes = _attributes(proto, label(proto, index), scope) if proto.attribute else _NONE
    return Node(index, proto.name, domain, op_type, version, reads, makes, attributes)


def _unknown_domain(domain: str, op_type: str, node: str, scope: GraphContext) -> ModelError:
    from qrun.ir.foreign import foreign_domain

    known = any(schema.schema("", op_type, opset) for opset in reversed(schema.OPSETS))
    imported = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in sorted(scope.opsets.items())) or "nothing"
    foreign = foreign_domain(domain)
    return ModelError(
        "QR105",
        f"node uses domain {domain or 'ai.onnx'!r}, which is not imported",
        where=[scope.label, f"node {node}"],
        facts=[
            ("expected", f"an opset_import entry of {domain or 'ai.onnx'}"),
            ("imported", imported),
            ("known here", "ai.onnx 7-28, com.microsoft 1"),
        ],
        why=f"every node's domain needs an opset_import entry (ONNX IR){f'. {foreign.why(domain)}' if foreign else '.'}",
        fixes=[foreign.instead]
        if foreign
        else [
            *([f"if this is {op_type} of ai.onnx, clear node.domain"] if known else []),
            f"import {domain} with the version that the node was written for; qrun does not run other domains",
        ]
        if domain
        else ["add opset_import { domain: '' version: 21 } to the model"],
    )


def _attributes(proto: onnx.NodeProto, node: str, scope: GraphContext) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for attribute in proto.attribute:
        if attribute.name in found:
            raise invalid(scope, f"attribute {attribute.name!r} is given twice", node, node)
        found[attribute.name] = _attribute(attribute, node, scope)
    return found


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


_SCALARS: dict[int, Callable[[AttributeProto], Attribute]] = {
    AttributeProto.FLOAT: lambda a: float(a.f),
    AttributeProto.INT: lambda a: int(a.i),
    AttributeProto.STRING: lambda a: _text(a.s),
    AttributeProto.FLOATS: lambda a: tuple(a.floats),
    AttributeProto.INTS: lambda a: tuple(a.ints),
    AttributeProto.STRINGS: lambda a: tuple(_text(s) for s in a.strings),
}


def _attribute(proto: AttributeProto, node: str, scope: GraphContext) -> Attribute:
    where = f"attribute {proto.name} of {node}"
    if proto.type in _SCALARS:
        return _SCALARS[proto.type](proto)
    if proto.type == AttributeProto.TENSOR:
        return to_array(proto.t, scope.external, where)
    if proto.type == AttributeProto.TENSORS:
        return tuple(to_array(t, scope.external, where) for t in proto.tensors)
    if proto.type == AttributeProto.SPARSE_TENSOR:
        return to_dense(proto.sparse_tensor, scope.external, where)
    if proto.type == AttributeProto.TYPE_PROTO:
        return _typed("", proto.tp)
    if proto.type == AttributeProto.GRAPH:
        return subgraph(proto.g, scope)
    if proto.type == AttributeProto.GRAPHS:
        return tuple(subgraph(g, scope) for g in proto.graphs)
    kind = AttributeProto.AttributeType.Name(proto.type) if proto.type in AttributeProto.AttributeType.values() else ""
    if proto.type == AttributeProto.UNDEFINED or not kind:
        raise invalid(scope, f"{where} has no type", node, node)
    raise UnsupportedError(
        "QR203",
        f"{where} is a {kind.lower()}, which qrun does not read",
        where=[scope.label, f"node {node}"],
        name="unsupported-type",
    )


def subgraph(graph: onnx.GraphProto, scope: GraphContext) -> Model:
    return Model(name=graph.name, opsets=scope.opsets, **build_graph(graph, scope))
