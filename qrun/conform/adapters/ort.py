"""onnxruntime on the CPU: options ``""`` (no graph optimizations),
``optimized`` (as by default), ``x64quantprecision``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from qrun.conform.adapters import PLAIN, Tensor, dtype_of, tensor

UNSUPPORTED = (
    "NotImplemented",
    "is not a registered function/op",
    "Could not find an implementation",
    "NoSuchType",
    "Unsupported model IR version",
    "No Op registered for",
    "is under development",
)
PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""Element types of less than a byte, and their bits."""
WIDE = "_as_float32"


@cache
def _module() -> Any:
    ort = import_module("onnxruntime")
    ort.set_default_logger_severity(4)
    return ort


def version() -> str:
    return str(_module().__version__)


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    ort = _module()
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not option:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if option == "x64quantprecision":
        options.add_session_config_entry("session.x64quantprecision", "1")
    unreadable = [name for name, (number, _) in outputs.items() if number in PACKED]
    if unreadable:
        model = _widened(model, unreadable)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    if all(t.type in PLAIN for t in inputs.values()) and all(number in PLAIN for number, _ in outputs.values()):
        made = session.run(list(outputs), {name: t.numpy() for name, t in inputs.items()})
        return [None if array is None else tensor(array) for array in made]
    values = {name: _value(ort, t) for name, t in inputs.items()}
    names = [name + WIDE if name in unreadable else name for name in outputs]
    made = session.run_with_ort_values(names, values)
    return [_tensor(value, outputs[name][0] if name in unreadable else 0) for name, value in zip(outputs, made)]  # noqa: B905


def _widened(model: bytes, names: list[str]) -> bytes:
    """The model with these outputs in float32 too, as Python cannot read those of less than a byte."""
    onnx = import_module("onnx")
    proto = onnx.load_model_from_string(model)
    for name in names:
        proto.graph.node.append(onnx.helper.make_node("Cast", [name], [name + WIDE], to=1))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name + WIDE, 1, None))
    return bytes(proto.SerializeToString())


def _value(ort: Any, given: Tensor) -> Any:
    if given.type in PLAIN:
        return ort.OrtValue.ortvalue_from_numpy(given.numpy())
    bits = np.frombuffer(given.data, np.uint8 if dtype_of(given.type).itemsize == 1 else np.uint16).reshape(given.shape)
    if given.type in PACKED:
        bits = _packed(bits, PACKED[given.type])
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits.copy(), given.type)


def _packed(codes: Any, bits: int) -> Any:
    """Codes in their low bits, the first in the lowest, as onnxruntime holds them; in an array of as many bytes."""
    share, flat = 8 // bits, codes.reshape(-1) & ((1 << bits) - 1)
    flat = np.append(flat, np.zeros(-flat.size % share, np.uint8)).reshape(-1, share)
    packed = np.bitwise_or.reduce(flat << (np.arange(share, dtype=np.uint8) * bits), axis=1).astype(np.uint8)
    made = np.zeros(codes.size, np.uint8)
    made[: packed.size] = packed
    return made.reshape(codes.shape)


def _tensor(value: Any, wide: int) -> Tensor | None:
    """wide: the type of an output that was asked for in float32. Types that numpy lacks come as their bits."""
    number = value.element_type()
    if wide:
        return tensor(value.numpy().astype(dtype_of(wide)))
    if number in PLAIN:
        return tensor(value.numpy())
    array = np.asarray(value.numpy())
    return Tensor(number, tuple(array.shape), np.ascontiguousarray(array).tobytes())
