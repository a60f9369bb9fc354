"""Shapes and types that a file does not state, by onnx.shape_inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.inliner
import onnx.shape_inference

from qrun.ir.graph import value_type
from qrun.ir.load import parse, read_file
from qrun.ir.model import Model, TensorType

MAX_BYTES = 2**31 - 1
"""What onnx.shape_inference takes: one serialized protobuf."""


def with_inferred(model: Model, source: str | Path | bytes) -> Model:
    """The model with what follows from its inputs and operators among its types; what the file states comes first."""
    found = {v.name: v for v in (*model.inputs, *model.outputs)}
    stated = {name: value for name, value in {**found, **model.types}.items() if value.shape is not None}
    return replace(model, types={**model.types, **infer(source), **stated})


def infer(source: str | Path | bytes) -> Mapping[str, TensorType]:
    """Name to type and shape for the tensors of the main graph, as far as ONNX infers them; nothing if that fails.

    Operators that ONNX does not define, such as those of com.microsoft, end the inference on their paths.
    """
    data = source if isinstance(source, bytes) else read_file(Path(source))
    if len(data) > MAX_BYTES:
        return {}
    try:
        proto = parse(data, str(source))
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        graph = onnx.shape_inference.infer_shapes(proto, strict_mode=False).graph
        return {v.name: _without_made_up(value_type(v)) for v in (*graph.value_info, *graph.output)}
    except Exception:
        return {}


def _without_made_up(value: TensorType) -> TensorType:
    """Sizes that ONNX could only give a name of its own are unknown."""
    if value.shape is None:
        return value
    return replace(value, shape=tuple(None if str(d).startswith("unk__") else d for d in value.shape))
