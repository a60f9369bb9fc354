"""Fuses DequantizeLinear, a float operator and QuantizeLinear into one operator on 8-bit tensors.

Results. The literal graph rounds to float32 after DequantizeLinear, after the operator and after the division in
QuantizeLinear, and only then to an integer. Evaluated in real numbers it would round once, as the integer operators do
in exact arithmetic:

    Conv                QLinearConv              real value, rounded once; for a bias see below
    MatMul              QLinearMatMul            real value, rounded once
    Gemm                QGemm                    real value, rounded once; for a bias see below
    Add, Mul            QLinearAdd, QLinearMul   real value, rounded once
    Concat              QLinearConcat            real value, rounded once; a copy where the parameters are equal
    AveragePool         QLinearAveragePool       real value, rounded once
    GlobalAveragePool   QLinearGlobalAveragePool real value, rounded once
    Softmax             QLinearSoftmax           real value, rounded once

So a code differs from the literal graph's by at most 1, and only where the real quotient lies within the error of the
float32 steps (some 2**-22 of the largest term) of a tie: the fused graph is then the one that is right. Averages of few
elements often are ties. Where a step of the literal graph overflows float32, it computes with infinity, and may give
NaN.

Bias. Its scale in the graph is float32(x_scale * w_scale). The integer operators take it in units of the real product,
which differs by at most one part in 2**24, and so may the bias. A bias with another scale is refused, as is a float
constant that is not float32(n * float32(x_scale * w_scale)) for integers n. If a sum might leave int32, but all sums of
its channel give one code, another bias replaces it: no sum leaves int32, same code.

Relu and Clip before QuantizeLinear limit its codes, in real numbers as in float32, because rounding keeps order. They
vanish where the type's own range is as narrow (Relu, where the zero point is the smallest code), else become a table.

Add and Mul that are functions of one 8-bit tensor (the other operand is computed from constants, or from the same
tensor) stay as they are: `tabulate` makes tables from them, with the literal graph's results, and a run without tables
has the same.

`ort` arithmetic: the integer operators compute as onnxruntime's do, as if onnxruntime had fused the graph. `onnx-ref`:
as onnx.reference for QLinearConv and QLinearMatMul.

Refused, with the reason: results that are read in float, or requested; operands or results that are not 8-bit integers
with one positive, finite float32 scale that is constant (weights: one scale, or one per output channel); sums that
might not fit int32; cases that the integer operators do not take: different types in Add, Mul, Softmax and pools,
dilated average pools, alpha and beta of Gemm; and cases with a native kernel in float only, which is faster than the
reference kernel of an integer operator: Conv over three axes, Concat of very many tensors. Every other operator between
DequantizeLinear and QuantizeLinear stays in float.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from qrun.ir import Model
from qrun.ops import Arith
from qrun.passes._chains import chains
from qrun.passes._draft import Draft, Refused, Rewritten, unchanged_model
from qrun.passes._qdq import FORMS, put
from qrun.passes._sides import has_quantized

_ELEMENTWISE = ("Add", "Mul")


def fuse_qdq(
    model: Model, keep: Iterable[str], arith: Arith, *, functions: bool = False, skip: Container[str] = ()
) -> Rewritten:
    """The model with integer operators for the groups that have one.

    functions: also for functions of one tensor. skip: outputs of float nodes that stay.
    """
    if not has_quantized(model):
        return unchanged_model(model)

    draft = Draft(model, keep, arith)
    single: Container[str] | None = () if functions else None
    for node in model.nodes:
        if not node.domain and node.op_type in FORMS and not any(name in skip for name in node.outputs):
            try:
                form = FORMS[node.op_type](draft, node)
                if single is None and node.op_type in _ELEMENTWISE:
                    single = chains(Draft(model, keep, arith))
                if single and node.outputs[0] in single:
                    raise Refused("it is a function of one tensor, and has no table")
                put(draft, node, form)
            except Refused as reason:
                draft.refused[node.index] = str(reason)
    return draft.finish()
