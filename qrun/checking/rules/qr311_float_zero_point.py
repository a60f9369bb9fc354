"""QR311 float-zero-point."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._parameters import TABLE
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Model
from qrun.ir.types import type_name


@rule(
    "QR311",
    "float-zero-point",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html",
    fix="set the zero point to 0; it is there to give the type",
    applies=("QuantizeLinear", "DequantizeLinear", "QLinearMatMul"),
)
def float_zero_point(model: Model) -> Iterator[Finding]:
    """The zero point of a float8, float6 or float4 tensor is not 0.

    Why is this bad?
        The page says that it is "usually not used", and nothing about rounding it. onnxruntime and onnx.reference refuse
        to dequantize with it and ignore or add it when they quantize; qrun refuses both.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (float8e4m3fn[2] x) => (float[2] y)
        <float scale = {0.5}, float8e4m3fn zero = {1}>
        {
            y = DequantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (float8e4m3fn[2] x) => (float[2] y)
        <float scale = {0.5}, float8e4m3fn zero = {0}>
        {
            y = DequantizeLinear(x, scale, zero)
        }
    """
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            value = scope.value(q.zero_point.tensor) if q.zero_point else None
            if value is None or not q.zero_point or not value.dtype.name.startswith(("float4", "float6", "float8")):
                continue
            bad = ~(value.astype(np.float32) == 0)
            if bad.any():
                first = tuple(int(i) for i in np.argwhere(bad)[0])
                yield Finding(
                    f"{q.zero_point.name} of {type_name(value.dtype)} is {value[first]}, expected 0",
                    **scope.at(node),
                    tensor=f"{q.zero_point.tensor} (input {q.zero_point.place}, {q.zero_point.name})",
                    expected="0",
                    got=str(value[first]),
                    why=f"{node.op}-{node.version}: zero points are not used for float types.",
                )
