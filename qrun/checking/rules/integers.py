"""Whole groups that onnxruntime nevertheless computes in float on x86 CPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qrun.checking.rules._groups import refused
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._words import several
from qrun.ir import Model, once_per_model

if TYPE_CHECKING:
    from qrun.checking.targets import Integers, Judged, TargetRule

_PRODUCTS = ("Conv", "MatMul", "Gemm")
_SHARE = 0.1
"""The share of a model's products that must be in float for a warning."""


@rule(
    "QR606",
    "warning",
    spec="ort-quantization",
    fix="quantize activations to uint8: quantize_static(.., activation_type=QuantType.QUInt8)",
    applies=("Conv", "MatMul", "Gemm"),
)
def float_in_onnxruntime(model: Model) -> Iterator[Finding]:
    """onnxruntime 1.32.0 computes a tenth or more of a model's Conv, MatMul and Gemm in float on x86 CPUs, although
    each is in a whole group. One finding for each cause.

    The usual cause is int8 activations. On x86 onnxruntime multiplies uint8 activations only. It turns an int8
    tensor into uint8 only where one node reads it. A tensor that several nodes read (SiLU, residual connections) stays
    int8; then its producer and its readers stay in float. quantize_static writes int8 activations by default.
    ``session.qdqisint8allowed=1`` makes onnxruntime multiply int8.

    Why is this bad?
        The results are right, but nothing says that the model runs in float, with the roundings of a quantized one.
        Measure before and after: a model that runs in integers throughout is not always the faster one.

    Bad
        main (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float s = {0.1}, int8 z = {0}, float gs = {0.0039}, int8 gz = {-128}, int8[1,1,1,1] w = {1}, int8 wz = {0}>
        {
            xq = QuantizeLinear(x, s, z)
            xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear(w, s, wz)
            c = Conv(xd, wd)
            cq = QuantizeLinear(c, s, z)
            cd = DequantizeLinear(cq, s, z)
            g = Sigmoid(cd)
            gq = QuantizeLinear(g, gs, gz)
            gd = DequantizeLinear(gq, gs, gz)
            ce = DequantizeLinear(cq, s, z)
            m = Mul(ce, gd)
            mq = QuantizeLinear(m, s, z)
            y = DequantizeLinear(mq, s, z)
        }

    Good
        main (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float s = {0.1}, uint8 z = {128}, float gs = {0.0039}, uint8 gz = {0}, int8[1,1,1,1] w = {1}, int8 wz = {0}>
        {
            xq = QuantizeLinear(x, s, z)
            xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear(w, s, wz)
            c = Conv(xd, wd)
            cq = QuantizeLinear(c, s, z)
            cd = DequantizeLinear(cq, s, z)
            g = Sigmoid(cd)
            gq = QuantizeLinear(g, gs, gz)
            gd = DequantizeLinear(gq, gs, gz)
            ce = DequantizeLinear(cq, s, z)
            m = Mul(ce, gd)
            mq = QuantizeLinear(m, s, z)
            y = DequantizeLinear(mq, s, z)
        }
    """
    yield from (finding for share, finding in _found(model) if share >= _SHARE)


@rule(
    "QR607",
    "note",
    spec="ort-quantization",
    fix="give the group a form that onnxruntime has in integers",
)
def partly_float_in_onnxruntime(model: Model) -> Iterator[Finding]:
    """onnxruntime 1.32.0 computes whole groups in float on x86 CPUs, but less than a tenth of the Conv, MatMul and
    Gemm. One finding for each cause; QR606 explains more.

    Why is this bad?
        The results are right. Before and behind each of these nodes the values are dequantized and quantized again.

    Bad
        main (uint8[2,3] x) => (uint8[3,2] y)
        <float s = {0.1}, uint8 z = {128}, uint8 higher = {129}>
        {
            xd = DequantizeLinear(x, s, z)
            r = Transpose(xd)
            y = QuantizeLinear(r, s, higher)
        }

    Good
        main (uint8[2,3] x) => (uint8[3,2] y)
        <float s = {0.1}, uint8 z = {128}>
        {
            xd = DequantizeLinear(x, s, z)
            r = Transpose(xd)
            y = QuantizeLinear(r, s, z)
        }
    """
    yield from (finding for share, finding in _found(model) if share < _SHARE)


@once_per_model
def _found(model: Model) -> Sequence[tuple[float, Finding]]:
    """For each cause the share of the model's products that it keeps in float, and the finding."""
    from qrun.checking.targets import integers

    found = integers(model)
    if found is None:
        return ()
    own = {(scope.path, node.index) for scope, node, _ in refused(model)}
    products = sum(judged.node.op_type in _PRODUCTS for judged in found.judged) or 1
    made = []
    for cause in found.causes:
        nodes = [j for j in cause.judged if (j.scope.path, j.node.index) not in own]
        if nodes and not cause.rule.chosen and cause.rule.otherwise == "float":
            kinds = Counter(j.node.op_type for j in nodes)
            made.append((sum(kinds[op] for op in _PRODUCTS) / products, _finding(found, cause.rule, nodes, kinds)))
    return made


def _finding(found: Integers, cause: TargetRule, nodes: Sequence[Judged], kinds: Counter[str]) -> Finding:
    first = next((j for j in nodes if j.node.op_type in _PRODUCTS), nodes[0])
    op_type = first.node.op_type
    others = len(nodes) - kinds[op_type]
    also = f" and {several(others, 'other node')}" if others else ""
    return Finding(
        f"{found.runtime} computes {kinds[op_type]} of {found.count(op_type)} {op_type}{also} in float on {found.on}: "
        f"{cause.cause}",
        **first.scope.at(first.node, f"{first.node.outputs[0]} (output 0)"),
        expected="whole groups of DequantizeLinear, operator and QuantizeLinear in integers",
        got=f"in integers: {found}",
        why=f"{cause.why or 'it makes an integer operator of some groups only'}.",
        fix=f"{cause.fix}; measure both, as integers are not always faster",
    )
