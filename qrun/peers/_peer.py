"""Runs a model, one of its nodes, or onnxruntime's optimized graph of it, in another runtime."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from pickle import PickleBuffer
from time import perf_counter_ns
from typing import Any, Unpack

import numpy as np
import onnx

from qrun.child import Crash, Failed, RemoteObject
from qrun.errors import LimitError, QrunError
from qrun.ir import Array, Model, Node
from qrun.ir.compound import from_runtime, is_compound, to_runtime
from qrun.ir.infer import node_proto
from qrun.ir.types import BY_ONNX_NAME, DTYPES, NUMBERS, PACKED_BITS, type_name
from qrun.memory import ResourceLimits
from qrun.peers._loaded import (
    Limits,
    Loaded,
    bytes_of,
    load_failed,
    loading_limit,
    proto_of,
    runtime_label,
    unfit_error,
)
from qrun.running.profiling import Profile, Progress, TimedRunner, measure_in_turns
from qrun.running.session import RunResult

ORT_TYPES = {
    np.dtype(t)
    for t in (
        np.float32,
        np.float64,
        np.float16,
        np.uint8,
        np.int8,
        np.uint16,
        np.int16,
        np.uint32,
        np.int32,
        np.uint64,
        np.int64,
        np.bool_,
        np.object_,
    )
}
UNREADABLE = {dtype for dtype, number in NUMBERS.items() if number in PACKED_BITS or number in (16, 18, 19, 20)}
"""Element types that Python cannot read from onnxruntime's outputs; float32 holds all their values."""
_WIDE = "__float32"


def load_ort(
    model: Model, data: bytes | None, outputs: Sequence[str], threads: int | None, optimize: bool, limits: Limits
) -> Loaded:
    """Load a model in onnxruntime. Raises UnsupportedError if it refuses the model, RunError if it crashes."""
    label, (limit, _) = runtime_label("ort", optimize), limits
    options = {"optimize": optimize, "threads": threads or int(not optimize), "settings": external_settings(model)}

    def remote(others: Mapping[str, Any]) -> RemoteObject:
        def arguments() -> tuple[object, ...]:
            sent = _widen(proto_of(model, data, outputs), others) if others else bytes_of(model, data, outputs)
            return "ort", loading_limit(limit, model, threads), PickleBuffer(sent), options

        return RemoteObject("load", arguments)

    try:
        session = remote({})
        types = {name: BY_ONNX_NAME.get(kind[7:-1]) for name, kind in session.answer["outputs"].items()}
        names, others = list(outputs), {name: t for name in outputs if (t := types[name]) in UNREADABLE}
        if others:
            session = remote(others)
            names = [f"{name}{_WIDE}" if name in others else name for name in outputs]
    except (Failed, Crash) as error:
        load_failed(label, model, error, limit)
    plain = all(name in others or types[name] is None or types[name] in ORT_TYPES for name in outputs)
    wanted = [others.get(name) for name in outputs]
    return Loaded(model, label, limits, session, (names, plain), encode_feeds, partial(_decode, wanted))


def external_settings(model: Model) -> dict[str, str]:
    """The session setting that tells onnxruntime where the external data of a model passed as bytes is; or none."""
    if model.path is None or not model.external_files:
        return {}
    return {"model_external_initializers_file_folder_path": str(model.path.parent.resolve())}


def _widen(proto: onnx.ModelProto, others: Mapping[str, Any]) -> bytes:
    """The model with a float32 copy of each of these outputs added."""
    for name in others:
        proto.graph.node.append(onnx.helper.make_node("Cast", [name], [name + _WIDE], to=onnx.TensorProto.FLOAT))
        proto.graph.output.append(onnx.ValueInfoProto(name=name + _WIDE))
    return proto.SerializeToString()


def encode_feeds(feeds: Mapping[str, Array]) -> dict[str, tuple[Array, int]]:
    """Convert feeds for the child process. Raises UnsupportedError for element types that cannot be passed."""
    return {name: _encode_for_ort(array) for name, array in feeds.items()}


def _encode_for_ort(array: Array) -> tuple[Array, int]:
    """An array that onnxruntime can take, and ONNX's number of its type (0 if numpy has it)."""
    if array.dtype in ORT_TYPES:
        return array, 0
    if is_compound(array):
        return to_runtime(array), 0
    if NUMBERS[array.dtype] not in range(16, 21):
        raise unfit_error(f"qrun cannot feed {type_name(array.dtype)} to onnxruntime")
    return np.asarray(array, order="C").view(f"u{array.dtype.itemsize}"), NUMBERS[array.dtype]


def _decode(wanted: Sequence[Any], made: Sequence[tuple[Any, int]]) -> list[Any]:
    """Convert outputs from the child process. wanted: the element types of outputs that were requested as float32."""
    return [
        array.astype(narrow) if narrow is not None else _with_type(array, number)
        for narrow, (array, number) in zip(wanted, made, strict=True)
    ]


def _with_type(value: Any, number: int) -> Any:
    """An output with its own element type; OrtValue.numpy returns bytes for some types, and refuses others."""
    dtype = DTYPES.get(number)
    if dtype is None or (dtype in ORT_TYPES and value is not None):
        return value
    if value is None:
        raise unfit_error(f"qrun cannot read {type_name(dtype)} from onnxruntime")
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    if NUMBERS[dtype] in PACKED_BITS or array.itemsize != dtype.itemsize:
        raise unfit_error(f"qrun cannot read {type_name(dtype)} from onnxruntime")
    return array.view(dtype)


PEERS = ("ort", "onnx-ref")


class Peer:
    """A model ready to run in another runtime, in a child process because the runtime may crash.

    backend:  ``ort`` (onnxruntime on the CPU) or ``onnx-ref`` (onnx.reference).
    data:     the bytes of the file, for a model that was not read from a path.
    outputs:  names of tensors that nodes make, to return in place of the graph's outputs; () for the graph's outputs.
    optimize: let onnxruntime rewrite the graph as it does by default? Otherwise it runs node by node as written.
    max_memory: bytes that loading, and each run, may take on top of the runtime's own (on Linux); None: no limit.
    max_time: seconds that a run may take; None: no limit.
    label:    the runtime with its version, for the header of a report. load_ns: the time of loading the model.

    Raises UnsupportedError if the runtime is not installed or refuses the model, RunError (QR015) if it crashes,
    MemoryLimitError. A run also raises TimeLimitError.
    """

    def __init__(
        self,
        model: Model,
        backend: str,
        *,
        data: bytes | None = None,
        outputs: Sequence[str] = (),
        threads: int | None = None,
        optimize: bool = True,
        max_memory: int | None = None,
        max_time: float | None = None,
    ) -> None:
        self.model = model
        self.backend = backend
        self.outputs = tuple(dict.fromkeys(outputs)) or tuple(v.name for v in model.outputs)
        self.max_memory = max_memory
        self.limits = max_memory, None if max_time == math.inf else max_time
        self._loaded = (
            load_ort(model, data, self.outputs, threads, optimize, self.limits)
            if backend == "ort"
            else load_reference(model, data, self.outputs, self.limits)
        )
        self.label = self._loaded.label
        self.load_ns = int(self._loaded.remote.answer["ns"])

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once, as Session.execute does, but without node events and observations.

        outputs: some of the peer's outputs. The result's duration is the time in the runtime. Raises RunError with the
        runtime's message, or if it crashes, UnsupportedError for element types that cannot be passed.
        """
        start = perf_counter_ns()
        arrays, duration = self._loaded.run(feeds)
        stated = {value.name: value for value in self.model.outputs}
        named = {name: from_runtime(made, stated.get(name)) for name, made in zip(self.outputs, arrays, strict=True)}
        return RunResult({name: named[name] for name in outputs or self.outputs}, (), duration, 0, start)

    def runner(self, feeds: Mapping[str, Array], settle: float = 0.0) -> TimedRunner:
        """A runner of many runs; feeds and outputs stay in the child process."""
        return self._loaded.runner(feeds, settle)

    def runners(self, feeds: Mapping[str, Array]) -> tuple[TimedRunner, ...]:
        """The runners, as `Session.runners`, but without one that times nodes."""
        return (self.runner(feeds),)

    def profile(
        self,
        feeds: Mapping[str, Array],
        *,
        runs: int | None = None,
        warmup: int = 1,
        seconds: float = 3.0,
        progress: Progress | None = None,
    ) -> Profile:
        """Run repeatedly. The profile has no times of nodes."""
        return measure_in_turns(self.runners(feeds), runs, warmup, seconds, progress)[0]


def load_reference(model: Model, data: bytes | None, outputs: Sequence[str], limits: Limits) -> Loaded:
    """Load a model in onnx.reference, in a child process."""
    label, (limit, _) = runtime_label("onnx-ref"), limits
    folder = str(model.path.parent.resolve()) if model.path is not None and model.external_files else ""

    def arguments() -> tuple[object, ...]:
        return "onnx-ref", loading_limit(limit, model), PickleBuffer(bytes_of(model, data, outputs)), {"folder": folder}

    try:
        remote = RemoteObject("load", arguments)
    except (Failed, Crash) as error:
        load_failed(label, model, error, limit)
    return Loaded(model, label, limits, remote, (list(outputs),), _encode_feeds, list)


def _encode_feeds(feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Inputs as onnx.reference takes them."""
    return {name: to_runtime(array) for name, array in feeds.items()}


def optimized_peer(
    model: Model, data: bytes | None, outputs: Sequence[str], **limits: Unpack[ResourceLimits]
) -> Peer | None:
    """A peer that runs onnxruntime's optimized graph as it is, with all tensors of the model that remain in it.

    outputs: the graph's outputs. None if no other tensor remains, or if the graph is not available (it is larger than a
    file may be, or is refused as written). Raises MemoryLimitError.
    """
    try:
        found = _optimize(model, data, limits.get("max_memory"))
        made = {name for node in found.graph.node for name in node.output if name}
        kept = [name for name in model.producers if name in made and name not in outputs]
        if not kept:
            return None
        written = found.SerializeToString()
        return Peer(model, "ort", data=written, outputs=[*outputs, *kept], optimize=False, **limits)
    except LimitError:
        raise
    except (QrunError, Failed, Crash, OSError, ValueError):
        return None


def _optimize(model: Model, data: bytes | None, max_memory: int | None) -> onnx.ModelProto:
    """The model as onnxruntime optimizes it."""
    with tempfile.TemporaryDirectory(prefix="qrun-") as folder:
        path = Path(folder) / "model.onnx"
        options = {"settings": external_settings(model), "optimized": str(path)}
        sent = proto_of(model, data, ()).SerializeToString()
        RemoteObject("load", lambda: ("ort", loading_limit(max_memory, model, None), PickleBuffer(sent), options))
        return onnx.load_model(path)


class Nodes:
    """Runs single nodes of a model's file in another runtime.

    names: the tensors that the file's nodes make. The loaded model has others where qrun has inlined functions.
    """

    def __init__(self, model: Model, data: bytes | None = None) -> None:
        self.model = model
        self._proto = proto_of(model, data, ())
        self._nodes = {_key(node): node for node in self._proto.graph.node}

    @property
    def names(self) -> set[str]:
        """The tensors that the optimized model makes."""
        return {name for node in self._nodes.values() for name in node.output if name}

    def alone(
        self,
        node: Node,
        values: Mapping[str, Array],
        backend: str,
        max_memory: int | None = None,
        max_time: float | None = None,
    ) -> tuple[Array, ...]:
        """Run one node in the runtime and return its outputs.

        values: its inputs by name; inputs that the model stores become initializers.
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
        """A subgraph of a node as the bytes of a model file. part: the subgraph as qrun's model, with its constants.

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
    """A node by operator, inputs and outputs."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return domain, node.op_type, tuple(node.input), tuple(node.output)
