"""tinygrad, computed by its device PYTHON."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version as installed
from typing import Any

from qrun.conform.adapters import Tensor, tensor

UNSUPPORTED = (
    "NotImplementedError",
    "NoSuchType",
    "unsupported",
    "not supported",
    "KeyError: DataType",
    "is not a valid OnnxDataType",
)
os.environ.setdefault("DEV", "PYTHON")
_model = tempfile.NamedTemporaryFile(prefix="qrun-", suffix=".onnx")  # noqa: SIM115


def version() -> str:
    import_module("tinygrad")
    return installed("tinygrad")


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    _model.seek(0)
    _model.truncate()
    _model.write(model)
    _model.flush()
    grad = import_module("tinygrad")
    runner = import_module("tinygrad.nn.onnx").OnnxRunner(_model.name)
    made = runner({name: grad.Tensor(t.numpy()) for name, t in inputs.items()})
    return [tensor(made[name].numpy()) for name in outputs]
