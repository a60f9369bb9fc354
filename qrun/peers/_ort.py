"""onnxruntime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from qrun.errors import UnsupportedError
from qrun.ir import Array, Model
from qrun.ir.types import BY_ONNX_NAME, DTYPES, NUMBERS, PACKED_BITS, type_name
from qrun.peers._common import Runner, refused, runtime_label, unfit

ORT_TYPES = {
    np.dtype(t)
    for t in (
        np.float32, np.float64, np.float16, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64,
        np.int64, np.bool_, np.object_,
    )
}  # fmt: skip


def ort_runner(
    model: Model, proto: onnx.ModelProto, outputs: Sequence[str], threads: int | None, optimize: bool
) -> tuple[str, Runner]:
    try:
        import onnxruntime as ort
    except ImportError:
        raise UnsupportedError(
            "QR012",
            "backend-missing",
            "onnxruntime is not installed",
            fixes=["pip install 'onnx-qrun[ort]'", "onnx-ref in place of ort needs nothing more"],
        ) from None
    ort.set_default_logger_severity(4)
    label = runtime_label("ort", optimize)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if threads:
        options.intra_op_num_threads = threads
    if model.path is not None and model.external_files:
        folder = str(model.path.parent.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)

    def session_of(proto: onnx.ModelProto) -> Any:
        try:
            return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise refused(label, model, error) from error

    session = session_of(proto)
    types = {value.name: BY_ONNX_NAME.get(value.type[7:-1]) for value in session.get_outputs()}
    names, others = list(outputs), {name: t for name in outputs if (t := types[name]) in UNREADABLE}
    if others:
        session = session_of(_widened(proto, others))
        names = [f"{name}{_WIDE}" if name in others else name for name in outputs]
    plain = all(name in others or types[name] is None or types[name] in ORT_TYPES for name in outputs)

    def run(feeds: Mapping[str, Array]) -> Sequence[Any]:
        if plain and all(a.dtype in ORT_TYPES for a in feeds.values()):
            made = list(session.run(names, dict(feeds)))
        else:
            values = {name: _value(ort, array) for name, array in feeds.items()}
            made = [_array(v) for v in session.run_with_ort_values(names, values)]
        return [_narrowed(name, array, others) for name, array in zip(outputs, made, strict=True)]

    return label, run


UNREADABLE = {dtype for dtype, number in NUMBERS.items() if number in PACKED_BITS or number in (16, 18, 19, 20)}
"""Element types of outputs that Python cannot read from onnxruntime; float32 holds all their values."""
_WIDE = "__float32"


def _widened(proto: onnx.ModelProto, others: Mapping[str, Any]) -> onnx.ModelProto:
    """The model with these outputs as float32 beside them."""
    for name in others:
        proto.graph.node.append(onnx.helper.make_node("Cast", [name], [name + _WIDE], to=onnx.TensorProto.FLOAT))
        proto.graph.output.append(onnx.ValueInfoProto(name=name + _WIDE))
    return proto


def _narrowed(name: str, made: Any, others: Mapping[str, Any]) -> Any:
    return made.astype(others[name]) if name in others else made


def _value(ort: Any, array: Array) -> Any:
    if array.dtype in ORT_TYPES:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    if NUMBERS[array.dtype] not in range(16, 21):
        raise unfit(f"qrun cannot feed {type_name(array.dtype)} to onnxruntime")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, NUMBERS[array.dtype])


def _array(value: Any) -> Array:
    """An output with its own element type; OrtValue.numpy gives bytes for some, and refuses others."""
    dtype = DTYPES.get(value.element_type())
    if dtype is None or dtype in ORT_TYPES:
        return np.asarray(value.numpy())
    try:
        array = np.asarray(value.numpy())
    except RuntimeError:
        raise unfit(f"qrun cannot read {type_name(dtype)} from onnxruntime") from None
    if array.dtype == dtype:
        return array
    if NUMBERS[dtype] in PACKED_BITS or array.itemsize != dtype.itemsize:
        raise unfit(f"qrun cannot read {type_name(dtype)} from onnxruntime")
    return array.view(dtype)
