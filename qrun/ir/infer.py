"""Infers shapes and types that a file does not state: onnx.shape_inference in its own process, as it can crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qrun.child import current_child
from qrun.child.inference import Expand, plain_nodes
from qrun.ir import schema
from qrun.ir.graph import value_type
from qrun.ir.load import parse, read_file
from qrun.ir.localfunctions import inline_functions
from qrun.ir.model import Array, Model, Node, TensorType
from qrun.ir.types import LONGEST_NAME, NUMBERS
from qrun.shapes import MOST_AXES

MAX_BYTES = 2**31 - 1
"""The limit of onnx.shape_inference: one serialized protobuf."""
LONGEST = 60.0
"""Seconds until the inference counts as failed: some equations of Einsum keep it busy forever."""


def with_inferred(model: Model, source: str | Path | bytes, expand: Expand) -> Model:
    """The model with inferred types added to its own; types that the file states have precedence."""
    found = {v.name: v for v in (*model.inputs, *model.outputs)}
    stated = {name: value for name, value in {**found, **model.types}.items() if value.shape is not None}
    return replace(model, types={**model.types, **infer(source, expand), **stated})


def infer(source: str | Path | bytes, expand: Expand) -> Mapping[str, TensorType]:
    """Name to type and shape for the tensors of the main graph, as far as ONNX infers them; nothing if that fails.

    Operators that ONNX does not define are inferred through their expansion if they have one; others end the inference
    on their paths.
    """
    data = source if isinstance(source, bytes) else read_file(Path(source))
    if len(data) > MAX_BYTES:
        return {}
    try:
        proto = inline_functions(parse(data, str(source)), str(source))
        named = {name for node in proto.graph.node for name in node.output}
        if any(expand(node.domain, node.op_type, len(node.input)) for node in proto.graph.node):
            nodes = [plain for node in proto.graph.node for plain in plain_nodes(node, expand)]
            del proto.graph.node[:]
            proto.graph.node.extend(nodes)
        long = _shorten_names(proto.graph)
        made = map(onnx.ValueInfoProto.FromString, _ask("infer_types", proto.SerializeToString()))
        return {v.name: _without_made_up(_restore_names(value_type(v), long)) for v in made if v.name in named}
    except Exception:
        return {}


def _shorten_names(graph: onnx.GraphProto) -> Mapping[str, str]:
    """Give axes with long names short ones, as inferred shapes repeat them, and remove shapes that no array can have.
    Returns the long names by the short ones."""
    short: dict[str, str] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if len(kind.shape.dim) > MOST_AXES:
            kind.ClearField("shape")
        for dim in kind.shape.dim:
            if len(dim.dim_param) > LONGEST_NAME:
                dim.dim_param = short.setdefault(dim.dim_param, f"qrun long axis {len(short)}")
    return {name: own for own, name in short.items()}


def _restore_names(value: TensorType, names: Mapping[str, str]) -> TensorType:
    """The type with the original names of its axes."""
    if value.shape is None or not names:
        return value
    return replace(value, shape=tuple([names.get(d, d) if isinstance(d, str) else d for d in value.shape]))


def infer_node(
    node: Node,
    opsets: Mapping[str, int],
    types: Mapping[str, TensorType],
    values: Mapping[str, Array],
    expand: Expand,
) -> Mapping[str, TensorType]:
    """Name to type and shape for the outputs of one node, as far as ONNX infers them; nothing if that fails.

    types: of its inputs. values: of the inputs whose values are known; they should be small.
    """
    found = dict(types)
    try:
        for proto in plain_nodes(_to_standard(node), expand):
            inputs = [name for name in proto.input if name]
            given = {name: _type_proto(found[name]).SerializeToString() for name in inputs}
            data = [onnx.numpy_helper.from_array(values[name], name) for name in inputs if name in values]
            known = [value.SerializeToString() for value in data]
            version = opsets.get(proto.domain, 1)
            made = _ask("node_outputs", proto.SerializeToString(), version, given, known, dict(opsets))
            for name, kind in made.items():
                info = onnx.ValueInfoProto(name=name, type=onnx.TypeProto.FromString(kind))
                found[name] = _without_made_up(value_type(info))
    except Exception:
        return {}
    return {name: found[name] for name in node.outputs if name in found}


def _ask(what: str, *arguments: Any) -> Any:
    """The answer of qrun.child.inference. Raises Failed, Crash, or Slow."""
    return current_child().ask("infer", what, *arguments, seconds=LONGEST)


def _type_proto(value: TensorType) -> onnx.TypeProto:
    """A type as TypeProto."""
    if value.kind == "map":
        assert value.key is not None
        assert value.element is not None
        return helper.make_map_type_proto(NUMBERS[value.key], _type_proto(value.element))
    if value.kind in ("sequence", "optional"):
        assert value.element is not None
        inner = _type_proto(value.element)
        return (
            helper.make_sequence_type_proto(inner)
            if value.kind == "sequence"
            else helper.make_optional_type_proto(inner)
        )
    assert value.dtype is not None
    return helper.make_tensor_type_proto(NUMBERS[value.dtype], value.shape)


def _to_standard(node: Node) -> onnx.NodeProto:
    """The node as ONNX knows it. Of qrun's own operators, QLinearMatMul becomes ONNX's, and Table a node whose output
    is like its first input: int8 or uint8, of the same shape."""
    if node.domain != schema.OWN:
        return node_proto(node)
    if node.op_type == "QLinearMatMul":
        return helper.make_node(node.op_type, node.inputs, node.outputs)
    return helper.make_node("Identity", node.inputs[:1], node.outputs)


def node_proto(node: Node) -> onnx.NodeProto:
    """The node as protobuf; empty lists are left out."""
    attributes = {k: v for k, v in node.attributes.items() if isinstance(v, np.ndarray) or v != ()}
    plain: dict[str, Any] = {
        k: onnx.numpy_helper.from_array(v)
        if isinstance(v, np.ndarray)
        else _type_proto(v)
        if isinstance(v, TensorType)
        else v
        for k, v in attributes.items()
    }
    return helper.make_node(node.op_type, node.inputs, node.outputs, node.name, domain=node.domain, **plain)


def single_node_model(node: Node) -> bytes:
    """A serialized model with this node alone, whose types it does not state."""
    inputs, outputs = ([onnx.ValueInfoProto(name=n) for n in names if n] for names in (node.inputs, node.outputs))
    graph = helper.make_graph([node_proto(node)], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, node.version)]).SerializeToString()


def _without_made_up(value: TensorType) -> TensorType:
    """The type, with sizes whose names ONNX made up (``unk__...``) replaced by None."""
    if not any(_is_made_up(size) for size in value.shape or ()):
        return value
    return replace(value, shape=tuple(None if _is_made_up(size) else size for size in value.shape or ()))


def _is_made_up(size: int | str | None) -> bool:
    """Whether onnx invented the name of an axis."""
    return isinstance(size, str) and size.startswith("unk__")
