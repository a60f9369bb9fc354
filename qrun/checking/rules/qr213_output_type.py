"""QR213 output-type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.checking.rules._ort import known_schema
from qrun.checking.rules._parameters import quantizers
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import made_type, nodes
from qrun.ir import Model, Node
from qrun.ir.types import type_name


@rule(
    "QR213",
    "output-type",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="correct the type in graph.output or graph.value_info, or run onnx.shape_inference.infer_shapes again",
)
def output_type(model: Model) -> Iterator[Finding]:
    """The file states another element type for an output than the node makes.

    What QuantizeLinear makes without a zero point is uint8, or what output_dtype says. An output whose type a zero point
    gives is judged by QR303.

    Why is this bad?
        onnxruntime refuses the model ("output arg does not match expected type"); onnx.checker looks only with
        full_check. Tools that trust the stated type read the wrong bytes.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (float[2] x) => (int8[2] y)
        <float s = {0.5}>
        {
            y = QuantizeLinear(x, s)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (float[2] x) => (int8[2] y)
        <float s = {0.5}>
        {
            y = QuantizeLinear<output_dtype = 3>(x, s)
        }
    """
    for scope, node in nodes(model):
        stated = scope.model.types
        for place, name in enumerate(node.outputs):
            value = stated.get(name) if name else None
            if value is None or value.dtype is None or (not place and _by_zero_point(node)):
                continue
            made = made_type(node, place, scope.dtype)
            if made is not None and made != value.dtype and _allowed(node, place, made):
                yield Finding(
                    f"{name} is stated as {type_name(value.dtype)}, but the node makes {type_name(made)}",
                    **scope.at(node),
                    tensor=f"{name} (output {place})",
                    expected=type_name(made),
                    got=type_name(value.dtype),
                    why=f"{node.op}-{node.version}: the inputs and attributes give the output's type.",
                )


def _allowed(node: Node, place: int, made: np.dtype[Any]) -> bool:
    """False if the type follows from an input that the operator does not take, which is QR203's to say."""
    known = known_schema(node)
    if known is None or not known.outputs:
        return True
    types = known.outputs[min(place, len(known.outputs) - 1)].types
    return types is None or made in types


def _by_zero_point(node: Node) -> bool:
    return any(q.is_output and q.zero_point for q in quantizers(node))
