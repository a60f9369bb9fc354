"""ONNX's own node cases, by operator."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx

SEVERAL = "(several nodes)"


@cache
def cases() -> dict[str, list[Any]]:
    """The cases of onnx.backend.test by operator; those of several nodes under SEVERAL."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    by_operator: dict[str, list[Any]] = {}
    for case in found:
        nodes = case.model.graph.node
        by_operator.setdefault(nodes[0].op_type if len(nodes) == 1 else SEVERAL, []).append(case)
    return by_operator


def array(value: Any) -> Any:
    """The value as `run` takes it: an array; a list of them of a sequence; None of an optional that is none."""
    if value is None or isinstance(value, list):
        return value and [array(element) for element in value]
    made = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return made.astype(object) if made.dtype.kind in "US" else made
