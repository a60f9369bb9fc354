"""GraphProto to the graph of a Model: reads nodes and values, sorts the nodes, and reports contradictions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING, Any

from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, constants_of
from qrun.errors import ModelError, UnsupportedError
from qrun.ir import schema
from qrun.ir.external import External
from qrun.ir.messages import AttributeProto
from qrun.ir.model import Attribute, Model, Node, TensorType
from qrun.ir.tensors import to_array, to_dense, to_part
from qrun.ir.types import DTYPES, describe

if TYPE_CHECKING:
    import onnx


@frozen
class GraphContext:
    """The context in which a graph is read: opsets, external files, and the names of the graphs around it.

    names: of the nearest graph around it; outer: the context of that graph.
    texts: every name read so far, as key and as value, so that equal names share one string.
    """

    opsets: Mapping[str, int]
    external: External
    label: str
    names: AbstractSet[str] = frozenset()
    outer: GraphContext | None = None
    texts: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.names or (self.outer is not None and name in self.outer)

    def intern_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """These names, each as the one string that equal names share."""
        share = self.texts.setdefault
        return tuple([share(name, name) for name in names])


def invalid(scope: GraphContext, message: str, tensor: str, node: str = "", **more: Any) -> ModelError:
    """The QR102 error of an invalid graph."""
    where = [scope.label, *([f"node {node}"] if node else []), f"tensor {tensor}"]
    return ModelError("QR102", message, where=where, **more)


def label(proto: onnx.NodeProto, index: int) -> str:
    """The name in errors of a node that is not read yet."""
    return f"{proto.name or f'{proto.op_type}_{index}'} ({proto.op_type})"


Names = Sequence[tuple[str, ...]]
_SHOWN = 5
"""The most nodes of a circle that an error names."""


def execution_order(
    nodes: Sequence[onnx.NodeProto], inputs: Names, outputs: Names, given: set[str], scope: GraphContext
) -> Sequence[int]:
    """Places of the nodes such that every tensor is made before it is read, as near to file order as possible.

    inputs, outputs: names, for each node; given: names of tensors that no node needs to make.
    """
    maker = _makers(nodes, outputs, given, scope)
    before = [_makers_read(index, proto, inputs[index], maker, given, scope) for index, proto in enumerate(nodes)]
    if all(not makers or max(makers) < index for index, makers in enumerate(before)):
        return range(len(before))
    return _sort(nodes, before, scope)


def _makers(nodes: Sequence[onnx.NodeProto], outputs: Names, given: set[str], scope: GraphContext) -> dict[str, int]:
    """The place of the node that makes each tensor."""
    maker: dict[str, int] = {}
    for index, names in enumerate(outputs):
        for name in names:
            if not name:
                continue
            if name in maker or (name in given and name not in scope):
                raise invalid(scope, f"tensor {name!r} is defined twice", name, label(nodes[index], index))
            maker[name] = index
    return maker


def _makers_read(
    index: int,
    proto: onnx.NodeProto,
    inputs: tuple[str, ...],
    maker: dict[str, int],
    given: set[str],
    scope: GraphContext,
) -> tuple[int, ...]:
    """The places of the nodes that make a node's inputs, each once."""
    found = []
    for name in inputs if not proto.attribute else dict.fromkeys((*inputs, *_captured_names(proto))):
        if name in maker:
            found.append(maker[name])
        elif name and name not in given and name not in scope:
            facts = [("expected", "a graph input, an initializer or a node's output of that name")]
            raise invalid(scope, f"tensor {name!r} is read but never defined", name, label(proto, index), facts=facts)
    return tuple(found if len(found) < 2 else dict.fromkeys(found))


def _sort(nodes: Sequence[onnx.NodeProto], before: Sequence[tuple[int, ...]], scope: GraphContext) -> list[int]:
    """The order of nodes in which all inputs are made before they are read; `before` has each node's makers."""
    waiting = [len(makers) for makers in before]
    followers: dict[int, list[int]] = {}
    for index, makers in enumerate(before):
        for other in makers:
            followers.setdefault(other, []).append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for other in followers.get(index, ()):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) < len(waiting):
        raise _circle(nodes, [[maker for maker in makers if waiting[maker]] for makers in before], scope)
    return order


def _circle(nodes: Sequence[onnx.NodeProto], before: Sequence[Sequence[int]], scope: GraphContext) -> ModelError:
    """The error for nodes that wait for each other; before: for each node, the nodes it waits for."""
    path = [next(index for index, makers in enumerate(before) if makers)]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]][0])
    path = path[path.index(path[-1]) + 1 :]
    index, maker = path[-1], path[0]
    read = {*nodes[index].input, *_captured_names(nodes[index])}
    name = next(name for name in nodes[maker].output if name in read)
    names = [label(nodes[p], p) for p in path[::-1][:_SHOWN]]
    more = f" and {len(path) - _SHOWN} more" if len(path) > _SHOWN else ""
    what = "the nodes form a cycle"
    return invalid(scope, what, name, label(nodes[index], index), facts=[("circle", " to ".join(names) + more)])


def _captured_names(proto: onnx.NodeProto) -> set[str]:
    """Names that a node's subgraphs capture from outside."""
    found: set[str] = set()
    for attribute in proto.attribute:
        for graph in [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs:
            inside = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inside |= {name for inner in graph.node for name in inner.output}
            used = {name for inner in graph.node for name in (*inner.input, *_captured_names(inner)) if name}
            found |= (used | {v.name for v in graph.output}) - inside
    return found


def build_graph(graph: onnx.GraphProto, scope: GraphContext) -> dict[str, Any]:
    """The keyword arguments of Model that one graph determines."""
    reads = [scope.intern_names(proto.input) for proto in graph.node]
    makes = [scope.intern_names(proto.output) for proto in graph.node]
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
            raise invalid(scope, f"no node produces graph output {value.name!r}", value.name)
    types = {v.name: v for v in [*map(value_type, graph.value_info), *inputs, *outputs]}
    return {
        "nodes": nodes,
        "inputs": tuple([v for v in inputs if v.name not in constants]),
        "defaults": tuple([v for v in inputs if v.name in constants]),
        "outputs": outputs,
        "constants": constants_of(constants),
        "types": types,
        "was_sorted": isinstance(order, range),
    }


def _constants(graph: onnx.GraphProto, scope: GraphContext) -> dict[str, Part]:
    """Initializers by name; sparse ones as dense tensors."""
    constants: dict[str, Part] = {}

    def add(name: str, array: Part) -> None:
        if name in constants:
            raise invalid(scope, f"initializer {name!r} is defined twice", name)
        constants[name] = array

    for tensor in graph.initializer:
        add(tensor.name, to_part(tensor, scope.external))
    for sparse in graph.sparse_initializer:
        add(sparse.values.name, to_dense(sparse, scope.external))
    return constants


def _refuse_undecodable(graph: onnx.GraphProto, scope: GraphContext, reads: Names, makes: Names) -> None:
    """Raise ModelError for names that are not UTF-8: they reach Python as bytes, whatever protobuf's types say."""
    if bytes in set(map(type, _names(graph, reads, makes))):
        refuse_bytes(scope.label, *_names(graph, reads, makes))


def _names(graph: onnx.GraphProto, reads: Names, makes: Names) -> Iterator[str]:
    """All names of a graph and of its nodes."""
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
    """Raise ModelError for names that are not UTF-8."""
    for name in names:
        if isinstance(name, bytes):
            raise undecodable(label, name)


def undecodable(label: str, name: bytes) -> ModelError:
    """The QR102 error of a name that is not UTF-8."""
    what = "a name is not UTF-8 text"
    why = "ONNX IR: names are UTF-8 strings."
    fixes = ["export the model again; the file is damaged"]
    return ModelError("QR102", what, where=[label], facts=[("got", repr(name[:60]))], why=why, fixes=fixes)


def value_type(info: onnx.ValueInfoProto) -> TensorType:
    """The type of an input, output or tensor."""
    return _tensor_type(info.name, info.type)


def _tensor_type(name: str, proto: onnx.TypeProto) -> TensorType:
    """The type of a TypeProto."""
    kind = proto.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        plain = kind.removesuffix("_type")
        if plain == "map":
            held = _tensor_type(name, proto.map_type.value_type)
            return TensorType(name, None, None, plain, held, DTYPES.get(proto.map_type.key_type))
        inner = getattr(proto, kind).elem_type if plain in ("sequence", "optional") else None
        return TensorType(name, None, None, plain, None if inner is None else _tensor_type(name, inner))
    tensor = proto.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple([_length(d) for d in tensor.shape.dim])
    return TensorType(name, DTYPES.get(tensor.elem_type), shape)


def _length(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """The size of an axis, its name, or None."""
    if dim.HasField("dim_value"):
        number = dim.dim_value
        return number if number >= 0 else None
    return dim.dim_param or None


def _refuse_other_type(scope: GraphContext, value: TensorType, stored: Part) -> None:
    """Raise ModelError if the initializer of a graph input is no value of that input."""
    shape = value.shape if value.shape is not None else stored.shape
    fits = len(shape) == stored.ndim and all(
        not isinstance(want, int) or want == got for want, got in zip(shape, stored.shape, strict=True)
    )
    if (value.dtype is not None and value.dtype != stored.dtype) or not fits:
        what = f"the initializer of graph input {value.name!r} does not match it"
        raise invalid(scope, what, value.name, facts=[("expected", str(value)), ("got", describe(stored))])


def _refuse_duplicates(scope: GraphContext, what: str, names: list[str]) -> None:
    """Raise ModelError if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid(scope, f"{what} {name!r} is defined twice", name)
        seen.add(name)


_NONE: Mapping[str, Attribute] = {}


def _node(
    proto: onnx.NodeProto, index: int, reads: tuple[str, ...], makes: tuple[str, ...], scope: GraphContext
) -> Node:
    """A Node from its NodeProto."""
    domain, op_type = proto.domain, intern(proto.op_type)
    domain = "" if domain == "ai.onnx" else intern(domain)
    opset = scope.opsets.get(domain, schema.ASSUMED.get(domain))
    if opset is None:
        raise _unknown_domain(domain, op_type, label(proto, index), scope)
    version = schema.version(domain, op_type, opset)
    attributes = _attributes(proto, label(proto, index), scope) if proto.attribute else _NONE
    return Node(index, proto.name, domain, op_type, version, reads, makes, attributes)


def _unknown_domain(domain: str, op_type: str, node: str, scope: GraphContext) -> ModelError:
    """The QR105 error of a domain that the model does not import."""
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
        fixes=[f"import {domain} with version 1"]
        if domain in schema.VENDORS
        else [foreign.instead]
        if foreign
        else [
            *([f"if this is {op_type} of ai.onnx, clear node.domain"] if known else []),
            f"import {domain} with the version that the node was written for; qrun does not run other domains",
        ]
        if domain
        else ["add opset_import { domain: '' version: 21 } to the model"],
    )


def _attributes(proto: onnx.NodeProto, node: str, scope: GraphContext) -> dict[str, Attribute]:
    """A node's attributes by name. Raises ModelError if one occurs twice."""
    found: dict[str, Attribute] = {}
    for attribute in proto.attribute:
        if attribute.name in found:
            raise invalid(scope, f"attribute {attribute.name!r} is given twice", node, node)
        found[attribute.name] = _attribute(attribute, node, scope)
    return found


def _text(data: bytes) -> str | bytes:
    """UTF-8 as text; other bytes as they are."""
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
    """The value of an attribute."""
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
        return _tensor_type("", proto.tp)
    if proto.type == AttributeProto.GRAPH:
        return subgraph(proto.g, scope)
    if proto.type == AttributeProto.GRAPHS:
        return tuple(subgraph(g, scope) for g in proto.graphs)
    kind = AttributeProto.AttributeType.Name(proto.type) if proto.type in AttributeProto.AttributeType.values() else ""
    if proto.type == AttributeProto.UNDEFINED or not kind:
        raise invalid(scope, f"{where} has no type", node, node)
    what = f"{where} is a {kind.lower()}, which qrun does not read"
    raise UnsupportedError("QR203", what, where=[scope.label, f"node {node}"], name="unsupported-type")


def subgraph(graph: onnx.GraphProto, scope: GraphContext) -> Model:
    """A graph of an attribute as a Model."""
    return Model(name=graph.name, opsets=scope.opsets, **build_graph(graph, scope))
