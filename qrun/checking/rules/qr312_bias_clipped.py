"""QR312 bias-clipped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._biases import biases
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model

_LIMITS = np.iinfo(np.int32)


@rule(
    "QR312",
    "bias-clipped",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="enlarge the scale of these weights until bias / (x_scale * w_scale) fits int32, and quantize them again",
    applies=("QLinearConv", "com.microsoft::QGemm", "Conv", "Gemm"),
)
def bias_clipped(model: Model) -> Iterator[Finding]:
    """An int32 bias holds the largest or smallest int32: it was clipped when it was quantized.

    Why is this bad?
        The float bias divided by x_scale * w_scale did not fit. This happens to channels whose weights are nearly 0, so
        that their scale is tiny. The channel's output is then wrong by any amount, and no runtime says so.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.000001},
         int8[2] wz = {0, 0}, float ys = {0.5}, int32[2] b = {10, 2147483647}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, xz, b)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.01}, int8[2] wz = {0, 0},
         float ys = {0.5}, int32[2] b = {10, 214748}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, xz, b)
        }
    """
    seen: set[int] = set()
    for b in biases(model):
        if b.value.dtype != np.int32 or id(b.value) in seen:
            continue
        seen.add(id(b.value))
        flat = b.value.reshape(-1)
        clipped = np.flatnonzero((flat == _LIMITS.max) | (flat == _LIMITS.min))
        if clipped.size:
            first = int(clipped[0])
            yield Finding(
                f"bias {b.tensor}[{first}] is {flat[first]}, the limit of int32; {clipped.size} of {flat.size} values",
                **b.where,
                expected="values between the limits -2147483648 and 2147483647",
                got=f"{flat[first]} at [{first}]; {clipped.size} of {flat.size} values",
                why=f"{b.node.op}-{b.node.version}: the bias has the scale x_scale * w_scale, and this one did not fit.",
            )
