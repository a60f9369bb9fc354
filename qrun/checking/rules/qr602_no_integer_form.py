"""QR602 no-integer-form."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._groups import FORMS, dequantized_inputs, is_quantized, refused
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model


@rule(
    "QR602",
    "no-integer-form",
    level="note",
    since="0.1",
    spec="https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
    fix="leave it out of quantization, unless the target is known to have it in integers",
)
def no_integer_form(model: Model) -> Iterator[Finding]:
    """An operator between DequantizeLinear and QuantizeLinear is always computed in float.

    Why is this bad?
        It is not: the result is right. But the two nodes around it cost time and a rounding each, and buy nothing.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] a) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            c = LogSoftmax(af)
            y = QuantizeLinear(c, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] a) => (float[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            y = LogSoftmax(af)
        }
    """
    for scope, node, reason in refused(model):
        graph = scope.model
        if node.op_type in FORMS or not dequantized_inputs(graph, node) or not is_quantized(graph, node):
            continue
        if reason.startswith("its result is not quantized"):
            reason = f"{node.op_type} of several tensors has no integer form"
        yield Finding(
            f"{node.op_type} runs in float between its quantized tensors",
            **scope.at(node),
            tensor=f"{node.outputs[0]} (output 0)",
            expected="an operator with an integer form, or float tensors",
            got=reason,
            why=f"{node.op}-{node.version} between DequantizeLinear and QuantizeLinear has no integer form in qrun.",
            cause=f"QR602 {node.op} {reason}",
        )
