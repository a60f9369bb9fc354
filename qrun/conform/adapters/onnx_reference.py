"""onnx.reference, the evaluator in the onnx package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from qrun.conform.adapters import Tensor, tensor

UNSUPPORTED = (
    "No implementation for operator",
    "RuntimeImplementationError",
    "No registered",
    "Did you recompile the sources",
    "is not supported yet",
    "known functions",
    "NoSuchType",
)


def version() -> str:
    return onnx.__version__


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    evaluator = ReferenceEvaluator(onnx.load_model_from_string(model))
    with np.errstate(all="ignore"):
        made = evaluator.run(list(outputs), {name: t.numpy() for name, t in inputs.items()})
    return [None if array is None else tensor(array) for array in made]
