"""QR411 infinite-quantized."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._observed import reaching
from qrun.checking.rules._rule import Finding, at, rule
from qrun.ir import Model
from qrun.running.session import RunResult


@rule(
    "QR411",
    "infinite-quantized",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="remove infinity from the input, or clip it to the range that is meant; --fail-on warning turns this into exit 1",
    applies=("QuantizeLinear",),
)
def infinite_quantized(model: Model, result: RunResult) -> Iterator[Finding]:
    """Infinity was quantized to an integer.

    Why is this bad?
        It saturates: qrun and onnxruntime give the largest or smallest code. onnx.reference casts it to an integer first
        and gets 0 or the opposite end, and others do as their processor's conversion does. No measured value is
        infinite; the cause is mostly a division by 0 or an overflow before the node.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[2] y)
        <float[2] x = {1.0, inf}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[2] y)
        <float[2] x = {1.0, 2.0}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    for s, tensor in reaching(model, result, "infinite-quantized"):
        yield Finding(
            f"infinity reaches {s.node.op_type}: {s.share}",
            **at(s.node),
            tensor=tensor,
            expected="finite numbers",
            got=f"infinity in {s.share}",
            why=f"{s.node.op}-{s.node.version} saturates; runtimes that convert to an integer first give other codes.",
        )
