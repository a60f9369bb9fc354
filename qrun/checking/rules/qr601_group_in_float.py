"""QR601 group-in-float."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._forms import misfit
from qrun.checking.rules._groups import FORMS, dequantized_inputs, is_quantized, meets_quantize, refused
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope
from qrun.ir import Model, Node

_TOLD = ("the product of the operands' scales", "or one scale per row", ", not 0", ", not 1", "may not fit int32", "is uint16",
         "is int16", "spatial axes", "is not known", "a positive finite number", "nobody reads", "refuses its parameters",
         "wholly in the padding")  # fmt: skip
"""Of reasons that QR304, QR306, QR317, QR406 or QR603 report, or that are about what qrun does not know."""
_UNQUANTIZED = ("its result goes to ", "its result is not quantized")


@rule(
    "QR601",
    "group-in-float",
    level="warning",
    since="0.1",
    spec="https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
    fix="put DequantizeLinear before every input, and QuantizeLinear, read by nobody else, behind the result",
    applies=FORMS,
)
def group_in_float(model: Model) -> Iterator[Finding]:
    """An operator among quantized tensors stays in float although it has an integer form; the reason is given.

    Looked at are operators of the main graph with a dequantized input whose result is quantized, at once or some nodes
    later. Results that leave the graph in float, and float inputs with float results (weight-only quantization), pass.

    Why is this bad?
        The model pays for quantizing and gets no integer operator: it is slower than in float, and other runtimes, which
        may have another rule, compute something else. ONNX says nowhere what a group is; these are qrun's reasons, and
        onnxruntime 1.31.1 has the same, except that it quantizes stored float weights itself.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] a, float[1,4] b) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            c = Add(af, b)
            y = QuantizeLinear(c, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
        }
    """
    for scope, node, reason in refused(model):
        if node.op_type in FORMS and not node.domain and _is_group(scope, node, reason):
            yield Finding(
                f"{node.op_type} runs in float: {reason}",
                **scope.at(node),
                tensor=f"{node.outputs[0]} (output 0)",
                expected=f"DequantizeLinear, {node.op_type}, QuantizeLinear of 8-bit tensors",
                got=reason,
                why=_why(scope.model, node, reason),
                cause=f"QR601 {node.op} {reason}",
            )


def _why(model: Model, node: Node, reason: str) -> str:
    stored = [name for name in node.inputs[1:] if name in model.constants and model.constants[name].dtype.kind == "f"]
    if stored and node.op_type in ("Conv", "Gemm", "MatMul") and "dequantized" in reason:
        return (
            f"onnxruntime 1.31.1 may quantize {stored[0]} itself, and then computes something else than the model says."
        )
    return f"{node.op}-{node.version} is float; only a whole group becomes an integer operator."


def _is_group(scope: Scope, node: Node, reason: str) -> bool:
    model = scope.model
    if any(misfit(scope, made) for made in map(model.producers.get, node.inputs) if made is not None):
        return False
    if any(part in reason for part in _TOLD) or "no integer form" in reason or not dequantized_inputs(model, node):
        return False
    if reason.startswith(_UNQUANTIZED):
        return meets_quantize(model, node)
    return is_quantized(model, node)
