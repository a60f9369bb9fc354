"""QR407 accumulator-headroom."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._sums import LIMIT, bound
from qrun.checking.rules._weights import weights
from qrun.ir import Model


@rule(
    "QR407",
    "accumulator-headroom",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__MatMulInteger.html",
    fix="nothing, unless the weights or the input type will change; then split the sum or shrink the bias",
    applies=("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "com.microsoft::QGemm", "Conv", "MatMul",
             "Gemm"),
)  # fmt: skip
def accumulator_headroom(model: Model) -> Iterator[Finding]:
    """The int32 accumulator surely does not overflow, but has less than two bits to spare.

    Why is this bad?
        The model is right as it is. Hardware with accumulators of fewer than 32 bits, or with a requantization that
        shifts the sum left first, overflows here.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,1,1] x) => (uint8[1,1,1,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[1,1,1,1] w = {64}, int8 wz = {0}, int32[1] b = {1500000000}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z, b)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,1,1] x) => (uint8[1,1,1,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[1,1,1,1] w = {64}, int8 wz = {0}, int32[1] b = {1000}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z, b)
        }
    """
    for w in weights(model):
        if w.float and w.dtype.itemsize > 1:
            continue
        worst = bound(w, LIMIT // 4)
        if worst is not None and not worst.wraps and worst.headroom < 2:
            bias = f" with bias {worst.bias}" if worst.bias else ""
            yield Finding(
                f"the int32 accumulator has {worst.headroom:.2f} bits of headroom",
                **w.where,
                expected="2 bits or more",
                got=f"{worst.headroom:.2f} bits: at most {worst.sum} in channel {worst.row}, {worst.terms} "
                f"products{bias}",
                why=f"{w.node.op}-{w.node.version} in integers accumulates in 32 bits.",
            )
