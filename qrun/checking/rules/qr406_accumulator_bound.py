"""QR406 accumulator-bound."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._sums import LIMIT, bound
from qrun.checking.rules._weights import weights
from qrun.ir import Model


@rule(
    "QR406",
    "accumulator-bound",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__MatMulInteger.html",
    fix="split the sum, use fewer bits for the weights, or enlarge the scale of the weights so that the bias shrinks",
    applies=("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "com.microsoft::QGemm", "Conv", "MatMul",
             "Gemm"),
)  # fmt: skip
def accumulator_bound(model: Model) -> Iterator[Finding]:
    """With these weights and this bias, some input makes the int32 accumulator overflow.

    The bound is exact: the input that takes, for every weight, the code that moves the sum furthest reaches it. QR403
    reports overflows that a run has seen.

    Why is this bad?
        The sum wraps round and the output has nothing to do with the real value. onnxruntime checks nothing. Usually it
        is the bias: a channel with a tiny weight scale has a bias near the end of int32.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,1,1] x) => (uint8[1,1,1,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[1,1,1,1] w = {64}, int8 wz = {0}, int32[1] b = {2147480000}>
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
        worst = bound(w, LIMIT - 1)
        if worst is not None and worst.wraps:
            bias = f" with bias {worst.bias}" if worst.bias else ""
            behind = ", if it is run in integers" if w.float else ""
            yield Finding(
                f"the int32 accumulator of channel {worst.row} can reach {worst.sum}{behind}",
                **w.where,
                expected="sums from -2147483648 to 2147483647",
                got=f"{worst.sum} in channel {worst.row}: {worst.terms} products{bias}; headroom "
                f"{worst.headroom:.2f} bits",
                why=f"{w.node.op}-{w.node.version} in integers accumulates in 32 bits.",
            )
