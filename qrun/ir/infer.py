"""Shapes and types that a file does not state, by onnx.shape_inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
from onnx import helper

from qrun.ir import schema
from qrun.ir.graph import value_type
from qrun.ir.load import parse, read_file
from qrun.ir.model import Array, Model, Node, TensorType
from qrun.ir.types import NUMBERS

MAX_BYTES = 2**31 - 1
"""What onnx.shape_inference takes: one serialized protobuf."""


@dataclass(frozen=True, slots=True)
class Computes:
    """A quantized operator as DequantizeLinear, a standard operator and QuantizeLinear.

    pairs: places of its operands and of their scales (None: not quantized); none: from place 2 on, every three.
    scale: the place of the output's scale, which its zero point follows; None: the output is not quantized.
    """

    op_type: str
    pairs: Sequence[tuple[int, int | None]]
    scale: int | None


_ONE, _TWO = ((0, 1),), ((0, 1), (3, 4))
PLAIN = {
    "QuantizeLinear": Computes("Identity", ((0, None),), 1),
    "DequantizeLinear": Computes("Identity", _ONE, None),
    "QLinearConv": Computes("Conv", _TWO, 6),
    "QLinearAdd": Computes("Add", _TWO, 6),
    "QLinearMul": Computes("Mul", _TWO, 6),
    "QGemm": Computes("Gemm", _TWO, 7),
    "QLinearWhere": Computes("Where", ((0, None), (1, 2), (4, 5)), 7),
    "QLinearConcat": Computes("Concat", (), 0),
    "QLinearAveragePool": Computes("AveragePool", _ONE, 3),
    "QLinearGlobalAveragePool": Computes("GlobalAveragePool", _ONE, 3),
    "QLinearSigmoid": Computes("Sigmoid", _ONE, 3),
    "QLinearLeakyRelu": Computes("LeakyRelu", _ONE, 3),
    "QLinearSoftmax": Computes("Softmax", _ONE, 3),
    "MatMulIntegerToFloat": Computes("MatMul", ((0, 2), (1, 3)), None),
    "DynamicQuantizeMatMul": Computes("MatMul", ((0, None), (1, 2)), None),
}
"""Operators of com.microsoft (onnxruntime, docs/ContribOperators.md)."""


def with_inferred(model: Model, source: str | Path | bytes) -> Model:
    """The model with what follows from its inputs and operators among its types; what the file states comes first."""
    found = {v.name: v for v in (*model.inputs, *model.outputs)}
    stated = {name: value for name, value in {**found, **model.types}.items() if value.shape is not None}
    return replace(model, types={**model.types, **infer(source), **stated})


def infer(source: str | Path | bytes) -> Mapping[str, TensorType]:
    """Name to type and shape for the tensors of the main graph, as far as ONNX infers them; nothing if that fails.

    Of operators that ONNX does not define, those of PLAIN are inferred as what they compute; others end the inference on
    their paths.
    """
    data = source if isinstance(source, bytes) else read_file(Path(source))
    if len(data) > MAX_BYTES:
        return {}
    try:
        proto = parse(data, str(source))
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        named = {name for node in proto.graph.node for name in node.output}
        nodes = [plain for node in proto.graph.node for plain in _plain(node)]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        graph = onnx.shape_inference.infer_shapes(proto, strict_mode=False).graph
        return {v.name: _without_made_up(value_type(v)) for v in (*graph.value_info, *graph.output) if v.name in named}
    except Exception:
        return {}


def infer_node(
    node: Node, opsets: Mapping[str, int], types: Mapping[str, TensorType], values: Mapping[str, Array]
) -> Mapping[str, TensorType]:
    """Name to type and shape for what one node makes, as far as ONNX infers them; nothing if that fails.

    types: of its inputs. values: of those that are known; they should be small.
    """
    found = dict(types)
    try:
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        for proto in _plain(_known(node)):
            definition = onnx.defs.get_schema(proto.op_type, opsets.get(proto.domain, 1), proto.domain)
            inputs = [name for name in proto.input if name]
            given = {name: _type_proto(found[name]) for name in inputs}
            data = {name: onnx.numpy_helper.from_array(values[name], name) for name in inputs if name in values}
            made = onnx.shape_inference.infer_node_outputs(definition, proto, given, data, opset_imports=imports)
            infos = [onnx.ValueInfoProto(name=name, type=kind) for name, kind in made.items()]
            found |= {info.name: _without_made_up(value_type(info)) for info in infos}
    except Exception:
        return {}
    return {name: found[name] for name in node.outputs if name in found}


def _type_proto(value: TensorType) -> onnx.TypeProto:
    assert value.dtype is not None
    return helper.make_tensor_type_proto(NUMBERS[value.dtype], value.shape)


def _known(node: Node) -> onnx.NodeProto:
    """A node of qrun's own operators, which keep the first input's shape, in the words of ONNX; others as they are."""
    if node.domain == schema.OWN:
        return helper.make_node("Identity", node.inputs[:1], node.outputs[:1])
    return node_proto(node)


def node_proto(node: Node) -> onnx.NodeProto:
    """The node as protobuf; empty lists are left out."""
    attributes = {k: v for k, v in node.attributes.items() if isinstance(v, np.ndarray) or v != ()}
    plain: dict[str, Any] = {
        k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()
    }
    return helper.make_node(node.op_type, node.inputs, node.outputs, node.name, domain=node.domain, **plain)


def _plain(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """The node, or the standard nodes that make tensors of the same types and shapes."""
    try:
        return list(_standard(node))
    except IndexError:
        return [node]


def _standard(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Raises IndexError where an input or output is missing."""
    computes = PLAIN.get(node.op_type) if node.domain == "com.microsoft" else None
    attributes = {a.name: a for a in node.attribute}
    turned = attributes.pop("channels_last", None)
    if computes is None or (turned is not None and turned.i):
        yield node
        return
    inputs = []
    for place, scale in computes.pairs or [(p, p + 1) for p in range(2, len(node.input) - 1, 3)]:
        inputs.append(node.input[place])
        if scale is not None:
            inputs[-1] = f"{node.output[0]} <- {len(inputs)} {inputs[-1]}"
            yield helper.make_node("DequantizeLinear", [node.input[place], node.input[scale]], inputs[-1:])
    scales = [] if computes.scale is None else node.input[computes.scale : computes.scale + 2]
    made = f"{node.output[0]} <-" if any(scales) else node.output[0]
    float_node = helper.make_node(computes.op_type, inputs, [made])
    float_node.attribute.extend(attributes.values())
    yield float_node
    if any(scales):
        yield helper.make_node("QuantizeLinear", [made, *scales], node.output)


def _without_made_up(value: TensorType) -> TensorType:
    """Sizes that ONNX could only give a name of its own are unknown."""
    if value.shape is None:
        return value
    return replace(value, shape=tuple(None if str(d).startswith("unk__") else d for d in value.shape))
