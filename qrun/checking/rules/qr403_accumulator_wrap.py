"""QR403 accumulator-wrap."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._observed import param_input, seen
from qrun.checking.rules._rule import Finding, at, rule
from qrun.ir import Model
from qrun.running.session import RunResult


@rule(
    "QR403",
    "accumulator-wrap",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__MatMulInteger.html",
    fix="split the sum, or shrink the bias; 8-bit products need more than 33 000 terms to get here",
    replaces=("QR406",),
)
def accumulator_wrap(model: Model, result: RunResult) -> Iterator[Finding]:
    """An integer sum left the range of int32 and wrapped round.

    QR406 tells, without a run, that it can; at a node where it did, this is reported instead.

    Why is this bad?
        The specification lets the 32-bit accumulator overflow, so the result is defined but has nothing to do with
        the real value. Runtimes that accumulate in 64 bits or in float differ.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[1,1,1,1] y)
        <uint8[1,1,1,1] x = {255}, float s = {0.00000001}, uint8 z = {0}, uint8[1,1,1,1] stored = {255},
         int32[1] top = {2147480000}, uint8 one = {128}, float ys = {1.0}>
        {
            w = Identity(stored)
            y = QLinearConv(x, s, z, w, s, z, ys, one, top)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[1,1,1,1] y)
        <uint8[1,1,1,1] x = {255}, float s = {0.00000001}, uint8 z = {0}, uint8[1,1,1,1] w = {255},
         int32[1] b = {1000}, uint8 one = {128}, float ys = {1.0}>
        {
            y = QLinearConv(x, s, z, w, s, z, ys, one, b)
        }
    """
    for s in seen(model, result, "accumulator-wrap"):
        _, tensor = param_input(s.node, s.param)
        yield Finding(
            f"the int32 accumulator of {s.node.op_type} wraps in {s.share}",
            **at(s.node),
            tensor=tensor,
            expected="sums from -2147483648 to 2147483647",
            got=f"overflow in {s.share}",
            why=f"{s.node.op}-{s.node.version} accumulates in 32 bits and may overflow.",
        )
