"""onnxruntime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pickle import PickleBuffer
from typing import Any

import numpy as np
import onnx

from qrun.child import Crash, Failed, RemoteObject
from qrun.ir import Array, Model
from qrun.ir.compound import is_compound, unwrapped
from qrun.ir.types import BY_ONNX_NAME, DTYPES, NUMBERS, PACKED_BITS, type_name
from qrun.peers._common import bytes_of, proto_of, runtime_label, unfit
from qrun.peers._loaded import Limits, Loaded, load_failed, loading

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
"""Element types of outputs that Python cannot read from onnxruntime; float32 holds all their values."""
_WIDE = "__float32"


def load_ort(
    model: Model, data: bytes | None, outputs: Sequence[str], threads: int | None, optimize: bool, limits: Limits
) -> Loaded:
    """Raises UnsupportedError, RunError if onnxruntime crashes."""
    label, (limit, _) = runtime_label("ort", optimize), limits
    options = {"optimize": optimize, "threads": threads or int(not optimize), "settings": external_settings(model)}

    def remote(others: Mapping[str, Any]) -> RemoteObject:
        def arguments() -> tuple[object, ...]:
            sent = _widened(proto_of(model, data, outputs), others) if others else bytes_of(model, data, outputs)
            return "ort", loading(limit, model, threads), PickleBuffer(sent), options

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
    return Loaded(model, label, limits, session, (names, plain), encode_feeds, partial(_decoded, wanted))


def external_settings(model: Model) -> dict[str, str]:
    """Where onnxruntime finds the external data of a model that it is given as bytes."""
    if model.path is None or not model.external_files:
        return {}
    return {"model_external_initializers_file_folder_path": str(model.path.parent.resolve())}


def _widened(proto: onnx.ModelProto, others: Mapping[str, Any]) -> bytes:
    """The model with these outputs as float32 beside them."""
    for name in others:
        proto.graph.node.append(onnx.helper.make_node("Cast", [name], [name + _WIDE], to=onnx.TensorProto.FLOAT))
        proto.graph.output.append(onnx.ValueInfoProto(name=name + _WIDE))
    return proto.SerializeToString()


def encode_feeds(feeds: Mapping[str, Array]) -> dict[str, tuple[Array, int]]:
    """Feeds as the child takes them. Raises UnsupportedError for element types that cannot be handed over."""
    return {name: _encoded(array) for name, array in feeds.items()}


def _encoded(array: Array) -> tuple[Array, int]:
    if array.dtype in ORT_TYPES:
        return array, 0
    if is_compound(array):
        return unwrapped(array), 0
    if NUMBERS[array.dtype] not in range(16, 21):
        raise unfit(f"qrun cannot feed {type_name(array.dtype)} to onnxruntime")
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}"), NUMBERS[array.dtype]


def _decoded(wanted: Sequence[Any], made: Sequence[tuple[Any, int]]) -> list[Any]:
    """wanted: the element types of outputs that were asked for in float32."""
    return [
        array.astype(narrow) if narrow is not None else _typed(array, number)
        for narrow, (array, number) in zip(wanted, made, strict=True)
    ]


def _typed(value: Any, number: int) -> Any:
    """An output with its own element type; OrtValue.numpy gives bytes for some, and refuses others."""
    dtype = DTYPES.get(number)
    if dtype is None or (dtype in ORT_TYPES and value is not None):
        return value
    if value is None:
        raise unfit(f"qrun cannot read {type_name(dtype)} from onnxruntime")
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    if NUMBERS[dtype] in PACKED_BITS or array.itemsize != dtype.itemsize:
        raise unfit(f"qrun cannot read {type_name(dtype)} from onnxruntime")
    return array.view(dtype)
