"""DequantizeLinear, a float operator, QuantizeLinear: together one operator on 8-bit tensors.

What is computed. The literal graph rounds to float32 after DequantizeLinear, after the operator and after the division
in QuantizeLinear, and only then to an integer. Evaluated in real numbers it would round once, and that once is what the
integer operators do in exact arithmetic:

    Conv                QLinearConv              real value, rounded once; of a bias see below
    MatMul              QLinearMatMul            real value, rounded once
    Gemm                QGemm                    real value, rounded once; of a bias see below
    Add, Mul            QLinearAdd, QLinearMul   real value, rounded once
    Concat              QLinearConcat            real value, rounded once; a copy where the parameters are equal
    AveragePool         QLinearAveragePool       real value, rounded once
    GlobalAveragePool   QLinearGlobalAveragePool real value, rounded once
    Softmax             QLinearSoftmax           real value, rounded once

So a code differs from the literal graph's by at most 1, and only where the real quotient lies within the error of the
float32 steps (some 2**-22 of the largest term) of a tie: the fused graph is then the one that is right. Averages of few
elements often are ties. Where a step of the literal graph overflows float32, it computes with infinity, and may give NaN.

Bias. Its scale in the graph is float32(x_scale * w_scale). The integer operators take it in units of the real product,
which differs by at most one part in 2**24, and so may the bias. A bias with another scale is refused, as is a float
constant that is not float32(n * float32(x_scale * w_scale)) for integers n.

Relu and Clip before QuantizeLinear limit its codes, in real numbers as in float32, because rounding keeps order: they
vanish where the type's own range is as narrow (Relu, where the zero point is the smallest code), else become a table.

`ort` arithmetic: the integer operators compute as onnxruntime's do, as if that had fused the graph. `onnx-ref`: as
onnx.reference for QLinearConv and QLinearMatMul.

Refused, with the reason: a result that is read in float, or asked for; operands or results that are not 8-bit integers
with one positive, finite float32 scale that is constant (weights: one scale, or one per output channel); sums that
might not fit int32; and what the integer operators do not take: different types in Add, Mul, Softmax and pools, dilated average
pools, alpha and beta of Gemm. Every other operator between DequantizeLinear and QuantizeLinear stays in float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from qrun.ir import Model, Node
from qrun.ops import Arith
from qrun.passes._draft import Draft, Refused, Rewritten, unchanged
from qrun.passes._qdq_others import average_pool, binary, concat, global_average_pool, softmax
from qrun.passes._qdq_output import IntegerOperator, put
from qrun.passes._qdq_products import conv, gemm, matmul
from qrun.passes._sides import has_quantized

_FORMS: Mapping[str, Callable[[Draft, Node], IntegerOperator]] = {
    "Conv": conv,
    "MatMul": matmul,
    "Gemm": gemm,
    "Add": binary,
    "Mul": binary,
    "Concat": concat,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "Softmax": softmax,
}


def fuse_qdq(model: Model, keep: Iterable[str], arith: Arith) -> Rewritten:
    """The model with integer operators for the groups that have one."""
    if not has_quantized(model):
        return unchanged(model)
    draft = Draft(model, keep, arith)
    for node in model.nodes:
        form = _FORMS.get(node.op_type) if not node.domain else None
        if form is not None:
            try:
                put(draft, node, form(draft, node))
            except Refused as reason:
                draft.refused[node.index] = str(reason)
    return draft.finish()
