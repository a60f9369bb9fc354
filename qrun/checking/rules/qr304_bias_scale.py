"""QR304 bias-scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qrun.checking.rules._equal import digits, tolerance
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes
from qrun.ir import Array, Model, Node

FUSED = {"Conv": "QLinearConv", "Gemm": "QGemm"}
ORT_CONV_ABSOLUTE, ORT_CONV_RELATIVE = 1e-6, 1e-2
"""Within these of x_scale * w_scale, onnxruntime 1.31.1 still fuses a Conv; measured."""


@rule(
    "QR304",
    "bias-scale",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="requantize the bias: int32, scale x_scale * w_scale, zero point 0",
    applies=("Conv", "Gemm"),
)
def bias_scale(model: Model) -> Iterator[Finding]:
    """In QDQ form, the scale of a bias is not x_scale * w_scale, or its zero point is not 0.

    The rule looks at Conv and Gemm whose input, weight and bias all come from DequantizeLinear with stored scales.

    Why is this bad?
        It is legal ONNX, but QLinearConv and QGemm have no scale for the bias: they take x_scale * w_scale. Where the
        two differ, onnxruntime either leaves the Conv unfused and runs it in float, or, if they are close or the node
        is a Gemm, fuses it and adds another bias than the model says.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (float[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {3}, float ws = {0.5}, int8 wz = {0},
         int32[1] b = {10}, float bs = {0.5}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            bf = DequantizeLinear(b, bs)
            y = Conv(xf, wf, bf)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (float[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {3}, float ws = {0.5}, int8 wz = {0},
         int32[1] b = {10}, float bs = {0.25}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            bf = DequantizeLinear(b, bs)
            y = Conv(xf, wf, bf)
        }
    """
    for scope, node in nodes(model, (("", name) for name in FUSED)):
        if len(node.inputs) < 3:
            continue
        found = [_dequantized(scope, name) for name in node.inputs[:3]]
        x, w, b = found
        if x is None or w is None or b is None or x.scale.size != 1:
            continue
        yield from _judge(scope, node, x, w, b)


@dataclass(frozen=True)
class _Dequantized:
    """A tensor that a DequantizeLinear makes from stored parameters."""

    node: Node
    scope: Scope
    scale: Array
    name: str
    zero: Array | None


def _dequantized(scope: Scope, name: str) -> _Dequantized | None:
    made = scope.producer(name)
    if made is None or made[0].op_type != "DequantizeLinear" or len(made[0].inputs) < 2:
        return None
    node, home = made
    scale = home.value(node.inputs[1])
    zero = home.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if scale is None or scale.ndim > 1 or not scale.size or scale.dtype.kind in "Oc":
        return None
    return _Dequantized(node, home, scale.astype(np.float64).reshape(-1), node.inputs[1], zero)


def _judge(scope: Scope, node: Node, x: _Dequantized, w: _Dequantized, b: _Dequantized) -> Iterator[Finding]:
    where = {**b.scope.at(b.node), "tensor": f"{b.name}, feeds {node.op_type} {node.label}"}
    if b.zero is not None and b.zero.dtype.kind in "iu" and b.zero.any():
        effect = "onnxruntime does not fuse such a Conv to QLinearConv: it runs in float."
        if node.op_type == "Gemm":
            effect = "onnxruntime fuses this Gemm to QGemm, which has no zero point for the bias."
        yield Finding(
            "bias zero point is not 0",
            **where,
            expected="0",
            got=f"{b.zero.reshape(-1)[int(np.argmax(b.zero.reshape(-1) != 0))]}",
            why=f"legal ONNX, but {effect}",
        )
        return
    if w.scale.size != b.scale.size and 1 not in (w.scale.size, b.scale.size):
        return
    with np.errstate(all="ignore"):
        want, got = np.broadcast_arrays(x.scale * w.scale, b.scale)
        off = np.abs(got - want) / want
    sane = np.all(np.isfinite(want)) and np.all(want > 0) and np.all(np.isfinite(off))
    bad = off > tolerance(*(p.scope.value(p.name) for p in (x, w, b)))
    if not sane or not bad.any():
        return
    worst = int(np.argmax(off))
    place = f"[{worst}]" if b.scale.size > 1 else ""
    w_place = f"[{worst}]" if w.scale.size > 1 else ""
    unfused = node.op_type == "Conv" and np.any(np.abs(got - want) > ORT_CONV_ABSOLUTE + ORT_CONV_RELATIVE * want)
    effect = "onnxruntime does not fuse such a Conv to QLinearConv: it runs in float."
    if not unfused:
        effect = (
            f"onnxruntime fuses this {node.op_type} to {FUSED[node.op_type]} and scales the bias by x_scale * w_scale."
        )
    number = f"{digits(got[worst], want[worst])} at {b.name}{place}; "
    count = f"{int(bad.sum())} of {bad.size} channels, " if bad.size > 1 else ""
    yield Finding(
        f"bias scale {digits(got[worst], want[worst])}, expected {digits(want[worst], got[worst])} ({b.name}{place})",
        **where,
        expected=f"{digits(want[worst], got[worst])} = x_scale {x.scale[0]:.6g} * w_scale{w_place} "
        f"{w.scale[worst if w.scale.size > 1 else 0]:.6g}",
        got=f"{number}{count}{100 * off[worst]:.3g}% off",
        why=f"legal ONNX, but {effect}",
    )
