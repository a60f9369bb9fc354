"""Networks of float16, as exporters write them: inputs and outputs stay float32, and are cast inside."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with weights, and everything between its inputs and outputs, in float16."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    constants = [_half(tensor) for tensor in graph.initializer]
    del graph.initializer[:]
    graph.initializer.extend(constants)
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                attribute.t.CopyFrom(_half(attribute.t))
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    ends = {value.name: f"{value.name}_half" for value in (*graph.input, *graph.output) if _single(value)}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [ends.get(name, name) for name in names]
    before = [_cast(value.name, ends[value.name], TensorProto.FLOAT16) for value in graph.input if value.name in ends]
    after = [_cast(ends[value.name], value.name, TensorProto.FLOAT) for value in graph.output if value.name in ends]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def _single(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == TensorProto.FLOAT)


def _half(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"Cast_{target}", to=to)
