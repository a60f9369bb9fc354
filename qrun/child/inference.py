"""onnx's inference of shapes and types, for the child: it is C++, which some models have made read at address 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx
import onnx.shape_inference
from onnx import helper

Expansion = tuple[str, Sequence[tuple[int, int | None]], int | None]
Expand = Callable[[str, str, int], Expansion | None]
"""Maps a domain, an operator and its number of inputs to what it computes between DequantizeLinear and QuantizeLinear.

That is a standard operator; places of its operands and of their scales (None: not quantized); and the place of the
output's scale, which its zero point follows (None: the output is not quantized). None for operators that ONNX infers
itself.
"""


def infer_types(model: bytes) -> list[bytes]:
    """A ValueInfoProto for each tensor of the main graph whose type can be inferred."""
    proto = onnx.load_model_from_string(model)
    made = onnx.shape_inference.infer_shapes(proto, strict_mode=False).graph
    return [value.SerializeToString() for value in (*made.value_info, *made.output)]


def shapes_made(
    model: bytes, expansions: Mapping[tuple[str, str, int], Expansion]
) -> dict[str, tuple[int | None, ...]]:
    """The shape of each tensor that nodes of the main graph make, if it follows without the shapes stated in the file.

    expansions: the results of an Expand, by its arguments.
    """
    proto = onnx.load_model_from_string(model)
    if expansions:
        nodes = [one for node in proto.graph.node for one in plain_nodes(node, lambda *key: expansions.get(key))]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
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

    types: a TypeProto for each input. values: a TensorProto for each input whose value is known.
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


def plain_nodes(node: onnx.NodeProto, expand: Expand) -> Sequence[onnx.NodeProto]:
    """The node itself, or standard nodes that make tensors of the same types and shapes."""
    try:
        return list(_standard(node, expand))
    except IndexError:
        return [node]


def _standard(node: onnx.NodeProto, expand: Expand) -> Iterator[onnx.NodeProto]:
    """Yields these nodes. Raises IndexError if an input or output is missing."""
    computes = expand(node.domain, node.op_type, len(node.input))
    attributes = {a.name: a for a in node.attribute}
    turned = attributes.pop("channels_last", None)
    if computes is None or (turned is not None and turned.i):
        yield node
        return
    op_type, operands, out = computes
    inputs = []
    for index, scale in operands:
        inputs.append(node.input[index])
        if scale is not None:
            inputs[-1] = f"{node.output[0]} <- {len(inputs)} {inputs[-1]}"
            yield helper.make_node("DequantizeLinear", [node.input[index], node.input[scale]], inputs[-1:])
    scales = [] if out is None else node.input[out : out + 2]
    made = f"{node.output[0]} <-" if any(scales) else node.output[0]
    float_node = helper.make_node(op_type, inputs, [made])
    float_node.attribute.extend(attributes.values())
    yield float_node
    if any(scales):
        yield helper.make_node("QuantizeLinear", [made, *scales], node.output)
