"""QR401 nan-quantized."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._observed import reaching
from qrun.checking.rules._rule import Finding, at, rule
from qrun.ir import Model
from qrun.running.session import RunResult


@rule(
    "QR401",
    "nan-quantized",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="remove NaN from the input file; --fail-on warning turns this into exit 1",
)
def nan_quantized(model: Model, result: RunResult) -> Iterator[Finding]:
    """NaN was quantized: an integer has no code for it.

    Why is this bad?
        No specification says which code NaN becomes. qrun and onnxruntime on x86 write the smallest code, other
        runtimes may write 0 or anything else, and the mistake looks like a value afterwards.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[2] y)
        <float[2] x = {1.0, nan}, float scale = {0.5}, uint8 zero = {0}>
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
    for s, tensor in reaching(model, result, "nan-quantized"):
        yield Finding(
            f"NaN reaches {s.node.op_type}: {s.share}",
            **at(s.node),
            tensor=tensor,
            expected="numbers",
            got=f"NaN in {s.share}; they became the smallest code",
            why=f"the {s.node.op_type} spec does not say what NaN becomes.",
        )
