"""Writes a converted model as a file. Nodes and tensors that stay are those of the source file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from qrun.declare.stored import constants_of, parts
from qrun.io.files import replace_file
from qrun.ir import Model, Node
from qrun.ir.load import load
from qrun.ir.wire import GRAPH, INITIALIZER, RAW_DATA, field_head

Payloads = Mapping[bytes, memoryview]
"""Raw data of large tensors by the stand-ins that messages hold for it, see `qrun.ir.wire`."""
_LARGEST = 2**31 - (1 << 16)
"""The most bytes of a file without external data: the limit of a protobuf message, less some room."""
_OUTSIDE, _ALIGNED = 1024, 64
"""Bytes from which a tensor goes to the file of external data, and the multiple at which it starts there."""
_INITIALIZERS, _FUNCTIONS = 4, 8
"""The IR versions from which initializers need not be inputs, and from which models have functions."""


def to_proto(source: onnx.ModelProto, model: Model, functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    """The model as a ModelProto, made from the `source` of its file. functions: more model-local functions.

    Metadata, functions, names, stored tensors and the attributes of nodes that stay are those of the source. Tensors of
    external data stay references.
    """
    made = onnx.ModelProto()
    made.CopyFrom(source)
    graph = made.graph
    old = _makers(source)
    del graph.node[:]
    graph.node.extend(_node(node, old) for node in model.nodes)
    _make_unique(graph.node)
    _keep(graph.initializer, lambda tensor: tensor.name in model.constants)
    _keep(graph.sparse_initializer, lambda tensor: tensor.values.name in model.constants)
    _keep(graph.value_info, lambda value: value.name in model.producers)
    tensors = {*model.producers, *model.fed, *model.constants}
    _keep(graph.quantization_annotation, lambda note: note.tensor_name in tensors)
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(model.constants[name], order="C"), name)
        for name in parts(model.constants)
        if name not in stored
    )
    imported = {_domain(entry.domain) for entry in made.opset_import}
    made.opset_import.extend(
        helper.make_opsetid(domain, number) for domain, number in model.opsets.items() if domain not in imported
    )
    made.ir_version = max(made.ir_version, _FUNCTIONS if functions else _INITIALIZERS)
    made.functions.extend(_missing(functions, source))
    return made


def without_calls(source: onnx.ModelProto, model: Model, functions: Sequence[onnx.FunctionProto]) -> Model:
    """The model with the bodies of model-local functions, those of its file and `functions`, in place of their calls.

    Constants are left out of the message in which onnx replaces the calls, because weights would be copied several
    times.
    """
    bare = onnx.ModelProto(ir_version=max(source.ir_version, _FUNCTIONS))
    bare.opset_import.extend(helper.make_opsetid(domain, number) for domain, number in model.opsets.items())
    bare.functions.extend((*source.functions, *_missing(functions, source)))
    old = _makers(source)
    bare.graph.node.extend(_node(node, old) for node in model.nodes)
    given = {*model.constants, *model.fed}
    bare.graph.initializer.extend(onnx.TensorProto(name=name, data_type=1, dims=[0]) for name in given)
    made = load(bare, source=model.label)
    new = {name: part for name, part in parts(made.constants).items() if name not in given}
    constants = constants_of({**parts(model.constants), **new})
    return replace(model, nodes=made.nodes, constants=constants, opsets=made.opsets)


def _missing(functions: Sequence[onnx.FunctionProto], source: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """The functions that a file does not have yet."""
    there = {(each.domain, each.name) for each in source.functions}
    return [each for each in functions if (each.domain, each.name) not in there]


def _makers(source: onnx.ModelProto) -> Mapping[str, onnx.NodeProto]:
    """The nodes of a file by their outputs."""
    return {name: node for node in source.graph.node for name in node.output if name}


def _make_unique(nodes: Iterable[onnx.NodeProto]) -> None:
    """Number the nodes whose name another node has, because onnxruntime refuses equal names."""
    taken = {node.name for node in nodes}
    seen = set[str]()
    for node in nodes:
        base, number = node.name, 2
        while node.name and node.name in seen:
            name = f"{base}_{number}"
            node.name, number = (name if name not in taken else node.name), number + 1
        seen.add(node.name)


def _domain(name: str) -> str:
    """The domain as `Node` has it."""
    return "" if name == "ai.onnx" else name


def _keep(values: Any, wanted: Callable[[Any], bool]) -> None:
    """Keep the wanted messages of a repeated field."""
    for at in range(len(values) - 1, -1, -1):
        if not wanted(values[at]):
            del values[at]


def _node(node: Node, old: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto:
    """The node. One that makes a tensor of the source with the same operator has the attributes that it has there."""
    source = next((old[name] for name in node.outputs if name in old), None)
    if source is not None and (source.op_type, _domain(source.domain)) == (node.op_type, node.domain):
        made = onnx.NodeProto()
        made.CopyFrom(source)
        made.ClearField("input")
        made.ClearField("output")
        made.input.extend(node.inputs)
        made.output.extend(node.outputs)
        return made
    attributes: dict[str, Any] = {name: value for name, value in node.attributes.items() if value != ()}
    return helper.make_node(
        node.op_type, node.inputs, node.outputs, name=node.name, domain=node.domain or None, **attributes
    )


def has_external_data(proto: onnx.ModelProto) -> bool:
    """Whether stored tensors of the main graph are in other files."""
    return any(external_data_helper.uses_external_data(tensor) for tensor in proto.graph.initializer)


def save(proto: onnx.ModelProto, target: str, folder: Path, outside: bool, payloads: Payloads) -> list[str]:
    """Write a model; returns the names of the files. folder: of the source's external data. payloads: of the tensors
    whose raw data is a stand-in.

    outside: large tensors go to a file of external data beside it, ``TARGET.data``; they do too if one file would be
    too large. Raises CallError if a file cannot be written.
    """
    external_data_helper.load_external_data_for_model(proto, str(folder))
    data = {tensor.name: payloads.get(tensor.raw_data, tensor.raw_data) for tensor in proto.graph.initializer}
    large = [tensor for tensor in proto.graph.initializer if len(data[tensor.name]) >= _OUTSIDE]
    files = [target]
    with ExitStack() as open_files:  # both files replace old ones, or none does
        if large and (outside or proto.ByteSize() + sum(map(len, data.values())) > _LARGEST):
            files.append(f"{target}.data")
            stream = open_files.enter_context(replace_file(files[-1]))
            for tensor in large:
                stream.write(bytes(-stream.tell() % _ALIGNED))
                start, size = stream.tell(), stream.write(data[tensor.name])
                external_data_helper.set_external_data(tensor, os.path.basename(files[-1]), start, size)
                tensor.ClearField("raw_data")
        _write(open_files.enter_context(replace_file(target)), proto, payloads)
    return files


def _write(stream: IO[bytes], proto: onnx.ModelProto, payloads: Payloads) -> None:
    """Write a message with the payloads in place of their stand-ins. A message that holds them all, and its bytes,
    would be two more copies of the weights."""
    tensors = list[bytes | memoryview]()
    for tensor in proto.graph.initializer:
        payload = payloads.get(tensor.raw_data, memoryview(b""))
        if payload:
            tensor.ClearField("raw_data")
        head = tensor.SerializeToString() + (field_head(RAW_DATA, len(payload)) if payload else b"")
        tensors += [field_head(INITIALIZER, len(head) + len(payload)) + head, payload]
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    stream.write(proto.SerializeToString() + field_head(GRAPH, len(graph) + sum(map(len, tensors))) + graph)
    for piece in tensors:
        stream.write(piece)
