"""GraphProto to the fields of a Model: values, attributes, and nodes in execution order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any

import onnx
from onnx import AttributeProto

from qrun.errors import ModelError, UnsupportedError
from qrun.ir import schema
from qrun.ir.external import External
from qrun.ir.model import Array, Attribute, Model, Node, TensorType
from qrun.ir.tensors import to_array
from qrun.ir.types import DTYPES, describe


@dataclass(frozen=True)
class GraphContext:
    """What a graph sees from outside: opsets, external files, and the names of the graphs around it.

    names: of the nearest graph around it, each by itself, so that nodes share the text; outer: what that one sees.
    """

    opsets: Mapping[str, int]
    external: External
    label: str
    names: Mapping[str, str] = field(default_factory=dict)
    outer: GraphContext | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.names or (self.outer is not None and name in self.outer)


def build_graph(graph: onnx.GraphProto, scope: GraphContext) -> dict[str, Any]:
    """The keyword arguments of Model that one graph determines."""
    _refuse_undecodable(graph, scope)
    if len(graph.sparse_initializer):
        raise UnsupportedError(
            "QR203",
            "unsupported-type",
            "the model has sparse initializers, which qrun does not read",
            where=[scope.label, f"tensor {graph.sparse_initializer[0].values.name}"],
            fixes=["store them as dense tensors"],
        )
    constants: dict[str, Array] = {}
    for tensor in graph.initializer:
        if tensor.name in constants:
            raise _invalid(scope, f"initializer {tensor.name!r} is defined twice", tensor.name)
        constants[tensor.name] = to_array(tensor, scope.external)
    inputs = [value_type(v) for v in graph.input]
    _refuse_duplicates(scope, "graph input", [v.name for v in inputs])
    for value in inputs:
        if value.name in constants:
            _refuse_other_type(scope, value, constants[value.name])
    given = {v.name for v in inputs} | set(constants)
    order = _execution_order(graph.node, given, scope)
    names = {name: name for name in given}
    names.update((name, name) for proto in graph.node for name in proto.output if name)
    inner = GraphContext(scope.opsets, scope.external, scope.label, names, scope)
    nodes = tuple(_node(graph.node[place], index, inner) for index, place in enumerate(order))
    outputs = tuple(value_type(v) for v in graph.output)
    for value in outputs:
        if value.name not in inner:
            raise _invalid(scope, f"graph output {value.name!r} is made by no node", value.name)
    types = {v.name: v for v in [*map(value_type, graph.value_info), *inputs, *outputs]}
    return {
        "nodes": nodes,
        "inputs": tuple(v for v in inputs if v.name not in constants),
        "defaults": tuple(v for v in inputs if v.name in constants),
        "outputs": outputs,
        "constants": constants,
        "types": types,
        "was_sorted": order == sorted(order),
    }


def _refuse_undecodable(graph: onnx.GraphProto, scope: GraphContext) -> None:
    """Names that are not UTF-8 reach Python as bytes, whatever protobuf's types say."""
    values: list[onnx.ValueInfoProto] = [*graph.input, *graph.output, *graph.value_info]
    refuse_bytes(scope.label, graph.name, *(v.name for v in values), *(t.name for t in graph.initializer))
    refuse_bytes(scope.label, *(d.dim_param for v in values for d in v.type.tensor_type.shape.dim))
    for n in graph.node:
        refuse_bytes(scope.label, n.name, n.op_type, n.domain, *n.input, *n.output, *(a.name for a in n.attribute))


def refuse_bytes(label: str, *names: object) -> None:
    for name in names:
        if isinstance(name, bytes):
            raise undecodable(label, name)


def undecodable(label: str, name: bytes) -> ModelError:
    return ModelError(
        "QR102",
        "invalid-graph",
        "a name is not UTF-8 text",
        where=[label],
        facts=[("got", repr(name[:60]))],
        why="ONNX IR: names are UTF-8 strings.",
        fixes=["export the model again; the file is damaged"],
    )


def value_type(info: onnx.ValueInfoProto) -> TensorType:
    kind = info.type.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        return TensorType(info.name, None, None, kind.removesuffix("_type"))
    tensor = info.type.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(
            (d.dim_value if d.dim_value >= 0 else None) if d.HasField("dim_value") else (d.dim_param or None)
            for d in tensor.shape.dim
        )
    return TensorType(info.name, DTYPES.get(tensor.elem_type), shape)


def _invalid(scope: GraphContext, message: str, tensor: str, node: str = "", **more: Any) -> ModelError:
    where = [scope.label, *([f"node {node}"] if node else []), f"tensor {tensor}"]
    return ModelError("QR102", "invalid-graph", message, where=where, **more)


def _refuse_other_type(scope: GraphContext, value: TensorType, stored: Array) -> None:
    """An initializer of a graph input must be a value of that input."""
    shape = value.shape if value.shape is not None else stored.shape
    fits = len(shape) == stored.ndim and all(
        not isinstance(want, int) or want == got for want, got in zip(shape, stored.shape, strict=True)
    )
    if (value.dtype is not None and value.dtype != stored.dtype) or not fits:
        raise _invalid(
            scope,
            f"the initializer of graph input {value.name!r} does not fit it",
            value.name,
            facts=[("expected", str(value)), ("got", describe(stored))],
        )


def _refuse_duplicates(scope: GraphContext, what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _invalid(scope, f"{what} {name!r} is defined twice", name)
        seen.add(name)


def _label(proto: onnx.NodeProto, place: int) -> str:
    return f"{proto.name or f'{proto.op_type}_{place}'} ({proto.op_type})"


def _reads(proto: onnx.NodeProto) -> set[str]:
    """Names a node needs: its inputs and what its subgraphs take from outside."""
    found = {name for name in proto.input if name}
    for attribute in proto.attribute:
        for graph in [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs:
            inside = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inside |= {name for inner in graph.node for name in inner.output}
            used = {name for inner in graph.node for name in _reads(inner)} | {v.name for v in graph.output}
            found |= used - inside
    return found


def _execution_order(nodes: Any, given: set[str], scope: GraphContext) -> list[int]:
    """Places of the nodes such that every tensor is made before it is read, as near to file order as possible."""
    maker: dict[str, int] = {}
    for place, proto in enumerate(nodes):
        for name in proto.output:
            if not name:
                continue
            if name in maker or (name in given and name not in scope):
                raise _invalid(scope, f"tensor {name!r} is made twice", name, _label(proto, place))
            maker[name] = place
    waiting: list[int] = []
    followers: dict[int, list[int]] = {}
    for place, proto in enumerate(nodes):
        before = set()
        for name in _reads(proto):
            if name in maker:
                before.add(maker[name])
            elif name not in given and name not in scope:
                raise _invalid(
                    scope,
                    f"tensor {name!r} is read but never made",
                    name,
                    _label(proto, place),
                    facts=[("expected", "a graph input, an initializer or a node's output of that name")],
                )
        waiting.append(len(before))
        for other in before:
            followers.setdefault(other, []).append(place)
    ready = [place for place, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for other in followers.get(place, ()):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) < len(waiting):
        place = next(p for p, count in enumerate(waiting) if count)
        name = next((n for n in nodes[place].input if n), "")
        raise _invalid(scope, "the nodes depend on each other in a circle", name, _label(nodes[place], place))
    return order


_NONE: Mapping[str, Attribute] = {}


def _node(proto: onnx.NodeProto, index: int, scope: GraphContext) -> Node:
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    label = _label(proto, index)
    if domain not in scope.opsets:
        known = any(schema.schema("", proto.op_type, opset) for opset in reversed(schema.OPSETS))
        imported = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in sorted(scope.opsets.items())) or "nothing"
        raise ModelError(
            "QR105",
            "unknown-domain",
            f"node uses domain {domain or 'ai.onnx'!r}, which is not imported",
            where=[scope.label, f"node {label}"],
            facts=[
                ("expected", f"an opset_import entry of {domain or 'ai.onnx'}"),
                ("imported", imported),
                ("known here", "ai.onnx 7-28, com.microsoft 1"),
            ],
            why="every node's domain needs an opset_import entry (ONNX IR).",
            fixes=[
                *([f"if this is {proto.op_type} of ai.onnx, clear node.domain"] if known else []),
                f"import {domain} with the version that the node was written for; qrun does not run other domains",
            ]
            if domain
            else ["add opset_import { domain: '' version: 21 } to the model"],
        )
    attributes: dict[str, Attribute] = {}
    for attribute in proto.attribute:
        if attribute.name in attributes:
            raise _invalid(scope, f"attribute {attribute.name!r} is given twice", label, label)
        attributes[attribute.name] = _attribute(attribute, label, scope)
    return Node(
        index=index,
        name=proto.name,
        domain=domain,
        op_type=intern(proto.op_type),
        version=schema.version(domain, proto.op_type, scope.opsets[domain]),
        inputs=tuple([scope.names.get(name, name) for name in proto.input]),
        outputs=tuple([scope.names.get(name, name) for name in proto.output]),
        attributes=attributes or _NONE,
    )


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


def _attribute(proto: AttributeProto, label: str, scope: GraphContext) -> Attribute:
    where = f"attribute {proto.name} of {label}"
    if proto.type in _SCALARS:
        return _SCALARS[proto.type](proto)
    if proto.type == AttributeProto.TENSOR:
        return to_array(proto.t, scope.external, where)
    if proto.type == AttributeProto.TENSORS:
        return tuple(to_array(t, scope.external, where) for t in proto.tensors)
    if proto.type == AttributeProto.GRAPH:
        return subgraph(proto.g, scope)
    if proto.type == AttributeProto.GRAPHS:
        return tuple(subgraph(g, scope) for g in proto.graphs)
    kind = AttributeProto.AttributeType.Name(proto.type) if proto.type in AttributeProto.AttributeType.values() else ""
    if proto.type == AttributeProto.UNDEFINED or not kind:
        raise _invalid(scope, f"{where} has no type", label, label)
    raise UnsupportedError(
        "QR203",
        "unsupported-type",
        f"{where} is a {kind.lower()}, which qrun does not read",
        where=[scope.label, f"node {label}"],
    )


def subgraph(graph: onnx.GraphProto, scope: GraphContext) -> Model:
    return Model(name=graph.name, opsets=scope.opsets, **build_graph(graph, scope))
