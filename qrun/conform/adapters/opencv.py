"""OpenCV's dnn module on the CPU, one thread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from qrun.conform.adapters import Tensor, tensor

UNSUPPORTED = (
    "Can't create layer",
    "NoSuchType",
    "Unsupported data type",
    "not supported data type",
    "Unsupported type",
    "unsupported data type",
)


@cache
def _module() -> Any:
    cv = import_module("cv2")
    cv.setNumThreads(1)
    return cv


def version() -> str:
    return str(_module().__version__)


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    net = _module().dnn.readNetFromONNX(np.frombuffer(model, np.uint8))
    for name, value in inputs.items():
        net.setInput(value.numpy(), name)
    return [tensor(array) for array in net.forward(list(outputs))]
