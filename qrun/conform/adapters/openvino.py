"""OpenVINO on the CPU, float32 precision, one thread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from qrun.conform.adapters import Tensor, tensor

UNSUPPORTED = (
    "OpConversionFailure",
    "No translator found",
    "not supported: unsupported",
    "doesn't support operation",
    "Unsupported element type",
    "Unsupported data type",
    "NoSuchType",
    "Unsupported onnx type",
    "tensor type is not supported",
    "doesn't recognize operator",
    "Unknown element type",
    "unsupported element type",
)
SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}


@cache
def _core() -> Any:
    return import_module("openvino").Core()


def version() -> str:
    return str(import_module("openvino").__version__).partition("-")[0]


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    read = _core().read_model(model, b"")
    compiled = _core().compile_model(read, "CPU", SETTINGS)
    made = compiled({name: t.numpy() for name, t in inputs.items()})
    return [tensor(made[compiled.output(place)]) for place in range(len(outputs))]
