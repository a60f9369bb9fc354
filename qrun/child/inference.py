"""onnx's inference of shapes and types: C++ that hostile and half-known models have made read at address 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx.shape_inference
from onnx import helper


def inferred(model: bytes) -> list[bytes]:
    """A ValueInfoProto for each tensor of the main graph whose type follows."""
    proto = onnx.load_model_from_string(model)
    made = onnx.shape_inference.infer_shapes(proto, strict_mode=False).graph
    return [value.SerializeToString() for value in (*made.value_info, *made.output)]


def shapes_made(model: bytes) -> dict[str, tuple[int | None, ...]]:
    """The shape of each tensor that nodes of the main graph make, as far as it follows without what the file states."""
    proto = onnx.load_model_from_string(model)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    made = onnx.shape_inference.infer_shapes(proto, strict_mode=False).graph
    shapes = ((v.name, v.type.tensor_type) for v in (*made.value_info, *made.output))
    return {
        name: tuple([dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim])
        for name, kind in shapes
        if kind.HasField("shape")
    }


def node_outputs(
    node: bytes, version: int, types: Mapping[str, bytes], values: Sequence[bytes], opsets: Mapping[str, int]
) -> dict[str, bytes]:
    """The TypeProto of each output of a NodeProto whose operator has this version.

    types: a TypeProto for each input. values: a TensorProto for each that is known.
    """
    proto = onnx.NodeProto.FromString(node)
    made = onnx.shape_inference.infer_node_outputs(
        onnx.defs.get_schema(proto.op_type, version, proto.domain),
        proto,
        {name: onnx.TypeProto.FromString(kind) for name, kind in types.items()},
        {value.name: value for value in map(onnx.TensorProto.FromString, values)},
        opset_imports=[helper.make_opsetid(domain, number) for domain, number in opsets.items()],
    )
    return {name: kind.SerializeToString() for name, kind in made.items()}
