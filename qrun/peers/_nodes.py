"""Single nodes of a model in another runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from qrun.ir import Array, Model, Node
from qrun.ir.infer import node_proto
from qrun.ir.types import NUMBERS
from qrun.peers._common import proto_of
from qrun.peers._peer import Peer


class Nodes:
    """The nodes of a model's file, each to be run by itself in another runtime.

    names: of the tensors that the file's nodes make; a model has others where qrun has put functions in place of calls.
    """

    def __init__(self, model: Model, data: bytes | None = None) -> None:
        self.model = model
        self._proto = proto_of(model, data, ())
        self._nodes = {_key(node): node for node in self._proto.graph.node}

    @property
    def names(self) -> set[str]:
        return {name for node in self._nodes.values() for name in node.output if name}

    def alone(
        self,
        node: Node,
        values: Mapping[str, Array],
        backend: str,
        max_memory: int | None = None,
        max_time: float | None = None,
    ) -> tuple[Array, ...]:
        """What the runtime makes of one node.

        values: its inputs by name; those that the model stores become initializers.
        Raises UnsupportedError if the runtime refuses the node, RunError if it fails or crashes.
        """
        key = (node.domain, node.op_type, node.inputs, node.outputs)
        opsets = {o.domain: o.version for o in self._proto.opset_import}
        found = self._nodes.get(key)
        if found is None:  # it comes from a function
            found, opsets[node.domain] = node_proto(node), node.version
        feeds = {name: array for name, array in values.items() if self.model.constant(name) is None}
        inputs = [onnx.helper.make_tensor_value_info(n, NUMBERS[a.dtype], a.shape) for n, a in feeds.items()]
        stored = [onnx.numpy_helper.from_array(a, n) for n, a in values.items() if n not in feeds]
        names = [name for name in node.outputs if name]
        graph = onnx.helper.make_graph([found], "node", inputs, [onnx.ValueInfoProto(name=n) for n in names], stored)
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        proto = onnx.helper.make_model(graph, opset_imports=imports)
        proto.ir_version = self._proto.ir_version
        lone = replace(self.model, path=None, source=f"{self.model.label}, node {node.index} {node.label}")
        data = proto.SerializeToString()
        peer = Peer(lone, backend, data=data, outputs=names, optimize=False, max_memory=max_memory, max_time=max_time)
        return tuple(peer.execute(feeds).outputs.values())

    def inside(self, node: Node, graph: str, part: Model) -> bytes:
        """A graph of a node as a file of its own. part: the graph as qrun has it, with all that it stores.

        Raises KeyError for a node that comes from a function, ValueError if the file would be too large.
        """
        found = self._nodes[(node.domain, node.op_type, node.inputs, node.outputs)]
        body = next(a.g for a in found.attribute if a.name == graph)
        inputs = [onnx.helper.make_tensor_value_info(v.name, NUMBERS[v.dtype], None) for v in part.inputs if v.dtype]
        outputs = [onnx.ValueInfoProto(name=v.name) for v in part.outputs]
        stored = [onnx.numpy_helper.from_array(array, name) for name, array in part.constants.items()]
        made = onnx.helper.make_graph(body.node, graph, inputs, outputs, stored)
        proto = onnx.helper.make_model(made, opset_imports=self._proto.opset_import)
        proto.ir_version = self._proto.ir_version
        proto.functions.extend(self._proto.functions)
        return proto.SerializeToString()


def _key(node: onnx.NodeProto) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return domain, node.op_type, tuple(node.input), tuple(node.output)
