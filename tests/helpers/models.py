"""Models of a few nodes, from what the nodes are and the shapes of what is fed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qrun.ir.types import NUMBERS

Shape = Sequence[int | str | None]
Tensor = Shape | np.ndarray[Any, Any] | onnx.TypeProto | None
"""What is known of a tensor: the shape of one of float32, None where it is open; an array like it; or a type."""
_VERSIONS = {"ai.onnx.ml": 3}
"""Of domains whose version is not 1."""
Tensors = Mapping[str, Tensor] | Iterable[onnx.ValueInfoProto] | str


def typed(kind: Any, shape: Shape | None = None) -> onnx.TypeProto:
    """The type of tensors of these elements, a numpy dtype or ONNX's number."""
    return helper.make_tensor_type_proto(kind if isinstance(kind, int) else NUMBERS[np.dtype(kind)], shape)


def make_model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Tensors,
    outputs: Tensors,
    constants: Mapping[str, Any] | Iterable[onnx.TensorProto] = (),
    opset: int = 21,
    **graph: Any,
) -> onnx.ModelProto:
    """A model of these nodes.

    inputs, outputs: by name, or as ONNX describes them, or the names of float32 tensors of open shape, as words.
    constants:       initializers by name, arrays or what numpy makes arrays of; or as ONNX stores them.
    graph:           what else onnx.helper.make_graph takes.
    """
    stored = list(constants)
    if isinstance(constants, Mapping):
        stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    made = helper.make_graph(list(nodes), "g", _infos(inputs), _infos(outputs), stored, **graph)
    opsets = {domain: _VERSIONS.get(domain, 1) for domain in sorted(_domains(made))} | {"": opset}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(made, opset_imports=imports, ir_version=10)


def _domains(graph: onnx.GraphProto) -> set[str]:
    inner = (_domains(each.g) for node in graph.node for each in node.attribute if each.HasField("g"))
    return {node.domain for node in graph.node}.union(*inner)


def _infos(tensors: Tensors) -> list[onnx.ValueInfoProto]:
    if isinstance(tensors, str):
        tensors = dict.fromkeys(tensors.split())
    if not isinstance(tensors, Mapping):
        return list(tensors)
    return [helper.make_value_info(name, _type(tensor)) for name, tensor in tensors.items()]


def _type(tensor: Tensor) -> onnx.TypeProto:
    if isinstance(tensor, onnx.TypeProto):
        return tensor
    if isinstance(tensor, np.ndarray):
        return typed(tensor.dtype, tensor.shape)
    return typed(TensorProto.FLOAT, tensor)
